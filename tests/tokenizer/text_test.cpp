// Encoding and decoding on a vocabulary small enough to know the ids by heart.

#define BOOST_TEST_MODULE tokenizer_text
#define BOOST_TEST_DYN_LINK
#include <array>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <random>
#include <thread>

#include "modules/tokenizer_gguf/bpe.h"
#include "tests/tokenizer/gguf_metadata.h"
#include "tests/tokenizer/small_model.h"

namespace {

using namespace ebb::test;
using ebb::tokenizer_gguf::Bpe;
using ebb::tokenizer_gguf::Merge;
using ebb::tokenizer_gguf::Vocabulary;
using Ids = std::vector<std::int32_t>;

struct SmallModel {
  FakeLoader loader = small_model();
  TokenizerPtr tokenizer = tokenizer_of(loader);

  Ids encode(std::string_view text, bool specials) const {
    auto ids = tokenizer->encode(text, specials);
    BOOST_TEST_REQUIRE(ids.has_value());
    return *ids;
  }
  std::string decode(const Ids& ids) const {
    auto text = tokenizer->decode(ids);
    BOOST_TEST_REQUIRE(text.has_value());
    return *text;
  }
};

/// Merges as the definition says: look for the lowest rank, leftmost first, join, start over.
Ids merge_by_definition(const Vocabulary& vocabulary, std::string_view piece) {
  Ids ids;
  for (const char c : piece) ids.push_back(vocabulary.byte_tokens()[static_cast<std::uint8_t>(c)]);
  for (;;) {
    std::size_t best_rank = vocabulary.merges().size();
    std::size_t best_at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        const Merge& merge = vocabulary.merges()[rank];
        if (merge.left != ids[i] || merge.right != ids[i + 1]) continue;
        best_rank = rank;
        best_at = i;
      }
    }
    if (best_rank == vocabulary.merges().size()) return ids;
    ids[best_at] = vocabulary.merges()[best_rank].joined;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

double seconds_to_encode(const ebb::Tokenizer& tokenizer, const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  const auto ids = tokenizer.encode(text, true);
  BOOST_TEST_REQUIRE(ids.has_value());
  const auto back = tokenizer.decode(*ids);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  BOOST_TEST_REQUIRE(back.has_value());
  BOOST_TEST((*back == text));
  return taken.count();
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(merges_go_by_rank, SmallModel) {
  const Ids expected{kFirstMerge + 2};
  BOOST_TEST(encode(" the", false) == expected);
  BOOST_TEST(encode("the", false) == (Ids{kFirstMerge + 1}));
  // "h e" outranks "e r", so the r stays alone.
  BOOST_TEST(encode("her", false) == (Ids{kFirstMerge, kFirstByte + 'r'}));
}

BOOST_FIXTURE_TEST_CASE(equal_pairs_merge_from_the_left, SmallModel) {
  BOOST_TEST(encode("aaa", false) == (Ids{kFirstMerge + 5, kFirstByte + 'a'}));
  BOOST_TEST(encode("aaaaaa", false) == (Ids{kFirstMerge + 6, kFirstMerge + 5}));
}

BOOST_AUTO_TEST_CASE(merging_equals_the_definition_on_random_words) {
  const FakeLoader loader = read_gguf_metadata(EBB_DEMO_MODEL);
  const auto vocabulary = Vocabulary::read(loader);
  BOOST_TEST_REQUIRE(vocabulary.has_value());
  const Bpe bpe(*vocabulary);
  Bpe::Scratch scratch;
  std::mt19937 random(7);
  constexpr std::string_view kLetters = "etaoinshrd lucmfwypvbgk";
  for (int i = 0; i < 300; ++i) {
    std::string word(1 + random() % 24, ' ');
    for (char& c : word) c = kLetters[random() % (1 + random() % kLetters.size())];
    Ids ids;
    bpe.merge_piece(word, scratch, ids);
    BOOST_TEST(ids == merge_by_definition(*vocabulary, word), word);
  }
}

BOOST_FIXTURE_TEST_CASE(special_strings_become_ids_only_when_asked, SmallModel) {
  const std::string text = "<think><｜User｜>｜DSML｜<｜▁pad▁｜>";
  BOOST_TEST(encode(text, true) == (Ids{kThinkOpen, kUser, kDsml, 2}));
  BOOST_TEST(decode(encode(text, false)) == text);
  for (const std::int32_t id : encode(text, false)) {
    BOOST_TEST((id >= kFirstByte && id < kFirstMarkup));
  }
}

BOOST_FIXTURE_TEST_CASE(decode_hides_control_tokens_and_prints_markup, SmallModel) {
  BOOST_TEST(decode({0, kUser, kThinkOpen, 2, kThinkClose, kAssistant, kDsml, 1}) ==
             "<｜User｜><think></think><｜Assistant｜>｜DSML｜");
}

BOOST_AUTO_TEST_CASE(markup_of_control_type_is_printed_all_the_same) {
  FakeLoader loader = small_model();
  for (std::int64_t& type : loader.get<std::vector<std::int64_t>>("tokenizer.ggml.token_type")) {
    if (type == 4) type = 3;
  }
  const TokenizerPtr tokenizer = tokenizer_of(loader);
  BOOST_TEST(*tokenizer->decode(Ids{0, kThinkClose, kUser, 1}) == "</think><｜User｜>");
}

BOOST_FIXTURE_TEST_CASE(bytes_that_are_not_utf8_come_back_as_they_were, SmallModel) {
  for (const std::string_view text :
       {std::string_view("\xFF\xC3 the\xE4\xB8"), std::string_view("\0\0a", 3)}) {
    BOOST_TEST(decode(encode(text, true)) == text);
  }
}

BOOST_FIXTURE_TEST_CASE(ids_outside_the_vocabulary_are_refused, SmallModel) {
  for (const std::int32_t id : {-1, kSmallVocabulary, 1 << 30}) {
    const auto text = tokenizer->decode(Ids{5, id});
    BOOST_TEST_REQUIRE(!text.has_value());
    BOOST_TEST((text.error().code == ebb::Errc::invalid_argument));
    BOOST_TEST(text.error().message.find(std::to_string(id)) != std::string::npos);
  }
  BOOST_TEST(tokenizer->decode(Ids{kSmallVocabulary - 1}).has_value());
}

BOOST_FIXTURE_TEST_CASE(empty_text_has_no_tokens, SmallModel) {
  BOOST_TEST(encode("", true).empty());
  BOOST_TEST(decode({}).empty());
}

// The bound is far above what linear work takes and far below what quadratic work would (10^12
// steps).
BOOST_AUTO_TEST_CASE(a_megabyte_without_a_break_does_not_take_quadratic_time) {
  constexpr std::size_t kMegabyte = std::size_t{1} << 20;
  FakeLoader small = small_model();
  FakeLoader demo = read_gguf_metadata(EBB_DEMO_MODEL);
  for (FakeLoader* loader : {&small, &demo}) {
    const TokenizerPtr tokenizer = tokenizer_of(*loader);
    std::string bars;
    while (bars.size() < kMegabyte) bars += "<｜User｜";
    for (const std::string& text :
         {std::string(kMegabyte, 'a'), std::string(kMegabyte, ' '), std::string(kMegabyte, '\n'),
          std::string(kMegabyte, '<'), std::string(kMegabyte, '\xFF'),
          std::string(kMegabyte, '\x01'), bars}) {
      const double seconds = seconds_to_encode(*tokenizer, text);
      BOOST_TEST_MESSAGE("1 MiB beginning with byte " << int(text[0]) << ": " << seconds << " s");
      BOOST_TEST(seconds < 10.0);
    }
  }
}

BOOST_AUTO_TEST_CASE(threads_share_one_tokenizer) {
  FakeLoader loader = read_gguf_metadata(EBB_DEMO_MODEL);
  const TokenizerPtr tokenizer = tokenizer_of(loader);
  std::vector<std::string> texts;
  for (int i = 0; i < 50; ++i) {
    texts.push_back("<｜User｜>The access code of number " + std::to_string(i * 7919) +
                    std::string(static_cast<std::size_t>(i), 'e') + " is “fine”.</think>");
  }
  std::vector<Ids> expected;
  for (const std::string& text : texts) expected.push_back(*tokenizer->encode(text, true));

  std::array<int, 4> wrong{};
  std::vector<std::thread> threads;
  for (int& mistakes : wrong) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        for (std::size_t i = 0; i < texts.size(); ++i) {
          mistakes += *tokenizer->encode(texts[i], true) != expected[i];
          mistakes += *tokenizer->decode(expected[i]) != texts[i];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int mistakes : wrong) BOOST_TEST(mistakes == 0);
}
