// Keys are decoded in tiles of kTile, transposed so that lanes run over chunks: a chunk's score is
// then summed over dims in order and over heads in order, whatever tile or lane it is in. A tile
// serves a block of consecutive rows of one sequence.
//
// Scores stream through a small buffer per row. A score enters if it beats the top_k-th best so
// far; chunks come in ascending order, so an equal one loses to those already there. A full buffer
// is cut back to its top_k best. Entries are one integer: order of the score above, ~chunk below,
// so the greater integer is the better candidate and ties are exact.
//
// Few rows over many chunks are split into parts that keep their own best; a second phase joins
// them. The best of a whole are among the best of its parts, so the choice is the same.

#include "kernels/cpu/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/chunks.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/select_tile.h"
#include "kernels/numeric.h"
#include "kernels/row_format.h"

namespace ebb::cpu {
namespace {

constexpr std::int32_t kTile = kSelectTile;
constexpr std::int32_t kMaxBlock = 32;  // rows that share a tile

using Candidate = std::uint64_t;

/// Larger is better: by score (NaN as -inf, -0 as 0), then by lower chunk.
Candidate make_candidate(float score, std::int32_t chunk) {
  const float clean = score == score ? score + 0.0f : -INFINITY;
  const std::uint32_t bits = float_bits(clean);
  const std::uint32_t order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Candidate>(order) << 32 | ~static_cast<std::uint32_t>(chunk);
}

float candidate_score(Candidate candidate) {
  const std::uint32_t order = static_cast<std::uint32_t>(candidate >> 32);
  return bits_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

std::int32_t candidate_chunk(Candidate candidate) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(candidate));
}

/// The best top_k of a stream of candidates in ascending order of chunk.
struct BestList {
  Candidate* items = nullptr;
  std::int32_t n = 0;
  std::int32_t top_k = 0;
  /// A score must be above it to enter: the top_k-th best, once there are so many. NaN: all enter.
  float least = std::numeric_limits<float>::quiet_NaN();

  /// Room that a list needs: a tile may arrive before the list is cut back.
  static std::int64_t capacity(std::int32_t top_k) {
    return top_k + std::max<std::int64_t>(top_k, 256) + kTile;
  }
  void cut_back() {
    std::nth_element(items, items + top_k - 1, items + n, std::greater<>());
    n = top_k;
    least = candidate_score(items[top_k - 1]);
  }
  /// Takes the first `count` of a tile's scores, if they are allowed (nullptr: all are); `above`
  /// has a bit for every score above `least`.
  void add(const float* score, std::uint64_t above, std::int32_t first_chunk, std::int32_t count,
           const std::uint8_t* allowed) {
    if (least != least) above = ~std::uint64_t{0};
    if (count < kTile) above &= (std::uint64_t{1} << count) - 1;
    for (; above != 0; above &= above - 1) {
      const std::int32_t i = std::countr_zero(above);
      if (allowed != nullptr && allowed[first_chunk + i] == 0) continue;
      items[n++] = make_candidate(score[i], first_chunk + i);
    }
    if (n + kTile > capacity(top_k)) cut_back();
  }
};

struct SelectPlan {
  SelectArgs args;
  std::int32_t n_rot = 0;
};

/// How a step is cut into tasks: blocks of rows, or parts of single rows.
struct Cut {
  static constexpr std::int32_t kSplitTasks = 16;

  explicit Cut(std::int32_t n_rows)
      : rows(std::clamp(n_rows / 8, 1, kMaxBlock)),
        parts(n_rows > 0 ? std::max(1, kSplitTasks / n_rows) : 1),
        blocks((n_rows + rows - 1) / rows) {}

  std::int32_t rows;    // rows per block; 1 if parts > 1
  std::int32_t parts;   // parts of the chunks of a row
  std::int32_t blocks;  // blocks of rows
};

void write_choice(const SelectArgs& a, std::int64_t row, Candidate* items, std::int32_t n) {
  if (n > a.top_k) {
    std::nth_element(items, items + a.top_k - 1, items + n, std::greater<>());
    n = a.top_k;
  }
  std::int32_t* const ids = a.ids + row * a.top_k;
  for (std::int32_t i = 0; i < n; ++i) ids[i] = candidate_chunk(items[i]);
  std::sort(ids, ids + n);
  a.count[row] = n;
}

/// What the two phases share: the best candidates of each part of a split row.
struct PartMemory {
  std::vector<Candidate> items;  // [kSplitTasks, top_k]
  std::int32_t n[Cut::kSplitTasks] = {};
};

struct Scratch {
  float* tile;       // [d, kTile]
  float* rows;       // [kTile, d] decoded keys
  float* score;      // [kTile]
  Candidate* items;  // [kMaxBlock, capacity]

  static std::size_t bytes(const SelectArgs& a) {
    const std::size_t floats = 2 * static_cast<std::size_t>(a.d) * kTile + kTile;
    return floats * sizeof(float) +
           kMaxBlock * static_cast<std::size_t>(BestList::capacity(a.top_k)) * sizeof(Candidate);
  }
  Scratch(std::byte* memory, const SelectArgs& a) {
    tile = reinterpret_cast<float*>(memory);
    rows = tile + static_cast<std::int64_t>(a.d) * kTile;
    score = rows + static_cast<std::int64_t>(a.d) * kTile;
    items = reinterpret_cast<Candidate*>(score + kTile);
  }
};

/// Transposes the keys [first, first + n) of a sequence into the tile; the places behind them get
/// copies of the last one.
void load_tile(const SelectPlan& plan, std::int32_t seq, std::int32_t first, std::int32_t n,
               const Scratch& s) {
  const SelectArgs& a = plan.args;
  const float* rows[kTile];
  for (std::int32_t c = 0; c < kTile; ++c) {
    if (c >= n) {
      rows[c] = rows[n - 1];
      continue;
    }
    const std::byte* const key = row_at(a.keys, seq, first + c);
    if (a.keys.format == RowFormat::f32) {
      rows[c] = reinterpret_cast<const float*>(key);
    } else {
      float* const decoded = s.rows + static_cast<std::int64_t>(c) * a.d;
      decode_row_fast(a.keys.format, a.d, plan.n_rot, key, decoded);
      rows[c] = decoded;
    }
  }
  transpose_tile(rows, a.d, s.tile);
}

/// Which chunks row `row` may choose; nullptr: all.
const std::uint8_t* allowed_of(const SelectArgs& a, std::int64_t row) {
  return a.allowed == nullptr ? nullptr : a.allowed + a.step.seq[row] * a.keys.n_rows;
}

/// Streams the chunks [first_tile, last_tile) * kTile through the lists of the rows [first, last),
/// which belong to one sequence; lists[i] is for row first + i.
void score_rows(const SelectPlan& plan, std::int32_t first, std::int32_t last,
                std::int32_t first_tile, std::int32_t last_tile, BestList* lists,
                const Scratch& s) {
  const SelectArgs& a = plan.args;
  const std::int32_t most = visible_chunks(a.step.pos[last - 1], a.ratio);
  const std::int64_t head_values = static_cast<std::int64_t>(a.n_heads) * a.d;
  const std::uint8_t* const allowed = allowed_of(a, first);
  for (std::int32_t t = first_tile; t < last_tile && t * kTile < most; ++t) {
    const std::int32_t chunk = t * kTile, n = std::min(kTile, most - chunk);
    if (allowed != nullptr && std::count(allowed + chunk, allowed + chunk + n, 0) == n) continue;
    load_tile(plan, a.step.seq[first], chunk, n, s);
    for (std::int32_t r = first; r < last; ++r) {
      const std::int32_t visible = visible_chunks(a.step.pos[r], a.ratio);
      if (visible <= a.top_k || visible <= chunk) continue;
      BestList& list = lists[r - first];
      const std::uint64_t above =
          score_tile(a.q + r * head_values, a.weight + static_cast<std::int64_t>(r) * a.n_heads,
                     a.weight_scale, a.n_heads, a.d, s.tile, list.least, s.score);
      list.add(s.score, above, chunk, std::min(kTile, visible - chunk), allowed);
    }
  }
}

class ScorePhase final : public Phase {
 public:
  ScorePhase(const SelectPlan& plan, std::shared_ptr<PartMemory> memory)
      : plan_(plan), memory_(std::move(memory)) {}

  std::int64_t n_tasks() const noexcept override {
    const Cut cut(*plan_.args.step.n_rows);
    return static_cast<std::int64_t>(cut.blocks) * cut.parts;
  }
  std::size_t scratch_bytes() const noexcept override { return Scratch::bytes(plan_.args); }
  const char* name() const noexcept override { return "select"; }

  void run(std::int64_t task, std::byte* memory) const noexcept override {
    const std::int32_t n_rows = *plan_.args.step.n_rows;
    const Cut cut(n_rows);
    const Scratch s(memory, plan_.args);
    if (cut.parts > 1) {
      run_part(static_cast<std::int32_t>(task / cut.parts),
               static_cast<std::int32_t>(task % cut.parts), cut, s);
      return;
    }
    const std::int32_t end = std::min(static_cast<std::int32_t>(task + 1) * cut.rows, n_rows);
    for (std::int32_t first = static_cast<std::int32_t>(task) * cut.rows; first < end;) {
      std::int32_t last = first + 1;
      while (last < end && plan_.args.step.run_start[last] == plan_.args.step.run_start[first]) {
        ++last;
      }
      run_rows(first, last, s);
      first = last;
    }
  }

 private:
  BestList new_list(const Scratch& s, std::int32_t i) const {
    BestList list;
    list.items = s.items + i * BestList::capacity(plan_.args.top_k);
    list.top_k = plan_.args.top_k;
    return list;
  }

  /// Rows of one run, completely.
  void run_rows(std::int32_t first, std::int32_t last, const Scratch& s) const {
    const SelectArgs& a = plan_.args;
    BestList lists[kMaxBlock];
    for (std::int32_t r = first; r < last; ++r) lists[r - first] = new_list(s, r - first);
    // The last row sees most: if it needs no scores, none does.
    if (visible_chunks(a.step.pos[last - 1], a.ratio) > a.top_k) {
      score_rows(plan_, first, last, 0, INT32_MAX / kTile, lists, s);
    }
    for (std::int32_t r = first; r < last; ++r) {
      const std::int32_t visible = visible_chunks(a.step.pos[r], a.ratio);
      if (visible <= a.top_k) {
        write_all(r, visible);
      } else {
        write_choice(a, r, lists[r - first].items, lists[r - first].n);
      }
    }
  }

  void run_part(std::int32_t row, std::int32_t part, const Cut& cut, const Scratch& s) const {
    const SelectArgs& a = plan_.args;
    const std::int32_t visible = visible_chunks(a.step.pos[row], a.ratio);
    const std::int32_t slot = row * cut.parts + part;
    if (visible <= a.top_k) {
      if (part == 0) write_all(row, visible);
      return;
    }
    const std::int64_t tiles = (static_cast<std::int64_t>(visible) + kTile - 1) / kTile;
    BestList list = new_list(s, 0);
    score_rows(plan_, row, row + 1, static_cast<std::int32_t>(tiles * part / cut.parts),
               static_cast<std::int32_t>(tiles * (part + 1) / cut.parts), &list, s);
    if (list.n > a.top_k) list.cut_back();
    std::copy_n(list.items, list.n,
                memory_->items.data() + static_cast<std::int64_t>(slot) * a.top_k);
    memory_->n[slot] = list.n;
  }

  void write_all(std::int32_t row, std::int32_t visible) const {
    const SelectArgs& a = plan_.args;
    std::int32_t* const ids = a.ids + static_cast<std::int64_t>(row) * a.top_k;
    const std::uint8_t* const allowed = allowed_of(a, row);
    std::int32_t n = 0;
    for (std::int32_t c = 0; c < visible; ++c) {
      if (allowed == nullptr || allowed[c] != 0) ids[n++] = c;
    }
    a.count[row] = n;
  }

  SelectPlan plan_;
  std::shared_ptr<PartMemory> memory_;
};

class MergePhase final : public Phase {
 public:
  MergePhase(const SelectArgs& args, std::shared_ptr<PartMemory> memory)
      : args_(args), memory_(std::move(memory)) {}

  std::int64_t n_tasks() const noexcept override {
    const std::int32_t n_rows = *args_.step.n_rows;
    return Cut(n_rows).parts > 1 ? n_rows : 0;
  }
  std::size_t scratch_bytes() const noexcept override {
    return static_cast<std::size_t>(Cut::kSplitTasks) * static_cast<std::size_t>(args_.top_k) *
           sizeof(Candidate);
  }
  const char* name() const noexcept override { return "select merge"; }

  void run(std::int64_t row, std::byte* memory) const noexcept override {
    if (visible_chunks(args_.step.pos[row], args_.ratio) <= args_.top_k) return;
    const Cut cut(*args_.step.n_rows);
    Candidate* const all = reinterpret_cast<Candidate*>(memory);
    std::int32_t n = 0;
    for (std::int64_t slot = row * cut.parts; slot < (row + 1) * cut.parts; ++slot) {
      std::copy_n(memory_->items.data() + slot * args_.top_k, memory_->n[slot], all + n);
      n += memory_->n[slot];
    }
    write_choice(args_, row, all, n);
  }

 private:
  SelectArgs args_;
  std::shared_ptr<PartMemory> memory_;
};

}  // namespace

Status add_select(PhaseList& list, const SelectArgs& args) {
  SelectPlan plan{args, 0};
  EBB_ASSIGN(plan.n_rot, check_select(args));
  auto memory = std::make_shared<PartMemory>();
  memory->items.resize(static_cast<std::size_t>(Cut::kSplitTasks) *
                       static_cast<std::size_t>(args.top_k));
  list.push_back(std::make_unique<ScorePhase>(plan, memory));
  list.push_back(std::make_unique<MergePhase>(args, memory));
  return ok_status();
}

}  // namespace ebb::cpu
