#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/loader.h"
#include "core/api/result.h"
#include "modules/tokenizer_gguf/chat.h"
#include "modules/tokenizer_gguf/special_strings.h"

namespace ebb::tokenizer_gguf {

/// Two neighbouring tokens that become one. Its rank is its place in the list; the lowest goes
/// first.
struct Merge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t joined;
};

/// The tokenizer.ggml.* metadata of a model, checked. Holds copies: it outlives the loader.
/// What the checks promise: every id below size() is usable everywhere; each of the 256 bytes has a
/// token; merges join known tokens to a known token; no merge and no byte makes a special token, so
/// plain text cannot become one; all Markup has a token.
/// Thread: [any] after read.
class Vocabulary {
 public:
  /// Errors: incompatible for another kind of tokenizer, not_found for an absent key or token,
  /// invalid_argument for the rest; each names file, key and offset. May throw std::bad_alloc.
  static Result<Vocabulary> read(const Loader& loader);

  std::int32_t size() const noexcept { return static_cast<std::int32_t>(ends_.size()); }
  /// The bytes that `id` prints as; empty for control tokens.
  std::string_view bytes(std::int32_t id) const noexcept {
    const auto i = static_cast<std::size_t>(id);
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }
  std::int32_t id(Markup markup) const noexcept {
    return markup_[static_cast<std::size_t>(markup)];
  }
  const std::array<std::int32_t, 256>& byte_tokens() const noexcept { return byte_tokens_; }
  const std::vector<Merge>& merges() const noexcept { return merges_; }
  const SpecialStrings& specials() const noexcept { return specials_; }

 private:
  friend class VocabularyReader;
  Vocabulary() = default;

  std::string bytes_;              ///< of all tokens, one after the other
  std::vector<std::size_t> ends_;  ///< where each token ends in bytes_
  std::array<std::int32_t, kMarkupCount> markup_{};
  std::array<std::int32_t, 256> byte_tokens_{};
  std::vector<Merge> merges_;
  SpecialStrings specials_;
};

}  // namespace ebb::tokenizer_gguf
