#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ebb::tokenizer_gguf {

/// The printable stand-ins that a byte-level vocabulary uses for raw bytes. Bytes 33..126, 161..172
/// and 174..255 stand for themselves as code points; the other 68, in increasing order, are U+0100,
/// U+0101, ... (so a space is U+0120, "Ġ").
/// Source: the byte table of OpenAI's GPT-2 encoder, which GGUF calls tokenizer.ggml.model "gpt2".
class ByteAlphabet {
 public:
  ByteAlphabet() noexcept;

  /// The stand-in of `byte`, as UTF-8.
  std::string symbol(std::uint8_t byte) const;
  /// The bytes that `token` (valid UTF-8) stands for, or nothing if it has a character outside the
  /// alphabet.
  std::optional<std::string> bytes_of(std::string_view token) const;

 private:
  static constexpr std::int32_t kCodePoints = 256 + 68;
  std::array<std::int16_t, 256> code_point_;
  std::array<std::int16_t, kCodePoints> byte_;  ///< -1: the code point stands for no byte
};

}  // namespace ebb::tokenizer_gguf
