// Where text is cut before merging. Expected cuts were written down from the three regular
// expressions of the model's tokenizer, by hand.

#define BOOST_TEST_MODULE tokenizer_pieces
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>

#include "modules/tokenizer_gguf/pretokenizer.h"
#include "modules/tokenizer_gguf/special_strings.h"

namespace {

using ebb::tokenizer_gguf::PieceCutter;
using ebb::tokenizer_gguf::SpecialStrings;
using Pieces = std::vector<std::string>;

Pieces cut(std::string_view text) {
  Pieces pieces;
  PieceCutter cutter(text);
  for (auto piece = cutter.next(); !piece.empty(); piece = cutter.next()) {
    pieces.emplace_back(piece);
  }
  return pieces;
}

void check_cut(std::string_view text, const Pieces& expected) {
  BOOST_TEST_CONTEXT("text '" << text << "'")
  BOOST_TEST(cut(text) == expected, boost::test_tools::per_element());
}

std::vector<std::int32_t> hit_ids(const SpecialStrings& strings, std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const SpecialStrings::Hit& hit : strings.find(text)) ids.push_back(hit.id);
  return ids;
}

}  // namespace

BOOST_AUTO_TEST_CASE(numbers_of_any_script_are_cut_in_threes_from_the_left) {
  check_cut("1234567", {"123", "456", "7"});
  check_cut("１２３４", {"１２３", "４"});
  check_cut("٣٤٥x", {"٣٤٥", "x"});
  check_cut("Ⅷ²½①", {"Ⅷ²½", "①"});
  check_cut("a 12", {"a", " ", "12"});
  check_cut("〇〇", {"〇〇"});
}

BOOST_AUTO_TEST_CASE(cjk_and_kana_runs_are_apart_from_other_letters) {
  check_cut("日本語テキスト", {"日本語テキスト"});
  check_cut("abc漢字def", {"abc", "漢字", "def"});
  check_cut("龥龦", {"龥", "龦"});
  check_cut(" 漢", {" ", "漢"});
  check_cut("xぁxヿx一", {"x", "ぁ", "x", "ヿ", "x", "一"});
  check_cut("カ・タ", {"カ", "・", "タ"});
  check_cut("한국어 텍", {"한국어", " 텍"});
}

BOOST_AUTO_TEST_CASE(words_take_one_leading_character_that_is_no_letter_mark_or_line_end) {
  check_cut("a b", {"a", " b"});
  check_cut("a\tb", {"a", "\tb"});
  check_cut(
      "a\xC2\xA0"
      "b",
      {"a",
       "\xC2\xA0"
       "b"});
  check_cut("a\nb", {"a", "\n", "b"});
  check_cut("\x01x", {"\x01x"});
}

BOOST_AUTO_TEST_CASE(marks_belong_to_the_word_they_follow_or_begin) {
  check_cut("e\xCC\x81t", {"e\xCC\x81t"});
  check_cut("\xCC\x81start", {"\xCC\x81start"});
  check_cut("\xCC\x81", {"\xCC\x81"});
}

BOOST_AUTO_TEST_CASE(ascii_punctuation_takes_ascii_letters_only) {
  check_cut("don't", {"don", "'t"});
  check_cut("!helloé", {"!hello", "é"});
  check_cut("$é", {"$", "é"});
  check_cut("'' a", {"''", " a"});
  check_cut("a.b", {"a", ".b"});
}

BOOST_AUTO_TEST_CASE(symbols_take_a_space_before_and_line_ends_behind) {
  check_cut("a — b", {"a", " —", " b"});
  check_cut("——x", {"——", "x"});
  check_cut("x;\r\n\ny", {"x", ";\r\n\n", "y"});
  check_cut("\t;", {"\t", ";"});
  check_cut("😀👩", {"😀👩"});
  check_cut("👩\u200D👩", {"👩", "\u200D", "👩"});
}

BOOST_AUTO_TEST_CASE(whitespace_keeps_its_last_character_for_the_next_word) {
  check_cut("a  b\n\n c", {"a", " ", " b", "\n\n", " c"});
  check_cut("a   ", {"a", "   "});
  check_cut(" \n \n x", {" \n \n", " x"});
  check_cut("\t\tx", {"\t", "\tx"});
  check_cut("\n  \t", {"\n", "  \t"});
  check_cut("x  1", {"x", "  ", "1"});
  check_cut("\u2028line", {"\u2028line"});
}

BOOST_AUTO_TEST_CASE(text_that_nothing_matches_is_one_piece) {
  check_cut("\x01\x02\x7F c", {"\x01\x02\x7F", " c"});
  check_cut("\u200B\u200B.", {"\u200B\u200B", "."});
}

BOOST_AUTO_TEST_CASE(bytes_that_are_not_utf8_stay_and_are_cut_like_symbols) {
  check_cut(
      "a\xFF\xFE"
      "b",
      {"a", "\xFF\xFE", "b"});
  check_cut("\xE4\xB8", {"\xE4\xB8"});
  check_cut("\xED\xA0\x80", {"\xED\xA0\x80"});
  check_cut(std::string_view("a\0b", 3), {"a", std::string("\0b", 2)});
}

BOOST_AUTO_TEST_CASE(pieces_cover_the_text_for_every_pair_of_bytes) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string text{'x', static_cast<char>(a), static_cast<char>(b), ' '};
      std::string joined;
      for (const std::string& piece : cut(text)) joined += piece;
      if (joined != text) BOOST_ERROR("lost bytes of " << a << " " << b);
    }
  }
}

BOOST_AUTO_TEST_CASE(of_overlapping_special_strings_the_longest_stays) {
  const SpecialStrings strings({{"<a>", 1}, {"<a>b", 2}, {"bcdef", 3}, {"xx", 4}, {"<", 5}});
  BOOST_TEST(hit_ids(strings, "<a>") == (std::vector<std::int32_t>{1}));
  BOOST_TEST(hit_ids(strings, "<a>b") == (std::vector<std::int32_t>{2}));
  BOOST_TEST(hit_ids(strings, "<a>bcdef") == (std::vector<std::int32_t>{1, 3}));
  BOOST_TEST(hit_ids(strings, "xxx<<a") == (std::vector<std::int32_t>{4, 5, 5}));
  BOOST_TEST(hit_ids(strings, "").empty());
  BOOST_TEST(SpecialStrings().find("<a>").empty());
}
