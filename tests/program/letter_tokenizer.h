#pragma once

#include <string>
#include <vector>

#include "core/api/tokenizer.h"

namespace ebb {

/// Ids are bytes; 256 is BOS, 257 is EOS, and as special strings they are written < and >.
class LetterTokenizer final : public Tokenizer {
 public:
  Result<std::vector<std::int32_t>> encode(std::string_view text,
                                           bool specials) const noexcept override {
    std::vector<std::int32_t> ids;
    for (const char letter : text) {
      const bool is_bos = specials && letter == '<';
      const bool is_eos = specials && letter == '>';
      ids.push_back(is_bos ? bos() : is_eos ? eos() : static_cast<unsigned char>(letter));
    }
    return ids;
  }
  Result<std::string> decode(std::span<const std::int32_t> ids) const noexcept override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id < 256) text += static_cast<char>(id);
    }
    return text;
  }
  Result<std::vector<std::int32_t>> encode_chat(
      std::span<const ChatMessage> messages, const ChatOptions& options) const noexcept override {
    Result<std::string> text = render_chat(messages, options);
    if (!text) return std::move(text).error();
    return encode(*text, true);
  }
  Result<std::string> render_chat(std::span<const ChatMessage> messages,
                                  const ChatOptions& options) const noexcept override {
    std::string text = "<";
    for (const ChatMessage& message : messages) {
      if (message.role != "user" && message.role != "assistant" && message.role != "system") {
        return make_error(Errc::invalid_argument, "unknown role");
      }
      text.append(message.role.substr(0, 1)).append(":").append(message.content);
    }
    return text + (options.thinking ? "?" : "!");
  }
  std::int32_t vocab_size() const noexcept override { return 258; }
  std::int32_t bos() const noexcept override { return 256; }
  std::int32_t eos() const noexcept override { return 257; }
  std::int32_t think_open() const noexcept override { return '('; }
  std::int32_t think_close() const noexcept override { return ')'; }
};

}  // namespace ebb
