#include "tools/trace/replay.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "tools/ebb/swap_counters.h"
#include "tools/trace/distinct.h"

// The trace holds what the swap module was told, and when; telling it again is all there is to do.
// The module asks a compute module for memory and writes its tables there; here they lead nowhere,
// except for the log, into which the trace's selections go as the device would write them.

namespace ebb::trace {
namespace {

/// Host memory, and nothing else of a compute module. Pages that are never touched cost nothing.
class HostMemory final : public Compute {
 public:
  ~HostMemory() override {
    for (const auto& [memory, bytes] : taken_) ::munmap(memory, bytes);
  }
  Result<std::byte*> allocate(std::uint64_t bytes, const char* what) noexcept override {
    return allocate_host(bytes, what);
  }
  Result<std::byte*> allocate_host(std::uint64_t bytes, const char* what) noexcept override {
    const std::size_t size = std::max<std::uint64_t>(bytes, 1);
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return make_error(Errc::out_of_memory, "no address space for %s: %llu bytes", what,
                        static_cast<unsigned long long>(bytes));
    }
    taken_.emplace_back(memory, size);
    return static_cast<std::byte*>(memory);
  }
  Result<Weight> import_matrix(const TensorView&) noexcept override { return nothing(); }
  Result<const float*> import_floats(const TensorView&) noexcept override { return nothing(); }
  Result<const std::int32_t*> import_ints(const TensorView&) noexcept override { return nothing(); }
  Status write(void*, const void*, std::uint64_t) noexcept override { return ok_status(); }
  Status read(void*, const void*, std::uint64_t) noexcept override { return ok_status(); }
  Status copy(void*, const void*, std::uint64_t) noexcept override { return ok_status(); }
  Result<Ops*> begin_plan() noexcept override { return nothing(); }
  Result<PlanId> end_plan() noexcept override { return nothing(); }
  Status start(PlanId) noexcept override { return nothing(); }
  Status wait() noexcept override { return ok_status(); }
  Status start_beside(PlanId) noexcept override { return nothing(); }
  Status wait_beside(PlanId) noexcept override { return ok_status(); }
  ComputeInfo info() const noexcept override { return {}; }
  std::int64_t launches(PlanId) const noexcept override { return 0; }
  Result<double> measure_read_rate() noexcept override { return nothing(); }

 private:
  static Error nothing() { return Error{Errc::internal, "replay computes nothing"}; }
  std::vector<std::pair<void*, std::size_t>> taken_;
};

/// A swap module, told what the records of a trace say.
class Driver {
 public:
  Driver(const Header& header, Swap& swap) : header_(header), swap_(swap) {}

  /// False if every chunk has a slot, so that there is nothing to drive.
  Result<bool> open() {
    const SessionShape session{static_cast<std::int64_t>(header_.max_context),
                               static_cast<std::int32_t>(header_.max_open),
                               static_cast<std::int32_t>(header_.max_decode),
                               static_cast<std::int32_t>(header_.max_rows), 1};
    const StagedShape staged{
        static_cast<std::int32_t>(header_.n_layers), static_cast<std::int32_t>(header_.ratio),
        static_cast<std::int32_t>(header_.top_k), static_cast<std::int64_t>(header_.row_bytes)};
    EBB_ASSIGN(const bool is_needed, swap_.plan(session, staged));
    if (!is_needed) return false;
    EBB_TRY(swap_.open());
    Arena nowhere;
    for (std::int32_t layer = 0; layer < staged.n_layers; ++layer) {
      (void)swap_.carve_layer(nowhere, layer);
    }
    return true;
  }

  Status take(const Record& record) {
    if (record.kind == Kind::selected) {
      select(record);
      return ok_status();
    }
    finish_step();
    switch (record.kind) {
      case Kind::open:
        return swap_.open_sequence(record.sequence);
      case Kind::close:
        swap_.close_sequence(record.sequence);
        break;
      case Kind::step:
        begin_step(record);
        break;
      case Kind::scored:
        swap_.scored({record.sequence, record.scores, record.ids});
        break;
      case Kind::settled:
        swap_.settle();
        break;
      case Kind::filled:
        swap_.fill(record.sequence, record.n_tokens);
        break;
      case Kind::selected:
      case Kind::end:
        break;
    }
    return ok_status();
  }
  std::vector<SwapCounters> finish() {
    finish_step();
    swap_.settle();
    return {swap_.counters().begin(), swap_.counters().end()};
  }

 private:
  void begin_step(const Record& record) {
    pos_.clear();
    sequence_.clear();
    for (const Run& run : record.runs) {
      for (std::int32_t row = 0; row < run.n_rows; ++row) {
        pos_.push_back(run.first_pos + row);
        sequence_.push_back(run.sequence);
      }
    }
    swap_.begin_step(pos_.data(), sequence_.data(), static_cast<std::int32_t>(pos_.size()));
    swap_.digest();
    for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(header_.n_layers); ++layer) {
      std::fill_n(swap_.log(layer).count, swap_.max_log_rows(), 0);
    }
    in_step_ = true;
  }
  void select(const Record& record) {
    if (record.row >= swap_.max_log_rows()) return;
    const SelectionLog log = swap_.log(record.layer);
    std::copy(record.ids.begin(), record.ids.end(),
              log.ids + static_cast<std::int64_t>(record.row) * header_.top_k);
    log.count[record.row] = static_cast<std::int32_t>(record.ids.size());
  }
  // In demand mode, each layer is resolved when the device has its selections.
  void finish_step() {
    if (!std::exchange(in_step_, false) || swap_.mode() != StagingMode::demand) return;
    for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(header_.n_layers); ++layer) {
      swap_.resolve(layer);
    }
  }

  const Header header_;
  Swap& swap_;
  std::vector<std::int32_t> pos_, sequence_;
  bool in_step_ = false;
};

}  // namespace

std::vector<Counter> counters_of(const SwapCounters& counters) {
  std::vector<Counter> named;
  for (const cli::SwapField& field : cli::kSwapFields) {
    if (field.value != &SwapCounters::stall_us)
      named.push_back({field.name, counters.*field.value});
  }
  return named;
}

Result<std::vector<SwapCounters>> replay(Reader& reader, const ModuleLoader& modules,
                                         const ModuleChoice& choice, Options& options,
                                         const LogSink& log, bool with_scores,
                                         const std::function<void(const SwapCounters&)>& stepped) {
  HostMemory memory;
  HostServices host(log, 0);
  host.parts().compute = &memory;
  EBB_ASSIGN(const ModulePtr<Swap> swap,
             modules.load<Swap>(choice, host.host_for(choice.name), options));
  Driver driver(reader.header(), *swap.get());
  EBB_ASSIGN(const bool is_on, driver.open());
  std::vector<SwapCounters> all_hits(reader.header().n_layers);
  DistinctSelections selections;
  const auto finish_step = [&] {
    selections.finish([&](std::int32_t, std::int32_t layer, std::span<const std::int32_t> chunks) {
      SwapCounters& counters = all_hits[static_cast<std::size_t>(layer)];
      counters.distinct += chunks.size();
      counters.hits += chunks.size();
    });
  };
  for (;;) {
    EBB_ASSIGN(const Record* const record, reader.next());
    if (record == nullptr) break;
    if (record->kind == Kind::scored && !with_scores) continue;
    if (is_on) {
      EBB_TRY(driver.take(*record));
      // A step is learned from when the next one begins, in either staging mode.
      if (stepped && record->kind == Kind::step) stepped(cli::total(swap->counters()));
    } else if (record->kind == Kind::selected) {
      all_hits[static_cast<std::size_t>(record->layer)].selections += record->ids.size();
      selections.add(*record);
    } else {
      finish_step();
    }
  }
  finish_step();
  if (!is_on) return all_hits;
  std::vector<SwapCounters> counters = driver.finish();
  if (stepped) stepped(cli::total(counters));
  return counters;
}

namespace {

/// Compares each selection with the one before it.
class OverlapCount {
 public:
  OverlapCount(const Header& header, std::vector<Overlap>& overlap)
      : overlap_(overlap), last_(header.max_open * overlap.size()) {}

  void step(const std::vector<Run>& runs) {
    is_single_ = std::all_of(runs.begin(), runs.end(), [](const Run& r) { return r.n_rows == 1; });
  }
  void open(std::int32_t sequence) {
    for (std::size_t layer = 0; layer < overlap_.size(); ++layer) last(sequence, layer).clear();
  }
  void selected(const Record& record) {
    const auto layer = static_cast<std::size_t>(record.layer);
    std::vector<std::int32_t>& before = last(record.sequence, layer);
    if (is_single_ && !before.empty()) {
      Overlap& overlap = overlap_[layer];
      overlap.n_selected += record.ids.size();
      for (const std::int32_t id : record.ids) {
        overlap.n_again += std::binary_search(before.begin(), before.end(), id);
      }
    }
    if (is_single_) {
      before = record.ids;
    } else {
      before.clear();
    }
  }

 private:
  std::vector<std::int32_t>& last(std::int32_t sequence, std::size_t layer) {
    return last_[static_cast<std::size_t>(sequence) * overlap_.size() + layer];
  }

  std::vector<Overlap>& overlap_;
  std::vector<std::vector<std::int32_t>> last_;  // [max_open, n_layers]
  bool is_single_ = false;
};

}  // namespace

Result<Contents> read_contents(Reader& reader, bool keep_accesses) {
  const Header& header = reader.header();
  Contents contents;
  contents.overlap.resize(header.n_layers);
  OverlapCount overlap(header, contents.overlap);
  std::vector<std::size_t> opening(header.max_open);
  std::vector<std::int32_t> n_complete(header.max_open);
  DistinctSelections selections;
  const auto finish_step = [&] {
    if (!keep_accesses) return;
    selections.finish(
        [&](std::int32_t sequence, std::int32_t layer, std::span<const std::int32_t> chunks) {
          contents.sequences[opening[static_cast<std::size_t>(sequence)]].selected(layer, chunks);
        });
  };
  bool has_selections = false;
  for (;;) {
    EBB_ASSIGN(const Record* const record, reader.next());
    if (record == nullptr) break;
    const auto sequence = static_cast<std::size_t>(record->sequence);
    if (record->kind == Kind::selected) {
      contents.n_selections += record->ids.size();
      contents.n_logged_steps += !std::exchange(has_selections, true);
      overlap.selected(*record);
      if (keep_accesses) selections.add(*record);
      continue;
    }
    finish_step();
    switch (record->kind) {
      case Kind::open:
        ++contents.n_sequences;
        overlap.open(record->sequence);
        n_complete[sequence] = 0;
        if (!keep_accesses) break;
        opening[sequence] = contents.sequences.size();
        contents.sequences.emplace_back(static_cast<std::int32_t>(header.n_layers),
                                        static_cast<std::int64_t>(header.n_chunks()));
        break;
      case Kind::step:
        ++contents.n_steps;
        has_selections = false;
        overlap.step(record->runs);
        for (const Run& run : record->runs) {
          contents.n_tokens += static_cast<std::uint64_t>(run.n_rows);
          const auto s = static_cast<std::size_t>(run.sequence);
          const auto complete = static_cast<std::int32_t>((run.first_pos + run.n_rows) /
                                                          static_cast<std::int64_t>(header.ratio));
          if (keep_accesses) {
            Accesses& accesses = contents.sequences[opening[s]];
            accesses.begin_step();
            accesses.born(n_complete[s], complete);
          }
          n_complete[s] = complete;
          contents.most_chunks = std::max<std::int64_t>(contents.most_chunks, complete);
        }
        break;
      case Kind::filled:
        ++contents.n_copies;
        contents.n_copied_tokens += static_cast<std::uint64_t>(record->n_tokens);
        n_complete[sequence] = static_cast<std::int32_t>(record->n_tokens / header.ratio);
        break;
      case Kind::scored:
        ++contents.n_scorings;
        contents.n_kept += record->ids.size();
        break;
      case Kind::end:
        contents.counters = record->counters;
        break;
      case Kind::close:
      case Kind::settled:
      case Kind::selected:
        break;
    }
  }
  finish_step();
  return contents;
}

}  // namespace ebb::trace
