#pragma once

#include <cstddef>
#include <string_view>

namespace ebb::tokenizer_gguf {

/// True if the pre-tokenizer `name` (GGUF key tokenizer.ggml.pre) splits the way this file does.
bool is_known_pretokenizer(std::string_view name) noexcept;

/// For messages: the names is_known_pretokenizer accepts.
inline constexpr const char* kPretokenizerNames = "joyai-llm, deepseek-v3, hunyuan-dense";

/// Cuts text into the pieces within which byte pairs merge. The pieces are contiguous and cover the
/// whole text. Character classes are Unicode's general categories, as ICU knows them. Bytes that
/// are not UTF-8 are cut as U+FFFD (a symbol) would be, and stay what they are. Time:   linear in
/// the text; each code point is looked at a bounded number of times Thread: each object by one
/// thread; it borrows the text
class PieceCutter {
 public:
  explicit PieceCutter(std::string_view text) noexcept : text_(text) {}

  /// The next piece, never empty; an empty view after the last one.
  std::string_view next() noexcept;

 private:
  /// Passes 1 and 2: end of the section that begins at `begin`.
  std::size_t section_end(std::size_t begin) noexcept;
  /// Pass 3: end of the match that begins at `begin`; `begin` itself if none does.
  std::size_t match_end(std::size_t begin) const noexcept;
  std::string_view take(std::size_t end) noexcept;

  std::string_view text_;
  std::size_t position_ = 0;     ///< where the next piece begins
  std::size_t section_end_ = 0;  ///< end of the section that position_ is in
  bool section_is_digits_ = false;
};

}  // namespace ebb::tokenizer_gguf
