#include "modules/tokenizer_gguf/byte_alphabet.h"

#include "modules/tokenizer_gguf/utf8.h"

namespace ebb::tokenizer_gguf {

ByteAlphabet::ByteAlphabet() noexcept {
  byte_.fill(-1);
  std::int16_t spare = 256;
  for (std::int16_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174);
    const std::int16_t code_point = printable ? byte : spare++;
    code_point_[static_cast<std::size_t>(byte)] = code_point;
    byte_[static_cast<std::size_t>(code_point)] = byte;
  }
}

std::string ByteAlphabet::symbol(std::uint8_t byte) const {
  const std::int16_t code_point = code_point_[byte];
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::optional<std::string> ByteAlphabet::bytes_of(std::string_view token) const {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t position = 0; position < token.size();) {
    const CodePoint here = code_point_at(token, position);
    if (here.value < 0 || here.value >= kCodePoints) return std::nullopt;
    const std::int16_t byte = byte_[static_cast<std::size_t>(here.value)];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    position = here.end;
  }
  return bytes;
}

}  // namespace ebb::tokenizer_gguf
