#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/api/swap.h"
#include "core/host.h"
#include "core/module_loader.h"
#include "tests/core/support.h"
#include "tests/staging/fake_compute.h"
#include "tools/ebb/swap_counters.h"

// A swap module with a device that is made of plain memory: it executes the moves, "compresses"
// chunks to rows of a known pattern, "selects" what a test wants and "attends" by comparing every
// row it reads, wherever that is, with the pattern. Beside it a model of sets says what must
// happen.

namespace ebb::test {

struct SimulatorShape {
  std::int32_t n_layers = 3;
  std::int32_t max_open = 1;
  std::int32_t max_rows = 8;
  std::int64_t max_context = 256;
  std::int32_t ratio = 4;
  std::int32_t top_k = 6;
  std::int64_t row_bytes = 24;
};

class Simulator {
 public:
  using Ids = std::vector<std::int32_t>;
  /// Selections of one row of a sequence in a layer, of the chunks [0, n_visible).
  using Select =
      std::function<Ids(std::int32_t sequence, std::int32_t layer, std::int32_t n_visible)>;

  static constexpr const char* kChaos = EBB_POLICIES_DIR "/swap_chaos.so";

  /// `policy` is a module: a bare name, or a path. `keys` are those of [swap].
  Simulator(const SimulatorShape& shape, const std::string& policy, const std::string& keys)
      : shape_(shape), promotes_(keys.find("max_promotions = 0\n") == keys.npos) {
    services_.parts().compute = &compute_;
    const auto options = options_of(keys);
    const ModuleLoader loader(EBB_MODULES_DIR);
    auto loaded = loader.load<Swap>({"swap", policy, "", "[swap] module"},
                                    services_.host_for("policy"), *options);
    if (!loaded) throw std::runtime_error(loaded.error().message);
    module_ = *std::move(loaded);
    staging_ = module_.get();
    open();
  }

  Swap& staging() { return *staging_; }
  const std::vector<std::string>& log() const { return log_; }
  std::int64_t length(std::int32_t sequence) const { return at(sequence).length; }
  bool is_open(std::int32_t sequence) const { return at(sequence).is_open; }
  bool is_demand() const { return staging_->mode() == StagingMode::demand; }
  const SwapCounters& expected(std::int32_t layer) const {
    return expected_[static_cast<std::size_t>(layer)];
  }
  /// Whether `expected` knows of prefetch: where no promotion looks like one.
  bool knows_prefetch() const { return is_demand() || !promotes_; }

  void open_sequence(std::int32_t sequence) {
    Sequence& s = sequences_[static_cast<std::size_t>(sequence)];
    s = {true, 0, s.generation + 1};
    require(staging_->open_sequence(sequence));
  }
  /// Before a step.
  void forecast(std::int32_t sequence, const std::vector<float>& scores, const Ids& kept) {
    watched([&] { staging_->scored({sequence, scores, kept}); });
  }
  void close_sequence(std::int32_t sequence) {
    for (auto at = foreseen_.begin(); at != foreseen_.end();) {
      const auto [layer, row] = place(*at);
      if (row / layers_[0].n_chunks != sequence) {
        ++at;
        continue;
      }
      ++expected_[layer].prefetch_wasted;
      at = foreseen_.erase(at);
    }
    staging_->settle();
    staging_->close_sequence(sequence);
    sequences_[static_cast<std::size_t>(sequence)].is_open = false;
  }

  struct Feed {
    std::int32_t sequence, n_rows;
  };
  /// One step. Throws at the first thing that is not as it must be.
  void step(const std::vector<Feed>& feeds, const Select& select) {
    std::vector<std::int32_t> pos, seq;
    for (const auto& [sequence, n] : feeds) {
      for (std::int32_t i = 0; i < n; ++i) {
        pos.push_back(static_cast<std::int32_t>(at(sequence).length + i));
        seq.push_back(sequence);
      }
    }
    const auto n_rows = static_cast<std::int32_t>(pos.size());
    const bool logged = n_rows <= staging_->max_log_rows();
    watched([&] { staging_->begin_step(pos.data(), seq.data(), n_rows); });
    run_moves(staging_->step_moves(), knows_prefetch());
    for (std::int32_t layer = 0; layer < shape_.n_layers; ++layer) {
      compress(layer, pos, seq);
      const SelectionLog log = staging_->log(layer);
      std::vector<Ids> ids;
      for (std::size_t r = 0; r < pos.size(); ++r) {
        ids.push_back(select(seq[r], layer, (pos[r] + 1) / shape_.ratio));
        if (!logged) continue;
        log.count[r] = static_cast<std::int32_t>(ids[r].size());
        std::copy(ids[r].begin(), ids[r].end(),
                  log.ids + static_cast<std::int64_t>(r) * shape_.top_k);
      }
      const std::vector<std::set<std::int32_t>> before = residents(layer);
      if (logged) expect(layer, seq, ids, before);
      if (logged && is_demand()) {
        watched([&] { staging_->resolve(layer); });
        run_moves(staging_->layer_moves(layer), false);
        keeps_selected(layer, seq, ids, before);
      }
      attend(layer, seq, ids);
    }
    check_slots();
    for (const auto& [sequence, n] : feeds) {
      sequences_[static_cast<std::size_t>(sequence)].length += n;
    }
    watched([&] { staging_->digest(); });
  }

  /// If set, hears true before and false after each call that is part of a step.
  std::function<void(bool)> watch;

  /// Row `slot` of a layer's table entry, -1 if the chunk has none.
  std::int32_t slot_of(std::int32_t sequence, std::int32_t layer, std::int32_t chunk) const {
    const StagedRows& rows = layers_[static_cast<std::size_t>(layer)];
    return rows.slot_of[sequence * rows.n_chunks + chunk];
  }
  const std::byte* pool_row(std::int32_t sequence, std::int32_t layer, std::int32_t chunk) const {
    const StagedRows& rows = layers_[static_cast<std::size_t>(layer)];
    return rows.pool + (sequence * rows.n_chunks + chunk) * rows.row_bytes;
  }
  /// Whether a chunk of sequence 0 has a slot in every layer.
  bool slot_of_all(std::int32_t chunk) const {
    for (std::int32_t layer = 0; layer < shape_.n_layers; ++layer) {
      if (slot_of(0, layer, chunk) < 0) return false;
    }
    return true;
  }
  /// Of sequence 0.
  const std::int32_t* table(std::int32_t layer) const {
    return layers_[static_cast<std::size_t>(layer)].slot_of;
  }
  std::int64_t n_slots() const { return layers_[0].n_slots; }
  std::uint64_t allocated() const { return compute_.allocated; }

 private:
  struct Sequence {
    bool is_open = false;
    std::int64_t length = 0;
    std::uint64_t generation = 0;
  };

  static void require(const Status& status) {
    if (!status) throw std::runtime_error(status.error().message);
  }
  static void must(bool ok, const std::string& what) {
    if (!ok) throw std::runtime_error(what);
  }
  template <class Call>
  void watched(Call call) const {
    if (watch) watch(true);
    call();
    if (watch) watch(false);
  }
  const Sequence& at(std::int32_t sequence) const {
    return sequences_[static_cast<std::size_t>(sequence)];
  }

  void open() {
    const SessionShape session{.max_context = shape_.max_context,
                               .max_open = shape_.max_open,
                               .max_decode = shape_.max_open,
                               .max_rows = shape_.max_rows};
    const StagedShape staged{shape_.n_layers, shape_.ratio, shape_.top_k, shape_.row_bytes};
    const Result<bool> swaps = staging_->plan(session, staged);
    if (!swaps) throw std::runtime_error(swaps.error().message);
    must(*swaps, "there is nothing to swap");
    Arena counting;
    for (std::int32_t i = 0; i < shape_.n_layers; ++i) staging_->carve_layer(counting, i);
    Arena arena(*compute_.allocate(counting.bytes(), "slots"));
    require(staging_->open());
    for (std::int32_t i = 0; i < shape_.n_layers; ++i) {
      layers_.push_back(staging_->carve_layer(arena, i));
    }
    must(arena.bytes() == counting.bytes(), "carving counts other bytes than it takes");
    sequences_.resize(static_cast<std::size_t>(shape_.max_open));
    expected_.resize(layers_.size());
  }

  void fill(std::byte* row, std::int32_t sequence, std::int32_t layer, std::int32_t chunk) const {
    for (std::int64_t i = 0; i < shape_.row_bytes; ++i) {
      std::uint64_t x = at(sequence).generation * 1000003 + static_cast<std::uint64_t>(sequence);
      x = (x * 1000003 + static_cast<std::uint64_t>(layer)) * 1000003 +
          static_cast<std::uint64_t>(chunk);
      x = (x * 1000003 + static_cast<std::uint64_t>(i)) * 0x9e3779b97f4a7c15u;
      row[i] = static_cast<std::byte>(x >> 56);
    }
  }

  /// Layer of a table's entry, and its place in the table.
  std::pair<std::size_t, std::int64_t> place(const std::int32_t* entry) const {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      const std::int64_t at = entry - layers_[layer].slot_of;
      if (at >= 0 && at < shape_.max_open * layers_[0].n_chunks) return {layer, at};
    }
    throw std::runtime_error("an entry of no table");
  }

  void run_moves(const SlotMoves& list, bool foresees) {
    std::set<const void*> entries, places;
    for (std::int32_t i = 0; i < *list.count; ++i) {
      const SlotMove& move = list.moves[i];
      must(entries.insert(move.entry).second, "R3: an entry changes twice in a list");
      if (move.value >= 0)
        must(places.insert(move.to).second, "R3: a slot is given twice in a list");
      if (move.from != nullptr) {
        std::memcpy(move.to, move.from, static_cast<std::size_t>(move.row_bytes));
      }
    }
    for (std::int32_t i = 0; i < *list.count; ++i) {
      const SlotMove& move = list.moves[i];
      *move.entry = move.value;
      if (move.value < 0 && foreseen_.erase(move.entry) > 0) {
        ++expected_[place(move.entry).first].prefetch_wasted;
      }
      if (foresees && move.from != nullptr) {
        foreseen_.insert(move.entry);
        ++expected_[place(move.entry).first].prefetched;
      }
    }
  }

  void compress(std::int32_t layer, const std::vector<std::int32_t>& pos,
                const std::vector<std::int32_t>& seq) {
    const StagedRows& rows = layers_[static_cast<std::size_t>(layer)];
    for (std::size_t r = 0; r < pos.size(); ++r) {
      if ((pos[r] + 1) % shape_.ratio != 0) continue;
      const std::int32_t chunk = pos[r] / shape_.ratio;
      fill(const_cast<std::byte*>(pool_row(seq[r], layer, chunk)), seq[r], layer, chunk);
      const std::int32_t slot = slot_of(seq[r], layer, chunk);
      if (slot >= 0) {
        fill(rows.slots + (seq[r] * rows.n_slots + slot) * rows.row_bytes, seq[r], layer, chunk);
      }
    }
  }

  /// Chunks with a slot, by sequence.
  std::vector<std::set<std::int32_t>> residents(std::int32_t layer) const {
    std::vector<std::set<std::int32_t>> sets(sequences_.size());
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      const auto n = static_cast<std::int32_t>(layers_[0].n_chunks);
      for (std::int32_t c = 0; sequences_[s].is_open && c < n; ++c) {
        if (slot_of(static_cast<std::int32_t>(s), layer, c) >= 0) sets[s].insert(c);
      }
    }
    return sets;
  }

  /// R4, R11: what the counters have to say, from sets.
  void expect(std::int32_t layer, const std::vector<std::int32_t>& seq, const std::vector<Ids>& ids,
              const std::vector<std::set<std::int32_t>>& before) {
    SwapCounters& counters = expected_[static_cast<std::size_t>(layer)];
    std::vector<std::set<std::int32_t>> chosen(sequences_.size());
    for (std::size_t r = 0; r < seq.size(); ++r) {
      for (const std::int32_t id : ids[r]) {
        if (id < 0) continue;
        ++counters.selections;
        chosen[static_cast<std::size_t>(seq[r])].insert(id);
      }
    }
    for (std::size_t s = 0; s < chosen.size(); ++s) {
      for (const std::int32_t id : chosen[s]) {
        ++counters.distinct;
        ++(before[s].contains(id) ? counters.hits : counters.misses);
        const StagedRows& rows = layers_[static_cast<std::size_t>(layer)];
        counters.prefetch_used +=
            foreseen_.erase(rows.slot_of + static_cast<std::int64_t>(s) * rows.n_chunks + id);
      }
    }
  }

  /// R3: what was selected and had a slot has it still.
  void keeps_selected(std::int32_t layer, const std::vector<std::int32_t>& seq,
                      const std::vector<Ids>& ids,
                      const std::vector<std::set<std::int32_t>>& before) const {
    const auto after = residents(layer);
    for (std::size_t r = 0; r < seq.size(); ++r) {
      const auto s = static_cast<std::size_t>(seq[r]);
      for (const std::int32_t id : ids[r]) {
        must(!before[s].contains(id) || after[s].contains(id), "R3: a selected chunk was evicted");
      }
    }
  }

  /// R1, R2: every row that is read is the one that was asked for.
  void attend(std::int32_t layer, const std::vector<std::int32_t>& seq,
              const std::vector<Ids>& ids) const {
    const StagedRows& rows = layers_[static_cast<std::size_t>(layer)];
    std::vector<std::byte> want(static_cast<std::size_t>(rows.row_bytes));
    for (std::size_t r = 0; r < seq.size(); ++r) {
      for (const std::int32_t id : ids[r]) {
        if (id < 0) continue;
        const std::int32_t slot = slot_of(seq[r], layer, id);
        const std::byte* const row =
            slot >= 0 ? rows.slots + (seq[r] * rows.n_slots + slot) * rows.row_bytes
                      : pool_row(seq[r], layer, id);
        fill(want.data(), seq[r], layer, id);
        must(
            std::memcmp(row, want.data(), want.size()) == 0,
            "R1: a wrong row was read " + std::string(slot >= 0 ? "from a slot" : "from the pool"));
      }
    }
  }

  /// S1, C1..C4 on what the device sees; then R2: what is in no slot is overwritten.
  void check_slots() {
    std::uint64_t n_used = 0;
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      if (!sequences_[s].is_open) continue;
      std::vector<char> used(static_cast<std::size_t>(n_slots()), 0);
      for (std::int32_t layer = 0; layer < shape_.n_layers; ++layer) {
        for (std::int32_t c = 0; c < static_cast<std::int32_t>(layers_[0].n_chunks); ++c) {
          const std::int32_t slot = slot_of(static_cast<std::int32_t>(s), layer, c);
          if (slot < 0) continue;
          must(slot < n_slots(), "S1: a slot that does not exist");
          must(used[static_cast<std::size_t>(slot)]++ == 0, "S1: a slot with two chunks");
          ++n_used;
        }
      }
      for (std::int64_t slot = 0; slot < n_slots(); ++slot) {
        if (used[static_cast<std::size_t>(slot)] != 0) continue;
        std::memset(
            layers_[0].slots + (static_cast<std::int64_t>(s) * n_slots() + slot) * shape_.row_bytes,
            0xff, static_cast<std::size_t>(shape_.row_bytes));
      }
    }
    const auto row = static_cast<std::uint64_t>(shape_.row_bytes);
    for (const SwapCounters& c : staging_->counters()) {
      must(c.hits + c.misses == c.distinct, "C1");
      must(c.h2d_bytes == (c.misses + c.promotions) * row + c.prefetch_bytes, "C2");
      must(c.prefetch_bytes == c.prefetched * row, "C2");
      must(c.prefetched >= c.prefetch_used + c.prefetch_wasted, "C5");
      must(c.d2h_bytes == c.stores * row, "C3");
    }
    const SwapCounters all = cli::total(staging_->counters());
    must(all.born + all.misses - all.pool_reads + all.promotions + all.prefetched ==
             all.evictions + all.freed + n_used,
         "C4");
  }

  const SimulatorShape shape_;
  const bool promotes_;
  std::vector<std::string> log_;
  HostServices services_{[this](LogLevel, std::string_view line) { log_.emplace_back(line); }, 0};
  FakeCompute compute_;
  ModulePtr<Swap> module_;
  Swap* staging_ = nullptr;
  std::vector<StagedRows> layers_;
  std::vector<Sequence> sequences_;
  std::vector<SwapCounters> expected_;      // selections, distinct, hits, misses, prefetch by layer
  std::set<const std::int32_t*> foreseen_;  // entries of chunks that came early and were not used
};

}  // namespace ebb::test
