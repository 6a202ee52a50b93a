#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/api/tokenizer.h"
#include "tools/ebb/generation.h"

namespace ebb::cli {

/// One line of a batch, in either of two shapes.
///   short:  {"id", "prompt" | "tokens" | "messages", ...}
///   OpenAI: {"custom_id", "body": {"prompt" | "messages", ...}, "method", "url"}
/// Settings, all optional, in the short line or in the body: max_tokens, temperature, top_p, top_k,
/// seed, stop (text or list of texts), ignore_eos, thinking (messages), specials (prompt).
/// `prompt` is plain text and BOS goes before it; with "specials": true, special strings in it
/// become their tokens and nothing is added. `tokens` go in as they are. `messages` go through the
/// model's chat form.
struct Request {
  struct Message {
    std::string role, content, reasoning;
  };

  std::string id;
  std::optional<std::string> prompt;
  bool specials = false;
  std::optional<std::vector<std::int32_t>> tokens;
  std::vector<Message> messages;
  bool thinking = false;
  GenerationSettings settings;  ///< the line's own over the defaults
  std::uint64_t digest = 0;     ///< XXH3 of what the line says, however it is laid out
  /// Why a well-formed request cannot be served ("body.n = 2: ..."), or "".
  std::string refusal;
};

/// Errors: invalid_argument for a line that is no request: bad JSON, wrong type or range, unknown
/// key, no prompt. What is well-formed but not supported becomes `refusal`.
Result<Request> parse_request(std::string_view line, const GenerationSettings& defaults);

/// Token ids of the request's prompt. Errors: invalid_argument (unknown role, no tokenizer).
Result<std::vector<std::int32_t>> encode_prompt(const Request& request, const Tokenizer* tokenizer);

/// A whole batch, checked line by line; blank lines do not count. Borrows `text`.
class Batch {
 public:
  struct Line {
    std::string_view text;
    std::string id;
    int number;  ///< from 1
    std::uint64_t digest;
    std::int64_t max_tokens;
  };
  /// `name` begins messages: "prompts.jsonl:3: ...". Errors: invalid_argument for a bad line, an id
  /// used twice, or no line at all.
  static Result<Batch> read(std::string_view text, const std::string& name,
                            const GenerationSettings& defaults);
  const std::vector<Line>& lines() const { return lines_; }

 private:
  std::vector<Line> lines_;
};

}  // namespace ebb::cli
