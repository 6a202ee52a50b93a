#include "tools/trace/oracle_general.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "tools/trace/distinct.h"
#include "tools/trace/reader.h"

namespace ebb::trace {
namespace {

struct Access {
  std::uint32_t time;
  std::uint64_t object;
  std::int64_t next;
};

Result<std::vector<Access>> read_accesses(Reader& reader, bool with_births) {
  std::vector<Access> accesses;
  const Header header = reader.header();
  std::vector<std::uint64_t> opening(header.max_open);
  std::vector<std::int64_t> n_complete(header.max_open);
  std::uint64_t n_openings = 0;
  std::uint32_t step = 0;
  DistinctSelections selections;
  const auto add = [&](std::int32_t sequence, std::uint32_t layer, std::int64_t chunk) {
    const std::uint64_t base =
        opening[static_cast<std::size_t>(sequence)] << 48 | static_cast<std::uint64_t>(layer) << 32;
    accesses.push_back({step, base | static_cast<std::uint64_t>(chunk), -1});
  };
  const auto finish_step = [&] {
    selections.finish(
        [&](std::int32_t sequence, std::int32_t layer, std::span<const std::int32_t> chunks) {
          for (const std::int32_t chunk : chunks) {
            add(sequence, static_cast<std::uint32_t>(layer), chunk);
          }
        });
  };
  const auto give_birth = [&](const Run& run) {
    std::int64_t& from = n_complete[static_cast<std::size_t>(run.sequence)];
    const std::int64_t to = (run.first_pos + run.n_rows) / static_cast<std::int64_t>(header.ratio);
    for (std::uint32_t layer = 0; layer < header.n_layers; ++layer) {
      for (std::int64_t chunk = from; chunk < to; ++chunk) add(run.sequence, layer, chunk);
    }
    from = to;
  };
  for (;;) {
    EBB_ASSIGN(const Record* const record, reader.next());
    if (record == nullptr) break;
    if (record->kind == Kind::selected) {
      selections.add(*record);
      continue;
    }
    finish_step();
    if (record->kind == Kind::step) {
      ++step;
      for (const Run& run : record->runs) {
        if (with_births) give_birth(run);
      }
    }
    if (record->kind == Kind::open) {
      opening[static_cast<std::size_t>(record->sequence)] = ++n_openings;
      n_complete[static_cast<std::size_t>(record->sequence)] = 0;
    }
    // These chunks are in the pool without ever having been given a slot.
    if (record->kind == Kind::filled) {
      n_complete[static_cast<std::size_t>(record->sequence)] =
          record->n_tokens / static_cast<std::int64_t>(header.ratio);
    }
  }
  finish_step();
  return accesses;
}

void append(std::vector<std::byte>& to, std::uint64_t value, int n_bytes) {
  for (int i = 0; i < n_bytes; ++i) to.push_back(static_cast<std::byte>(value >> (8 * i)));
}

}  // namespace

Result<std::uint64_t> export_oracle_general(const std::string& trace, bool recover,
                                            bool with_births, const Put& put) {
  EBB_ASSIGN(Reader reader, Reader::open(trace, recover));
  EBB_ASSIGN(std::vector<Access> accesses, read_accesses(reader, with_births));
  std::unordered_map<std::uint64_t, std::int64_t> next;
  for (std::size_t i = accesses.size(); i-- > 0;) {
    const auto [at, is_last] = next.try_emplace(accesses[i].object, -1);
    accesses[i].next = at->second;
    at->second = static_cast<std::int64_t>(i) + 1;
  }
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    append(bytes, accesses[i].time, 4);
    append(bytes, accesses[i].object, 8);
    append(bytes, reader.header().row_bytes, 4);
    append(bytes, static_cast<std::uint64_t>(accesses[i].next), 8);
    if (bytes.size() < (1 << 20) && i + 1 < accesses.size()) continue;
    EBB_TRY(put(bytes));
    bytes.clear();
  }
  return static_cast<std::uint64_t>(accesses.size());
}

}  // namespace ebb::trace
