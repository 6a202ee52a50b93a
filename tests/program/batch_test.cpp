// Lines of a batch: both shapes, every refusal, and how prompts become tokens.

#include "tools/ebb/batch.h"

#include <boost/test/unit_test.hpp>

#include "tests/program/letter_tokenizer.h"

using namespace ebb;
using namespace ebb::cli;

namespace {

using Ids = std::vector<std::int32_t>;

Request parse(std::string_view line) {
  Result<Request> request = parse_request(line, {});
  BOOST_REQUIRE_MESSAGE(request, line << ": " << (request ? "" : request.error().message));
  return *std::move(request);
}

// The message for a line that is no request.
std::string mistake(std::string_view line) {
  const Result<Request> request = parse_request(line, {});
  BOOST_REQUIRE_MESSAGE(!request, line);
  BOOST_TEST((request.error().code == Errc::invalid_argument));
  return request.error().message;
}

Ids encode(std::string_view line) {
  const LetterTokenizer tokenizer;
  Result<Ids> ids = encode_prompt(parse(line), &tokenizer);
  BOOST_REQUIRE(ids);
  return *std::move(ids);
}

std::string mistake_of_batch(std::string_view text) {
  const Result<Batch> batch = Batch::read(text, "x.jsonl", {});
  BOOST_REQUIRE(!batch);
  return batch.error().message;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(batch)

BOOST_AUTO_TEST_CASE(a_plain_prompt_gets_bos_and_its_specials_are_text) {
  BOOST_TEST(encode(R"({"id":"a","prompt":"a<"})") == (Ids{256, 'a', '<'}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_prompt_with_specials_gets_nothing_added) {
  BOOST_TEST(encode(R"({"id":"a","prompt":"<a>","specials":true})") == (Ids{256, 'a', 257}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(tokens_go_in_as_they_are) {
  BOOST_TEST(encode(R"({"id":"a","tokens":[5,0,2147483647]})") == (Ids{5, 0, 2147483647}),
             boost::test_tools::per_element());
  BOOST_TEST(encode(R"({"custom_id":"a","body":{"prompt":[5,6]}})") == (Ids{5, 6}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(messages_go_through_the_chat_form_in_both_shapes) {
  const std::string messages = R"("messages":[{"role":"system","content":"x"},
      {"role":"user","content":[{"type":"text","text":"y"},{"type":"text","text":"z"}]}])";
  const Ids want{256, 's', ':', 'x', 'u', ':', 'y', 'z', '!'};
  BOOST_TEST(encode("{\"id\":\"a\"," + messages + "}") == want, boost::test_tools::per_element());
  BOOST_TEST(encode("{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\","
                    "\"body\":{\"model\":\"m\"," +
                    messages + "}}") == want,
             boost::test_tools::per_element());
  BOOST_TEST(encode("{\"id\":\"a\",\"thinking\":true," + messages + "}").back() == '?');
}

BOOST_AUTO_TEST_CASE(an_unknown_role_is_an_error_of_the_request) {
  const LetterTokenizer tokenizer;
  const Request request = parse(R"({"id":"a","messages":[{"role":"robot","content":"x"}]})");
  BOOST_TEST(!encode_prompt(request, &tokenizer).has_value());
}

BOOST_AUTO_TEST_CASE(text_without_a_tokenizer_is_an_error_and_tokens_are_not) {
  BOOST_TEST(!encode_prompt(parse(R"({"id":"a","prompt":"x"})"), nullptr).has_value());
  BOOST_TEST(encode_prompt(parse(R"({"id":"a","tokens":[1]})"), nullptr).has_value());
}

BOOST_AUTO_TEST_CASE(settings_are_read_over_the_defaults) {
  GenerationSettings defaults;
  defaults.max_tokens = 7;
  defaults.sampling.temperature = 0.5;
  defaults.sampling.seed = 3;
  const Result<Request> request = parse_request(
      R"({"id":"a","prompt":"x","temperature":1,"top_p":0.9,"top_k":4,"stop":["p","q"],
          "ignore_eos":true,"seed":null})",
      defaults);
  BOOST_REQUIRE(request);
  const GenerationSettings& settings = request->settings;
  BOOST_TEST(settings.max_tokens == 7);
  BOOST_TEST(settings.sampling.temperature == 1);
  BOOST_TEST(settings.sampling.top_p == 0.9);
  BOOST_TEST(settings.sampling.top_k == 4);
  BOOST_TEST(settings.sampling.seed == 3u);
  BOOST_TEST(settings.ignore_eos);
  BOOST_TEST(settings.stops == (std::vector<std::string>{"p", "q"}),
             boost::test_tools::per_element());
  const Request other =
      parse(R"({"custom_id":"a","body":{"prompt":"x","max_completion_tokens":9,"stop":"s"}})");
  BOOST_TEST(other.settings.max_tokens == 9);
  BOOST_TEST(other.settings.stops.size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_is_well_formed_and_not_supported_is_refused_by_name) {
  const auto refusal = [](const std::string& key) {
    return parse("{\"custom_id\":\"a\",\"body\":{\"prompt\":\"x\"," + key + "}}").refusal;
  };
  BOOST_TEST(refusal(R"("n":2)").find("body.n = 2") != std::string::npos);
  BOOST_TEST(refusal(R"("stream":true)").find("body.stream") != std::string::npos);
  BOOST_TEST(refusal(R"("tools":[{}])").find("body.tools") != std::string::npos);
  BOOST_TEST(refusal(R"("presence_penalty":0.5)").find("presence_penalty") != std::string::npos);
  BOOST_TEST(refusal(R"("response_format":{"type":"json_object"})").find("response_format") !=
             std::string::npos);
  BOOST_TEST(refusal(R"("n":1,"stream":false,"presence_penalty":0.0,"user":"u")").empty());
  BOOST_TEST(
      !parse(R"({"custom_id":"a","url":"/v1/embeddings","body":{"prompt":"x"}})").refusal.empty());
  BOOST_TEST(!parse(R"({"id":"a","messages":[{"role":"user","content":[{"type":"image_url"}]}]})")
                  .refusal.empty());
  BOOST_TEST(
      !parse(R"({"id":"a","messages":[{"role":"assistant","content":null,"tool_calls":[1]}]})")
           .refusal.empty());
  BOOST_TEST(parse(R"({"id":"a","messages":[{"role":"assistant","reasoning_content":"x"}]})")
                 .refusal.empty());
  BOOST_TEST(parse(R"({"id":"a","messages":[{"role":"user","content":""}]})").refusal.empty());
}

BOOST_AUTO_TEST_CASE(a_line_that_is_no_request_says_what_is_wrong) {
  const auto says = [](std::string_view line, std::string_view what) {
    const std::string message = mistake(line);
    BOOST_TEST(message.find(what) != std::string::npos, line << " -> " << message);
    BOOST_TEST(message.find('\n') == std::string::npos);
  };
  says("{", "no valid JSON: it ends too early, after 1 bytes");
  says("{]", "no valid JSON at byte 2 of 2");
  says(R"({"id":"a","tokens":[1e400]})", "no valid JSON: number overflow parsing '1e400'");
  says("{\"id\":\"a\",\"prompt\":\"\xff\"}", "no valid JSON");
  says("[1]", "want a JSON object");
  says(R"({"prompt":"x"})", "id is missing");
  says(R"({"id":7,"prompt":"x"})", "id = 7: want text");
  says(R"({"id":"","prompt":"x"})", "id = \"\"");
  says(R"({"id":"a"})", "want one of prompt, tokens and messages, found 0");
  says(R"({"id":"a","prompt":"x","tokens":[1]})", "found 2");
  says(R"({"id":"a","prompt":3})", "prompt = 3");
  says(R"({"id":"a","tokens":[-1]})", "tokens");
  says(R"({"id":"a","tokens":[2147483648]})", "tokens");
  says(R"({"id":"a","tokens":[1.5]})", "tokens");
  says(R"({"id":"a","prompt":"x","max_tokens":0})", "max_tokens = 0: want a whole number 1..");
  says(R"({"id":"a","prompt":"x","max_tokens":18446744073709551615})", "max_tokens");
  says(R"({"id":"a","prompt":"x","temperature":-1})", "temperature = -1");
  says(R"({"id":"a","prompt":"x","top_p":"high"})", "top_p");
  says(R"({"id":"a","prompt":"x","stop":[""]})", "stop");
  says(R"({"id":"a","prompt":"x","max_token":5})", "unknown key max_token");
  says(R"({"custom_id":"a","body":{"prompt":"x","max_token":5}})", "unknown key body.max_token");
  says(R"({"custom_id":"a"})", "body is missing");
  says(R"({"custom_id":"a","body":[]})", "body: want an object");
  says(R"({"body":{"prompt":"x"}})", "custom_id is missing");
  says(R"({"id":"a","messages":[]})", "messages");
  says(R"({"id":"a","messages":[{"content":"x"}]})", "messages[0].role is missing");
  says(R"({"id":"a","messages":["x"]})", "messages[0]");
  says(R"({"id":"a","messages":[{"role":"user"}]})", "messages[0].content is missing: want text");
  says(R"({"id":"a","messages":[{"role":"user","content":null}]})",
       "messages[0].content = null: want text");
}

BOOST_AUTO_TEST_CASE(nesting_has_a_limit_that_brackets_in_text_do_not_reach) {
  for (const std::size_t depth : {64U, 100000U}) {  // and the object around them
    const std::string deep =
        R"({"id": )" + std::string(depth, '[') + std::string(depth, ']') + R"(, "prompt": "x"})";
    BOOST_TEST(mistake(deep) == "no valid JSON: nested more than 64 deep");
  }
  const std::string brackets(1000, '[');
  const Request request = parse(R"({"id": "a", "prompt": "\\\"\\)" + brackets + "\"}");
  BOOST_TEST(*request.prompt == "\\\"\\" + brackets);
}

BOOST_AUTO_TEST_CASE(a_batch_counts_lines_and_skips_blank_ones) {
  const std::string text =
      "\n{\"id\":\"a\",\"prompt\":\"x\"}\r\n  \n{\"id\":\"b\",\"prompt\":\"y\"}";
  const Result<Batch> read = Batch::read(text, "x.jsonl", {});
  BOOST_REQUIRE(read);
  BOOST_REQUIRE(read->lines().size() == 2u);
  BOOST_TEST(read->lines()[0].number == 2);
  BOOST_TEST(read->lines()[1].number == 4);
  BOOST_TEST(read->lines()[1].id == "b");
}

BOOST_AUTO_TEST_CASE(a_batch_names_the_line_that_is_wrong) {
  const std::string good = "{\"id\":\"a\",\"prompt\":\"x\"}\n";
  BOOST_TEST(mistake_of_batch(good + "{\n").starts_with("x.jsonl:2: no valid JSON"));
  BOOST_TEST(mistake_of_batch(good + "\n" + good) == "x.jsonl:3: id a stands in line 1 already");
  BOOST_TEST(mistake_of_batch("\n\n") == "x.jsonl: no request in it");
}

BOOST_AUTO_TEST_SUITE_END()
