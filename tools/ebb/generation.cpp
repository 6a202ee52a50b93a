#include "tools/ebb/generation.h"

#include <algorithm>

namespace ebb::cli {
namespace {

// Length of the longest end of `text` that begins `stop` without being all of it.
std::size_t begun(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      break;
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::context:
      return "context";
  }
  return "none";
}

Generation::Generation(GenerationSettings settings, const Tokenizer* tokenizer,
                       std::span<const std::int32_t> prompt)
    : settings_(std::move(settings)), tokenizer_(tokenizer), sampler_(settings_.sampling) {
  for (const std::int32_t token : prompt) follow_thinking(token);
}

void Generation::follow_thinking(std::int32_t token) {
  if (tokenizer_ == nullptr || token < 0) return;
  if (token == tokenizer_->think_open()) is_thinking_ = true;
  if (token == tokenizer_->think_close()) is_thinking_ = false;
}

Status Generation::sample(Engine& engine, std::int32_t i) {
  const std::int32_t banned = is_thinking_ && !settings_.ignore_eos ? tokenizer_->eos() : -1;
  std::int32_t token = -1;
  if (settings_.sampling.temperature <= 0) {
    EBB_ASSIGN(token, engine.argmax(i));
  }
  // Greedy wants the row itself only if the answer may not stand: token 0 is also what is answered
  // when all logits are NaN.
  if (token <= 0 || token == banned) {
    EBB_ASSIGN(const std::span<const float> logits, engine.logits(i));
    token = sampler_.sample(logits, banned);
  }
  if (token < 0) {
    return make_error(Errc::internal, "new token %zu: the model's logits are no numbers",
                      tokens_.size() + 1);
  }
  return take(token);
}

Status Generation::take(std::int32_t token) {
  tokens_.push_back(token);
  follow_thinking(token);
  if (tokenizer_ != nullptr) {
    const std::size_t before = text_.size();
    EBB_ASSIGN(const std::string piece, tokenizer_->decode(std::span(&token, 1)));
    text_ += piece;
    std::size_t cut = text_.npos;
    for (const std::string& stop : settings_.stops) {
      const std::size_t from = before + 1 > stop.size() ? before + 1 - stop.size() : 0;
      cut = std::min(cut, text_.find(stop, from));
    }
    if (cut != text_.npos) text_.resize(cut);
    const bool is_eos = token == tokenizer_->eos() && !settings_.ignore_eos;
    if (cut != text_.npos || is_eos) finish_ = FinishReason::stop;
  }
  if (!is_finished() && static_cast<std::int64_t>(tokens_.size()) >= settings_.max_tokens) {
    finish_ = FinishReason::length;
  }
  return ok_status();
}

std::string_view Generation::take_text() {
  std::size_t end = text_.size();
  if (!is_finished()) {
    for (const std::string& stop : settings_.stops) {
      end = std::min(end, text_.size() - begun(text_, stop));
    }
    end -= partial_character(std::string_view(text_).substr(0, end));
  }
  const std::size_t from = std::min(n_shown_, end);
  n_shown_ = std::max(n_shown_, end);
  return std::string_view(text_).substr(from, end - from);
}

std::size_t partial_character(std::string_view text) {
  for (std::size_t n = 1; n <= std::min<std::size_t>(3, text.size()); ++n) {
    const auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if ((byte & 0xc0) == 0x80) continue;  // goes on with the byte before
    const std::size_t length = byte >= 0xf8   ? 1
                               : byte >= 0xf0 ? 4
                               : byte >= 0xe0 ? 3
                               : byte >= 0xc0 ? 2
                                              : 1;
    return n < length ? n : 0;
  }
  return 0;
}

}  // namespace ebb::cli
