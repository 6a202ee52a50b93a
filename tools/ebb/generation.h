#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/engine.h"
#include "tools/ebb/sampler.h"

namespace ebb::cli {

struct GenerationSettings {
  std::int64_t max_tokens = 256;
  SamplingSettings sampling;
  std::vector<std::string> stops;  ///< the text ends before the first of these
  bool ignore_eos = false;
};

enum class FinishReason {
  none,     ///< still going
  stop,     ///< EOS or a stop text
  length,   ///< max_tokens
  context,  ///< the sequence is full: [engine] max_context
};
const char* finish_reason_name(FinishReason reason);

/// What one sequence has produced so far, and when it ends. Knows tokens and text, not the engine's
/// sequences: the caller feeds last_token() and has the next one sampled.
class Generation {
 public:
  /// `tokenizer`: nullptr if the model has none; borrowed. Then there is no text and no EOS.
  /// `prompt` says whether the model is thinking at the start: while it is, EOS is not drawn, since
  /// an answer that ends inside the thinking is empty.
  Generation(GenerationSettings settings, const Tokenizer* tokenizer,
             std::span<const std::int32_t> prompt = {});

  /// Draws the next token from the i-th logits of the engine's last step and takes it.
  /// Errors: device; internal if the logits are no numbers, which concerns this sequence alone.
  Status sample(Engine& engine, std::int32_t i);
  /// Appends a token and decides whether it was the last. Not after the end.
  Status take(std::int32_t token);
  /// Ends it because nothing more fits.
  void end_by_context() { finish_ = FinishReason::context; }

  FinishReason finish() const { return finish_; }
  /// Between the tokens that open and close the model's thinking.
  bool is_thinking() const { return is_thinking_; }
  bool is_finished() const { return finish_ != FinishReason::none; }
  /// Every token drawn, an EOS at the end included.
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  std::int32_t last_token() const { return tokens_.back(); }
  /// EOS printed as nothing; cut before a stop text.
  const std::string& text() const { return text_; }
  /// The text that streaming may show and has not shown: whole characters, and nothing that a stop
  /// text may still take back. After the end, all that is left. Moves on at every call.
  std::string_view take_text();

 private:
  void follow_thinking(std::int32_t token);

  GenerationSettings settings_;
  const Tokenizer* tokenizer_;
  Sampler sampler_;
  std::vector<std::int32_t> tokens_;
  std::string text_;
  std::size_t n_shown_ = 0;
  bool is_thinking_ = false;
  FinishReason finish_ = FinishReason::none;
};

/// Bytes at the end of `text` that begin a UTF-8 character and do not end it: 0..3.
std::size_t partial_character(std::string_view text);

}  // namespace ebb::cli
