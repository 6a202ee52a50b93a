#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/module.h"

namespace ebb {

/// One turn of a conversation. Text is borrowed for the call.
struct ChatMessage {
  std::string_view role;  ///< "system", "user" or "assistant"
  std::string_view content;
  std::string_view reasoning;  ///< assistant only: what stood before </think>; may be empty
};

struct ChatOptions {
  bool add_generation_prompt = true;  ///< end with the assistant header
  bool thinking = false;              ///< header opens <think> instead of closing it
};

/// Text to token ids and back. Thread: [any]; encode and decode are const and reentrant.
class Tokenizer : public Module {
 public:
  static constexpr const char* kKind = "tokenizer";

  /// Ids of `text` (UTF-8; invalid bytes are kept as bytes). With `specials`, special strings
  /// become their ids; without, they are plain text: what a user wrote must not inject control
  /// tokens. Adds nothing (no BOS). Errors: invalid_argument for text over 2^31 bytes.
  virtual Result<std::vector<std::int32_t>> encode(std::string_view text,
                                                   bool specials) const noexcept = 0;
  /// Bytes of the ids, joined. Control tokens (BOS, EOS, PAD) print as nothing; markup such as
  /// </think> prints. Errors: invalid_argument for an id outside the vocabulary.
  virtual Result<std::string> decode(std::span<const std::int32_t> ids) const noexcept = 0;

  /// The conversation in the model's prompt form (reference 5.4), as ids: markup by id, contents
  /// encoded without specials. Errors: invalid_argument for an unknown role.
  virtual Result<std::vector<std::int32_t>> encode_chat(
      std::span<const ChatMessage> messages, const ChatOptions& options) const noexcept = 0;
  /// The same as text, for people to read.
  virtual Result<std::string> render_chat(std::span<const ChatMessage> messages,
                                          const ChatOptions& options) const noexcept = 0;

  virtual std::int32_t vocab_size() const noexcept = 0;
  virtual std::int32_t bos() const noexcept = 0;
  virtual std::int32_t eos() const noexcept = 0;
  /// Ids that open and close the model's thinking; -1 for a model that has none.
  virtual std::int32_t think_open() const noexcept = 0;
  virtual std::int32_t think_close() const noexcept = 0;
};

}  // namespace ebb
