// How a continuation ends and what of it may be shown while it grows.

#include "tools/ebb/generation.h"

#include <boost/test/unit_test.hpp>

#include "tests/program/letter_tokenizer.h"

using namespace ebb;
using namespace ebb::cli;

namespace {

GenerationSettings settings(std::int64_t max_tokens, std::vector<std::string> stops = {}) {
  GenerationSettings made;
  made.max_tokens = max_tokens;
  made.stops = std::move(stops);
  return made;
}

// Takes the bytes of `text` one by one until the end, and returns what streaming showed at each.
std::vector<std::string> stream(Generation& generation, std::string_view text) {
  std::vector<std::string> shown;
  for (const char byte : text) {
    BOOST_REQUIRE(!generation.is_finished());
    BOOST_REQUIRE(generation.take(static_cast<unsigned char>(byte)));
    shown.emplace_back(generation.take_text());
  }
  return shown;
}

using Pieces = std::vector<std::string>;

}  // namespace

BOOST_AUTO_TEST_SUITE(generation)

BOOST_AUTO_TEST_CASE(ends_at_eos_and_keeps_it_among_the_tokens) {
  const LetterTokenizer tokenizer;
  Generation generation(settings(10), &tokenizer);
  stream(generation, "ab");
  BOOST_REQUIRE(generation.take(tokenizer.eos()));
  BOOST_TEST(generation.is_finished());
  BOOST_TEST(finish_reason_name(generation.finish()) == "stop");
  BOOST_TEST(generation.text() == "ab");
  BOOST_TEST(generation.tokens().size() == 3u);
}

BOOST_AUTO_TEST_CASE(goes_on_after_eos_when_told_to) {
  const LetterTokenizer tokenizer;
  GenerationSettings made = settings(3);
  made.ignore_eos = true;
  Generation generation(made, &tokenizer);
  BOOST_REQUIRE(generation.take(tokenizer.eos()));
  BOOST_TEST(!generation.is_finished());
  stream(generation, "ab");
  BOOST_TEST(finish_reason_name(generation.finish()) == "length");
}

BOOST_AUTO_TEST_CASE(thinks_from_an_open_bracket_of_the_prompt_to_the_closing_one) {
  const LetterTokenizer tokenizer;
  const auto thinking = [&](std::string_view prompt, std::string_view drawn) {
    Generation generation(settings(10), &tokenizer, *tokenizer.encode(prompt, true));
    stream(generation, std::string(drawn));
    return generation.is_thinking();
  };
  BOOST_TEST(!thinking("ab", ""));
  BOOST_TEST(thinking("ab(", ""));
  BOOST_TEST(thinking("ab(", "cd"));
  BOOST_TEST(!thinking("ab(", "cd)e"));
  BOOST_TEST(!thinking("ab(c)", ""));
  BOOST_TEST(thinking("ab(c)", "("));
}

BOOST_AUTO_TEST_CASE(ends_by_length_after_that_many_tokens) {
  const LetterTokenizer tokenizer;
  Generation generation(settings(2), &tokenizer);
  stream(generation, "ab");
  BOOST_TEST(finish_reason_name(generation.finish()) == "length");
}

BOOST_AUTO_TEST_CASE(the_end_token_counts_before_the_length) {
  const LetterTokenizer tokenizer;
  Generation generation(settings(1), &tokenizer);
  BOOST_REQUIRE(generation.take(tokenizer.eos()));
  BOOST_TEST(finish_reason_name(generation.finish()) == "stop");
}

BOOST_AUTO_TEST_CASE(text_is_cut_before_a_stop_text_that_spans_tokens) {
  const LetterTokenizer tokenizer;
  Generation generation(settings(10, {"cde", "zz"}), &tokenizer);
  stream(generation, "abcde");
  BOOST_TEST(finish_reason_name(generation.finish()) == "stop");
  BOOST_TEST(generation.text() == "ab");
  BOOST_TEST(generation.tokens().size() == 5u);
}

BOOST_AUTO_TEST_CASE(streaming_holds_back_what_a_stop_text_may_take) {
  const LetterTokenizer tokenizer;
  Generation cut(settings(10, {"cde"}), &tokenizer);
  BOOST_TEST(stream(cut, "abcde") == (Pieces{"a", "b", "", "", ""}),
             boost::test_tools::per_element());
  Generation kept(settings(10, {"cde"}), &tokenizer);
  BOOST_TEST(stream(kept, "cdx") == (Pieces{"", "", "cdx"}), boost::test_tools::per_element());
  Generation again(settings(10, {"aab"}), &tokenizer);
  BOOST_TEST(stream(again, "aaac") == (Pieces{"", "", "a", "aac"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(streaming_shows_whole_characters_and_the_rest_at_the_end) {
  const LetterTokenizer tokenizer;
  Generation whole(settings(10), &tokenizer);
  BOOST_TEST(
      stream(whole, "\xc3\xa9\xe2\x82\xac") == (Pieces{"", "\xc3\xa9", "", "", "\xe2\x82\xac"}),
      boost::test_tools::per_element());
  Generation torn(settings(2), &tokenizer);
  BOOST_TEST(stream(torn, "\xe2\x82") == (Pieces{"", "\xe2\x82"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(bytes_that_are_no_character_are_not_held_back_for_ever) {
  const LetterTokenizer tokenizer;
  Generation generation(settings(10), &tokenizer);
  BOOST_TEST(
      stream(generation, "\xe2z\xff\x80\x80") == (Pieces{"", "\xe2z", "\xff", "\x80", "\x80"}),
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(without_a_tokenizer_there_are_tokens_and_no_text) {
  Generation generation(settings(2), nullptr);
  BOOST_REQUIRE(generation.take(1));
  BOOST_REQUIRE(generation.take(1));
  BOOST_TEST(generation.text().empty());
  BOOST_TEST(finish_reason_name(generation.finish()) == "length");
}

BOOST_AUTO_TEST_SUITE_END()
