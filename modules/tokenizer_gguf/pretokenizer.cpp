// Three passes, each of which cuts the pieces that the one before left (a match is a piece, and so
// is the text between two matches):
//
//   1. numbers in any script, in groups of up to three from the left;
//   2. runs of the CJK ideographs U+4E00..9FA5 and of kana U+3040..30FF;
//   3. the first of these that matches:
//        word after a mark  one ASCII punctuation character or symbol, then ASCII letters
//        word               perhaps one character that is no line end, letter, punctuation or
//                           symbol, then letters and marks
//        symbols            perhaps a space, then punctuation and symbols, then line ends
//        line ends          whitespace up to the last CR or LF of its run
//        whitespace         a run; without its last character if something else follows in the
//        piece
//
// No character is both a number and in the ranges of pass 2, so passes 1 and 2 are one scan for
// sections of a kind. Pass 3 needs no backtracking: every alternative is a run of one class with at
// most one character before it, and where that character belongs to the run's class too, the run
// is the same with or without it.

#include "modules/tokenizer_gguf/pretokenizer.h"

#include <unicode/uchar.h>

#include "modules/tokenizer_gguf/utf8.h"

namespace ebb::tokenizer_gguf {
namespace {

constexpr std::uint32_t kLetterOrMark = U_GC_L_MASK | U_GC_M_MASK;
constexpr std::uint32_t kPunctuationOrSymbol = U_GC_P_MASK | U_GC_S_MASK;
constexpr std::int32_t kReplacement = 0xFFFD;

struct Character {
  std::int32_t value;
  std::uint32_t category;  ///< one bit: U_MASK of the general category
  std::size_t end;

  bool in(std::uint32_t mask) const noexcept { return (category & mask) != 0; }
  bool line_end() const noexcept { return value == '\r' || value == '\n'; }
  bool space() const noexcept { return u_isUWhiteSpace(value); }
  bool ascii_letter() const noexcept { return value < 0x80 && in(U_GC_L_MASK); }
  bool ascii_mark() const noexcept { return value < 0x80 && in(kPunctuationOrSymbol); }
  bool cjk() const noexcept {
    return (value >= 0x4E00 && value <= 0x9FA5) || (value >= 0x3040 && value <= 0x30FF);
  }
};

Character character_at(std::string_view text, std::size_t position) noexcept {
  const CodePoint here = code_point_at(text, position);
  const std::int32_t value = here.value < 0 ? kReplacement : here.value;
  return {value, U_MASK(u_charType(value)), here.end};
}

/// End of the run of characters from `position` on for which `test` holds.
template <class Test>
std::size_t run_end(std::string_view text, std::size_t position, Test test) noexcept {
  while (position < text.size()) {
    const Character here = character_at(text, position);
    if (!test(here)) break;
    position = here.end;
  }
  return position;
}

/// End of the whitespace match that begins at `begin`, where `first` stands.
std::size_t whitespace_end(std::string_view text, std::size_t begin) noexcept {
  std::size_t end = begin;            // of the run
  std::size_t last_begin = begin;     // of the run's last character
  std::size_t last_line_end = begin;  // behind the run's last CR or LF
  while (end < text.size()) {
    const Character here = character_at(text, end);
    if (!here.space()) break;
    last_begin = end;
    end = here.end;
    if (here.line_end()) last_line_end = end;
  }
  if (last_line_end > begin) return last_line_end;
  if (end == text.size() || last_begin == begin) return end;
  return last_begin;
}

}  // namespace

bool is_known_pretokenizer(std::string_view name) noexcept {
  return name == "joyai-llm" || name == "deepseek-v3" || name == "hunyuan-dense";
}

std::size_t PieceCutter::section_end(std::size_t begin) noexcept {
  const Character first = character_at(text_, begin);
  section_is_digits_ = first.in(U_GC_N_MASK);
  if (section_is_digits_) {
    int left = 3;
    return run_end(text_, begin,
                   [&](const Character& c) { return c.in(U_GC_N_MASK) && left-- > 0; });
  }
  const bool cjk = first.cjk();
  return run_end(text_, begin,
                 [&](const Character& c) { return !c.in(U_GC_N_MASK) && c.cjk() == cjk; });
}

std::size_t PieceCutter::match_end(std::size_t begin) const noexcept {
  const std::string_view section = text_.substr(0, section_end_);
  const Character first = character_at(section, begin);

  if (first.ascii_mark()) {
    const std::size_t end =
        run_end(section, first.end, [](const Character& c) { return c.ascii_letter(); });
    if (end > first.end) return end;
  }

  const bool may_lead_word =
      !first.line_end() && !first.in(U_GC_L_MASK) && !first.in(kPunctuationOrSymbol);
  if (may_lead_word || first.in(kLetterOrMark)) {
    const std::size_t end =
        run_end(section, first.end, [](const Character& c) { return c.in(kLetterOrMark); });
    if (end > first.end || first.in(kLetterOrMark)) return end;
  }

  if (first.value == ' ' || first.in(kPunctuationOrSymbol)) {
    const std::size_t end =
        run_end(section, first.end, [](const Character& c) { return c.in(kPunctuationOrSymbol); });
    if (end > first.end || first.in(kPunctuationOrSymbol)) {
      return run_end(section, end, [](const Character& c) { return c.line_end(); });
    }
  }

  return first.space() ? whitespace_end(section, begin) : begin;
}

std::string_view PieceCutter::take(std::size_t end) noexcept {
  const std::string_view piece = text_.substr(position_, end - position_);
  position_ = end;
  return piece;
}

std::string_view PieceCutter::next() noexcept {
  if (position_ == text_.size()) return {};
  if (position_ == section_end_) section_end_ = section_end(position_);
  if (section_is_digits_) return take(section_end_);

  // Text that nothing matches is one piece, up to the next match.
  std::size_t gap_end = position_;
  while (gap_end < section_end_) {
    const std::size_t end = match_end(gap_end);
    if (end > gap_end) {
      if (gap_end == position_) return take(end);
      break;
    }
    gap_end = character_at(text_, gap_end).end;
  }
  return take(gap_end);
}

}  // namespace ebb::tokenizer_gguf
