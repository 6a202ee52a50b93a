#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "modules/tokenizer_gguf/vocab.h"

namespace ebb::tokenizer_gguf {

/// Byte-pair merging of one piece at a time.
/// Thread: [any] after construction, each caller with its own Scratch.
class Bpe {
 public:
  /// Takes what it needs of `vocabulary` by copy.
  explicit Bpe(const Vocabulary& vocabulary);

  /// Working memory of merge_piece, kept between pieces so that they need not allocate.
  class Scratch;

  /// Appends the ids of `piece` (under 2^32 bytes) to `ids`.
  /// Time: O(n log n) in its bytes. May throw std::bad_alloc.
  void merge_piece(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  /// A merge of which the left token is known from its place in the table.
  struct Entry {
    std::int32_t right;
    std::int32_t joined;
    std::uint32_t rank;
  };
  const Entry* find(std::int32_t left, std::int32_t right) const noexcept;
  void push_pair(std::uint32_t at, Scratch& scratch) const;

  std::vector<std::uint32_t> first_entry_;  ///< per left token, and one past the end
  std::vector<Entry> entries_;              ///< by left token, then by right
  std::array<std::int32_t, 256> byte_token_;
};

class Bpe::Scratch {
 private:
  friend class Bpe;
  struct Symbol {
    std::int32_t token;  ///< negative: swallowed by a merge
    std::uint32_t previous;
    std::uint32_t next;
  };
  std::vector<Symbol> symbols_;
  std::vector<std::uint64_t> queue_;  ///< min-heap of rank << 32 | position of the left symbol
};

}  // namespace ebb::tokenizer_gguf
