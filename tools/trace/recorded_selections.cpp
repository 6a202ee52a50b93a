#include "tools/trace/recorded_selections.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "core/text.h"
#include "tools/trace/reader.h"

namespace ebb::trace {
namespace {

constexpr std::uint64_t kMaxValues = std::uint64_t{1} << 28;  // that a reader of the file takes

/// By step, then layer.
struct Steps {
  std::vector<std::vector<std::vector<std::int32_t>>> ids;
  std::int32_t n_first = 0;  // chunks that were complete in the first of them
};

Result<Steps> read_steps(Reader& reader, const std::string& trace) {
  const Header& header = reader.header();
  Steps steps;
  std::int32_t sequence = -1;
  bool listens = false;
  for (;;) {
    EBB_ASSIGN(const Record* const record, reader.next());
    if (record == nullptr) break;
    // One such step is the end of a prompt, or of a prefix that others go on from.
    const bool has_begun = steps.ids.size() > 1;
    if (record->kind == Kind::close && record->sequence == sequence) {
      if (has_begun) break;
      sequence = -1;
    }
    if (record->kind == Kind::step) {
      const Run& run = record->runs.front();
      const bool is_alone = record->runs.size() == 1 && run.n_rows == 1;
      if (is_alone && run.sequence != sequence && !has_begun) {
        sequence = run.sequence;
        steps.ids.clear();
      }
      listens = is_alone && run.sequence == sequence;
      if (!listens) continue;
      if (steps.ids.empty()) {
        steps.n_first = (run.first_pos + 1) / static_cast<std::int32_t>(header.ratio);
      }
      steps.ids.emplace_back(header.n_layers);
    }
    if (record->kind == Kind::selected && listens) {
      steps.ids.back()[static_cast<std::size_t>(record->layer)] = record->ids;
    }
  }
  if (steps.ids.size() < 2) {
    return make_error(Errc::invalid_argument,
                      "%s: fewer than two steps in which a sequence was alone",
                      printable(trace).c_str());
  }
  return steps;
}

std::vector<std::int32_t> spread_out(const std::vector<std::int32_t>& ids, std::int32_t n_first,
                                     std::int32_t spread) {
  std::vector<std::int32_t> all;
  for (const std::int32_t id : ids) {
    // Chunks of the steps themselves are as many there as here.
    const std::int32_t n = id < n_first ? spread : 1;
    const std::int32_t first = id < n_first ? id * spread : n_first * spread + id - n_first;
    for (std::int32_t i = 0; i < n; ++i) all.push_back(first + i);
  }
  return all;
}

}  // namespace

Result<RecordedSize> export_selections(const std::string& trace, std::int32_t spread, bool recover,
                                       const Put& put) {
  EBB_ASSIGN(Reader reader, Reader::open(trace, recover));
  EBB_ASSIGN(const Steps steps, read_steps(reader, trace));
  const std::size_t n = steps.ids.size();
  const RecordedSize size{reader.header().n_layers, static_cast<std::uint32_t>(2 * n - 2),
                          reader.header().top_k * static_cast<std::uint32_t>(spread)};
  const std::uint64_t n_rows = std::uint64_t{size.n_layers} * size.n_steps;
  if (n_rows > kMaxValues / (std::uint64_t{size.top_k} + 1) ||
      reader.header().n_chunks() * static_cast<std::uint64_t>(spread) > INT32_MAX) {
    return make_error(Errc::invalid_argument,
                      "%s: %llu rows of %u chunks, spread over %llu, are more than a file of "
                      "selections holds: spread them less, or record fewer steps",
                      printable(trace).c_str(), static_cast<unsigned long long>(n_rows), size.top_k,
                      static_cast<unsigned long long>(reader.header().n_chunks()) * spread);
  }
  std::byte head[8 + 3 * sizeof(std::uint32_t)];
  const std::uint32_t numbers[] = {size.n_layers, size.n_steps, size.top_k};
  std::memcpy(head, "EBBSELS1", 8);
  std::memcpy(head + 8, numbers, sizeof(numbers));
  EBB_TRY(put(head));
  std::vector<std::int32_t> counts;
  for (std::uint32_t layer = 0; layer < size.n_layers; ++layer) {
    for (std::size_t step = 0; step < size.n_steps; ++step) {
      const std::size_t from = step < n ? step : 2 * n - 2 - step;
      auto ids = spread_out(steps.ids[from][layer], steps.n_first, spread);
      counts.push_back(static_cast<std::int32_t>(ids.size()));
      ids.resize(size.top_k);
      EBB_TRY(put(std::as_bytes(std::span(ids))));
    }
  }
  EBB_TRY(put(std::as_bytes(std::span(counts))));
  return size;
}

}  // namespace ebb::trace
