// The demo model's tokenizer against ids that independent implementations produced: the Hugging
// Face tokenizers library and llama.cpp for text, the embedded template rendered by Jinja for
// chats.

#define BOOST_TEST_MODULE tokenizer_vectors
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/tokenizer/gguf_metadata.h"

namespace {

using ebb::test::TokenizerPtr;
using Ids = std::vector<std::int32_t>;
using Json = nlohmann::json;

Json load(const std::string& name) {
  std::ifstream file(std::string(EBB_TEST_DATA "/tokenizer/") + name);
  return Json::parse(file);
}

struct DemoModel {
  ebb::test::FakeLoader loader = ebb::test::read_gguf_metadata(EBB_DEMO_MODEL);
  TokenizerPtr tokenizer = ebb::test::tokenizer_of(loader);

  void check_ids(const std::string& text, bool specials, const Ids& expected) const {
    const auto ids = tokenizer->encode(text, specials);
    BOOST_TEST_REQUIRE(ids.has_value());
    BOOST_TEST_CONTEXT("text " << Json(text).dump() << ", specials " << specials)
    BOOST_TEST(*ids == expected, boost::test_tools::per_element());
  }
};

/// `text` without the strings of control tokens, which decode hides.
std::string without_control_tokens(std::string text) {
  for (const std::string hidden :
       {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"}) {
    for (std::size_t at; (at = text.find(hidden)) != std::string::npos;) {
      text.erase(at, hidden.size());
    }
  }
  return text;
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(plain_vectors_encode_to_the_library_ids_and_back, DemoModel) {
  const Json vectors = load("tokenizer_vectors.json");
  BOOST_TEST_REQUIRE(vectors.size() == 29U);
  for (const Json& vector : vectors) {
    const std::string text = vector["text"];
    const Ids expected = vector["ids"];
    check_ids(text, true, expected);
    const auto back = tokenizer->decode(expected);
    BOOST_TEST_REQUIRE(back.has_value());
    BOOST_TEST(*back == without_control_tokens(vector["back"]));
    if (text.find('<') == std::string::npos) check_ids(text, false, expected);
  }
}

BOOST_FIXTURE_TEST_CASE(nasty_vectors_encode_with_and_without_specials_and_back, DemoModel) {
  const Json vectors = load("tokenizer_vectors_extra.json");
  BOOST_TEST_REQUIRE(vectors.size() == 59U);
  for (const Json& vector : vectors) {
    const std::string text = vector["text"];
    check_ids(text, true, vector["ids"]);
    check_ids(text, false, vector["ids_specials_off"]);
    const auto back = tokenizer->decode(vector["ids"].get<Ids>());
    const auto back_plain = tokenizer->decode(vector["ids_specials_off"].get<Ids>());
    BOOST_TEST_REQUIRE((back.has_value() && back_plain.has_value()));
    BOOST_TEST(*back == without_control_tokens(text));
    BOOST_TEST(*back_plain == text);
  }
}

BOOST_FIXTURE_TEST_CASE(chat_vectors_agree_in_text_and_in_ids, DemoModel) {
  const Json vectors = load("chat_vectors.json");
  BOOST_TEST_REQUIRE(vectors.size() == 8U);
  for (const Json& vector : vectors) {
    std::vector<std::pair<std::string, std::string>> owned;
    for (const Json& message : vector["messages"]) {
      owned.emplace_back(message["role"], message["content"]);
    }
    std::vector<ebb::ChatMessage> messages;
    for (const auto& [role, content] : owned) messages.push_back({role, content, ""});
    ebb::ChatOptions options;
    options.add_generation_prompt = vector["add_generation_prompt"];
    options.thinking = vector["thinking"].is_boolean() && vector["thinking"].get<bool>();

    const auto text = tokenizer->render_chat(messages, options);
    const auto ids = tokenizer->encode_chat(messages, options);
    BOOST_TEST_REQUIRE((text.has_value() && ids.has_value()));
    BOOST_TEST(*text == vector["text"].get<std::string>());
    BOOST_TEST(*ids == vector["ids"].get<Ids>(), boost::test_tools::per_element());
    check_ids(*text, true, vector["ids"]);
    BOOST_TEST(std::count(ids->begin(), ids->end(), tokenizer->bos()) == 1);
    BOOST_TEST(ids->front() == tokenizer->bos());
  }
}

BOOST_FIXTURE_TEST_CASE(demo_model_has_4096_tokens_and_its_special_ids, DemoModel) {
  BOOST_TEST(tokenizer->vocab_size() == 4096);
  BOOST_TEST(tokenizer->bos() == 0);
  BOOST_TEST(tokenizer->eos() == 1);
}
