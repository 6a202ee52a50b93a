// The sorted list is used as a trie: the strings that share a prefix are neighbours, and each
// further byte of the text narrows the range. A position where no string begins costs one binary
// search.

#include "modules/tokenizer_gguf/special_strings.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace ebb::tokenizer_gguf {
namespace {

using Hit = SpecialStrings::Hit;

bool any_overlap(const std::vector<Hit>& hits) noexcept {
  std::size_t end = 0;
  for (const Hit& hit : hits) {
    if (hit.begin < end) return true;
    end = hit.end;
  }
  return false;
}

/// Keeps the longest of overlapping hits.
std::vector<Hit> without_overlap(std::vector<Hit> hits) {
  std::sort(hits.begin(), hits.end(), [](const Hit& a, const Hit& b) {
    const std::size_t a_size = a.end - a.begin;
    const std::size_t b_size = b.end - b.begin;
    return a_size != b_size ? a_size > b_size : a.begin < b.begin;
  });
  std::map<std::size_t, Hit> kept;  // by begin
  for (const Hit& hit : hits) {
    const auto after = kept.lower_bound(hit.begin);
    const bool free_after = after == kept.end() || after->second.begin >= hit.end;
    const bool free_before = after == kept.begin() || std::prev(after)->second.end <= hit.begin;
    if (free_after && free_before) kept.emplace_hint(after, hit.begin, hit);
  }
  std::vector<Hit> out;
  out.reserve(kept.size());
  for (const auto& [begin, hit] : kept) out.push_back(hit);
  return out;
}

}  // namespace

SpecialStrings::SpecialStrings(std::vector<String> strings) : strings_(std::move(strings)) {
  std::sort(strings_.begin(), strings_.end(),
            [](const String& a, const String& b) { return a.text < b.text; });
}

std::vector<Hit> SpecialStrings::find(std::string_view text) const {
  std::vector<Hit> hits;
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    auto low = strings_.begin();
    auto high = strings_.end();
    for (std::size_t depth = 0; low != high && begin + depth < text.size(); ++depth) {
      // Every string in [low, high) has the same first `depth` bytes and is longer than that.
      const auto byte = static_cast<unsigned char>(text[begin + depth]);
      low = std::partition_point(low, high, [&](const String& s) {
        return static_cast<unsigned char>(s.text[depth]) < byte;
      });
      high = std::partition_point(low, high, [&](const String& s) {
        return static_cast<unsigned char>(s.text[depth]) == byte;
      });
      if (low != high && low->text.size() == depth + 1) {
        hits.push_back({begin, begin + depth + 1, low->id});
        ++low;
      }
    }
  }
  return any_overlap(hits) ? without_overlap(std::move(hits)) : hits;
}

}  // namespace ebb::tokenizer_gguf
