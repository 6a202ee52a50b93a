#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/result.h"
#include "core/api/tokenizer.h"

namespace ebb::tokenizer_gguf {

/// The tokens that the prompt form is made of.
enum class Markup : std::size_t { bos, eos, user, assistant, think_open, think_close };
inline constexpr std::size_t kMarkupCount = 6;

/// How they are spelled; the bars are U+FF5C, the low lines U+2581. Source: the vocabulary of
/// the released DeepSeek-V4 files.
inline constexpr std::array<std::string_view, kMarkupCount> kMarkupText{
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
};

constexpr std::string_view text_of(Markup markup) noexcept {
  return kMarkupText[static_cast<std::size_t>(markup)];
}

/// A part of a prompt: plain text, then one markup token. Either may be absent.
struct ChatPart {
  std::string text;  ///< what people wrote: never to be searched for special strings
  bool has_markup = false;
  Markup markup = Markup::bos;
};

/// The prompt form of a conversation, in order. Neighbouring texts are one part, so that the cut
/// between two messages is no cut for the merges.
///   BOS, then per message   system: its text
///                           user: User + text
///                           assistant: Assistant + [<think> + reasoning] + </think> + text + EOS
///   and at last, for generation, Assistant + (<think> or </think>).
/// The bracket is there only with `thinking`, and only in turns behind the last user message: what
/// was thought before older answers is dropped. Assistant content that still holds a "</think>" is
/// cut at the last one; what stands before it is the reasoning, unless the message brings its own.
/// Errors: invalid_argument for a role other than the three. May throw std::bad_alloc.
/// Source: the chat template that model files carry (tokenizer.chat_template).
Result<std::vector<ChatPart>> chat_parts(std::span<const ChatMessage> messages,
                                         const ChatOptions& options);

}  // namespace ebb::tokenizer_gguf
