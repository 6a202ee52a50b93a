#include "modules/tokenizer_gguf/chat.h"

#include <utility>

namespace ebb::tokenizer_gguf {
namespace {

class PartList {
 public:
  void add(std::string_view text) {
    if (parts_.empty() || parts_.back().has_markup) parts_.emplace_back();
    parts_.back().text += text;
  }
  void add(Markup markup) {
    add(std::string_view());
    parts_.back().has_markup = true;
    parts_.back().markup = markup;
  }
  std::vector<ChatPart> take() && { return std::move(parts_); }

 private:
  std::vector<ChatPart> parts_;
};

struct AssistantTurn {
  std::string_view reasoning;
  std::string_view answer;
};

AssistantTurn split_assistant(const ChatMessage& message) {
  constexpr std::string_view kOpen = text_of(Markup::think_open);
  constexpr std::string_view kClose = text_of(Markup::think_close);
  AssistantTurn turn{message.reasoning, message.content};
  const std::size_t close = message.content.rfind(kClose);
  if (close == std::string_view::npos) return turn;
  turn.answer = message.content.substr(close + kClose.size());
  if (!turn.reasoning.empty()) return turn;
  turn.reasoning = message.content.substr(0, close);
  if (turn.reasoning.starts_with(kOpen)) turn.reasoning.remove_prefix(kOpen.size());
  return turn;
}

/// Index of the last user message; -1 if there is none.
std::ptrdiff_t last_user(std::span<const ChatMessage> messages) noexcept {
  auto i = static_cast<std::ptrdiff_t>(messages.size()) - 1;
  while (i >= 0 && messages[static_cast<std::size_t>(i)].role != "user") --i;
  return i;
}

/// One line of a role that may be anything: printable ASCII, clipped.
std::string printable(std::string_view role) {
  std::string out;
  for (const char c : role.substr(0, 40)) out.push_back(c >= 0x20 && c < 0x7F ? c : '?');
  return role.size() > 40 ? out + "..." : out;
}

}  // namespace

Result<std::vector<ChatPart>> chat_parts(std::span<const ChatMessage> messages,
                                         const ChatOptions& options) {
  PartList parts;
  parts.add(Markup::bos);
  const std::ptrdiff_t last_user_message = last_user(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role == "system") {
      parts.add(message.content);
    } else if (message.role == "user") {
      parts.add(Markup::user);
      parts.add(message.content);
    } else if (message.role == "assistant") {
      const AssistantTurn turn = split_assistant(message);
      parts.add(Markup::assistant);
      if (options.thinking && static_cast<std::ptrdiff_t>(i) > last_user_message) {
        parts.add(Markup::think_open);
        parts.add(turn.reasoning);
      }
      parts.add(Markup::think_close);
      parts.add(turn.answer);
      parts.add(Markup::eos);
    } else {
      return make_error(Errc::invalid_argument,
                        "message %zu has the role \"%s\": want system, user or assistant", i,
                        printable(message.role).c_str());
    }
  }
  if (options.add_generation_prompt) {
    parts.add(Markup::assistant);
    parts.add(options.thinking ? Markup::think_open : Markup::think_close);
  }
  return std::move(parts).take();
}

}  // namespace ebb::tokenizer_gguf
