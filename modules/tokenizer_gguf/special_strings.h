#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::tokenizer_gguf {

/// Finds the strings that stand for one token each, such as "<think>".
/// Thread: [any] after construction.
class SpecialStrings {
 public:
  struct String {
    std::string text;  ///< not empty
    std::int32_t id;
  };
  struct Hit {
    std::size_t begin;
    std::size_t end;
    std::int32_t id;
  };

  SpecialStrings() = default;
  explicit SpecialStrings(std::vector<String> strings);

  /// The occurrences in `text`, left to right, none overlapping another. Of overlapping ones the
  /// longest stays, of equally long ones the leftmost. May throw std::bad_alloc.
  std::vector<Hit> find(std::string_view text) const;

 private:
  std::vector<String> strings_;  ///< sorted by text
};

}  // namespace ebb::tokenizer_gguf
