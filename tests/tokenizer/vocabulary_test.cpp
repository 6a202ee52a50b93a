// Every check on a model's tokenizer keys: a good vocabulary passes, and one defect at a time is
// refused with the file, the key, the offset and the defect in one line.

#define BOOST_TEST_MODULE tokenizer_vocabulary
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <limits>

#include "tests/tokenizer/small_model.h"

namespace {

using namespace ebb::test;
using Strings = std::vector<std::string>;
using Integers = std::vector<std::int64_t>;

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kMerges = "tokenizer.ggml.merges";

struct SmallModel {
  FakeLoader loader = small_model();

  Strings& tokens() { return loader.get<Strings>(kTokens); }
  Integers& types() { return loader.get<Integers>(kTypes); }
  Strings& merges() { return loader.get<Strings>(kMerges); }

  void check_accepted() {
    const auto made = make_tokenizer(&loader);
    BOOST_TEST(made.has_value(), (made ? "" : made.error().message));
  }

  /// The message begins with the place of `key` and has each of `parts` in it.
  void check_refused(std::string_view key, const std::vector<std::string>& parts,
                     ebb::Errc code = ebb::Errc::invalid_argument) {
    const auto made = make_tokenizer(&loader);
    BOOST_TEST_REQUIRE(!made.has_value());
    const std::string& message = made.error().message;
    BOOST_TEST_CONTEXT(message) {
      BOOST_TEST(message.starts_with(loader.where_key(key) + ": "));
      for (const std::string& part : parts)
        BOOST_TEST(message.find(part) != std::string::npos, part);
      for (const char c : message) BOOST_TEST((static_cast<unsigned char>(c) >= 0x20));
      BOOST_TEST((made.error().code == code));
    }
  }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(a_good_vocabulary_is_accepted, SmallModel) {
  check_accepted();
  const TokenizerPtr tokenizer = tokenizer_of(loader);
  BOOST_TEST(tokenizer->vocab_size() == kSmallVocabulary);
  BOOST_TEST(tokenizer->bos() == 0);
  BOOST_TEST(tokenizer->eos() == 1);
}

BOOST_FIXTURE_TEST_CASE(the_equal_pre_tokenizers_are_accepted, SmallModel) {
  for (const char* name : {"joyai-llm", "deepseek-v3", "hunyuan-dense"}) {
    loader.values["tokenizer.ggml.pre"] = std::string(name);
    check_accepted();
  }
}

BOOST_FIXTURE_TEST_CASE(dsml_and_named_ids_are_optional, SmallModel) {
  tokens()[kDsml] = "[PAD2]";
  for (const char* key : {"bos", "eos", "padding"}) {
    loader.values.erase("tokenizer.ggml." + std::string(key) + "_token_id");
  }
  loader.values.erase("deepseek4.vocab_size");
  check_accepted();
}

BOOST_FIXTURE_TEST_CASE(of_a_repeated_merge_the_first_counts, SmallModel) {
  merges().push_back("h e");
  check_accepted();
  // Were it the last, "e r" would go first.
  BOOST_TEST(*tokenizer_of(loader)->encode("her", false) ==
             (std::vector<std::int32_t>{kFirstMerge, kFirstByte + 'r'}));
}

BOOST_AUTO_TEST_CASE(no_loader_is_refused) {
  const auto made = make_tokenizer(nullptr);
  BOOST_TEST_REQUIRE(!made.has_value());
  BOOST_TEST(made.error().message.find("[loader]") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(absent_and_mistyped_keys_are_refused) {
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.pre", kTokens, kTypes, kMerges}) {
    SmallModel absent;
    absent.loader.values.erase(key);
    absent.check_refused(key, {"missing"}, ebb::Errc::not_found);
    SmallModel mistyped;
    mistyped.loader.values[key] = 1.5;
    mistyped.check_refused(key, {"type"});
  }
}

BOOST_FIXTURE_TEST_CASE(another_tokenizer_is_refused, SmallModel) {
  loader.values["tokenizer.ggml.model"] = std::string("llama");
  check_refused("tokenizer.ggml.model", {"\"llama\"", "gpt2"}, ebb::Errc::incompatible);
}

BOOST_FIXTURE_TEST_CASE(an_unknown_pre_tokenizer_is_refused, SmallModel) {
  loader.values["tokenizer.ggml.pre"] = std::string("deepseek-llm");
  check_refused("tokenizer.ggml.pre", {"deepseek-llm", "joyai-llm"}, ebb::Errc::incompatible);
}

BOOST_FIXTURE_TEST_CASE(tokens_have_to_agree_with_vocab_size, SmallModel) {
  tokens().pop_back();
  types().pop_back();
  check_refused(kTokens, {"vocab_size", std::to_string(kSmallVocabulary - 1) + " tokens",
                          std::to_string(kSmallVocabulary)});
}

BOOST_FIXTURE_TEST_CASE(no_tokens_are_refused, SmallModel) {
  tokens().clear();
  check_refused(kTokens, {"0 tokens"});
}

BOOST_FIXTURE_TEST_CASE(every_token_needs_a_type, SmallModel) {
  types().pop_back();
  check_refused(kTypes, {std::to_string(kSmallVocabulary - 1) + " types",
                         std::to_string(kSmallVocabulary) + " tokens"});
}

BOOST_FIXTURE_TEST_CASE(types_out_of_range_are_refused, SmallModel) {
  types()[40] = 7;
  check_refused(kTypes, {"token 40", "type 7", "1..6"});
  types()[40] = 0;
  check_refused(kTypes, {"type 0"});
}

BOOST_FIXTURE_TEST_CASE(a_token_that_is_not_utf8_is_refused_and_escaped, SmallModel) {
  tokens()[261] = "\xC3(\xFF\n";
  check_refused(kTokens, {"token 261", "UTF-8", "\\xc3(\\xff\\x0a"});
}

BOOST_FIXTURE_TEST_CASE(an_empty_or_duplicate_token_is_refused, SmallModel) {
  tokens()[261] = "";
  check_refused(kTokens, {"token 261", "empty"});
  tokens()[261] = "he";
  check_refused(kTokens, {"token 261", "\"he\"", "token " + std::to_string(kFirstMerge)});
}

BOOST_AUTO_TEST_CASE(each_markup_token_is_needed) {
  for (const std::int32_t id : {0, 1, kThinkOpen, kThinkClose, kUser, kAssistant}) {
    SmallModel model;
    const std::string lost = model.tokens()[static_cast<std::size_t>(id)];
    model.tokens()[static_cast<std::size_t>(id)] = "[LOST]";
    model.check_refused(kTokens, {lost, "no token"}, ebb::Errc::not_found);
  }
}

BOOST_AUTO_TEST_CASE(named_ids_have_to_be_in_the_vocabulary) {
  for (const char* name : {"bos", "eos", "padding"}) {
    const std::string key = "tokenizer.ggml." + std::string(name) + "_token_id";
    SmallModel model;
    for (const std::int64_t id : {std::int64_t{kSmallVocabulary}, std::int64_t{-1},
                                  std::numeric_limits<std::int64_t>::max()}) {
      model.loader.values[key] = id;
      model.check_refused(key, {std::to_string(id), "out of range"});
    }
    model.loader.values[key] = std::numeric_limits<std::uint64_t>::max();
    model.check_refused(key, {"too large"});
  }
}

BOOST_FIXTURE_TEST_CASE(bos_and_eos_ids_have_to_name_the_markup, SmallModel) {
  loader.values["tokenizer.ggml.eos_token_id"] = std::int64_t{2};
  check_refused("tokenizer.ggml.eos_token_id", {"2 names", "pad", "end▁of▁sentence"});
}

BOOST_AUTO_TEST_CASE(every_byte_needs_a_token) {
  for (const int byte : {0, 32, 97, 127, 173, 255}) {
    SmallModel model;
    model.tokens()[static_cast<std::size_t>(kFirstByte + byte)] = "[LOST]";
    model.merges().clear();
    model.check_refused(kTokens, {"for byte " + std::to_string(byte)}, ebb::Errc::not_found);
  }
}

BOOST_FIXTURE_TEST_CASE(a_byte_token_cannot_be_special, SmallModel) {
  types()[kFirstByte + 'x'] = 4;
  check_refused(kTypes, {"byte 120", "\"x\""});
}

BOOST_AUTO_TEST_CASE(merges_are_two_known_tokens_that_make_a_known_one) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"the", "space"},   {"", "space"},      {" the", "space"},
      {"the ", "space"},  {"t h e", "space"}, {"zz q", "\"zz\""},
      {"q zz", "\"zz\""}, {"q z", "\"qz\""},  {"<think >", "<think"},
  };
  for (const auto& [merge, part] : cases) {
    SmallModel model;
    model.merges().push_back(merge);
    model.check_refused(kMerges, {"merge 7, \"" + merge + "\"", part});
  }
}

BOOST_FIXTURE_TEST_CASE(a_merge_cannot_make_a_special_token_out_of_text, SmallModel) {
  tokens()[kDsml] = "hehe";
  merges().push_back("he he");
  check_refused(kMerges, {"merge 7", "plain text"});
  types()[kDsml] = 1;
  check_accepted();
}
