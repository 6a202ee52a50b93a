// Scores of all chunks, by the tiles that selection uses too. A tile of keys is decoded anew for
// every row: two rows that ask about one sequence are rare.

#include "kernels/cpu/scoring.h"

#include <algorithm>
#include <cstring>

#include "kernels/chunks.h"
#include "kernels/cpu/block_phase.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/select_tile.h"
#include "kernels/row_format.h"

namespace ebb::cpu {
namespace {

constexpr std::int32_t kTile = kSelectTile;

struct ScorePlan {
  ScoreArgs args;
  std::int32_t n_rot = 0;
  std::int64_t n_tiles = 0;  // of a full sequence
};

void keep_rows(const KeepRowsArgs& a, std::int64_t first, std::int64_t last, std::byte*) {
  for (std::int64_t r = first; r < last; ++r) {
    const std::int32_t to = a.step.keep[r];
    if (to >= 0) {
      std::memcpy(a.y + to * a.d, a.x + r * a.d, static_cast<std::size_t>(a.d) * sizeof(float));
    }
  }
}

void pick_rows(const PickRowsArgs& a, std::int64_t first, std::int64_t last, std::byte*) {
  for (std::int64_t r = first; r < last; ++r) {
    std::copy_n(a.table + a.step.pos[r] % a.n * a.d, a.d, a.y + r * a.d);
  }
}

std::size_t scratch_bytes(const ScoreArgs& a) {
  return (2 * static_cast<std::size_t>(a.d) * kTile + kTile) * sizeof(float);
}

/// An item is one tile of the chunks of one row.
void score_tiles(const ScorePlan& plan, std::int64_t first, std::int64_t last, std::byte* scratch) {
  const ScoreArgs& a = plan.args;
  float* const tile = reinterpret_cast<float*>(scratch);
  float* const decoded = tile + static_cast<std::int64_t>(a.d) * kTile;
  float* const score = decoded + static_cast<std::int64_t>(a.d) * kTile;
  for (std::int64_t item = first; item < last; ++item) {
    const std::int64_t row = item / plan.n_tiles, chunk = item % plan.n_tiles * kTile;
    const std::int64_t n =
        std::min<std::int64_t>(kTile, visible_chunks(a.step.pos[row], a.ratio) - chunk);
    if (n <= 0) continue;
    const float* keys[kTile];
    for (std::int64_t c = 0; c < kTile; ++c) {
      // The places behind the last key get copies of it.
      const std::int64_t from = std::min(c, n - 1);
      float* const key = decoded + from * a.d;
      if (c == from) {
        decode_row_fast(a.keys.format, a.d, plan.n_rot, row_at(a.keys, a.step.seq[row], chunk + c),
                        key);
      }
      keys[c] = key;
    }
    transpose_tile(keys, a.d, tile);
    score_tile(a.q + row * a.n_heads * a.d, a.weight + row * a.n_heads, a.weight_scale, a.n_heads,
               a.d, tile, 0, score);
    std::copy_n(score, n, a.logits + row * a.stride + chunk);
  }
}

}  // namespace

Status add_keep_rows(PhaseList& list, const KeepRowsArgs& args) {
  EBB_TRY(check_keep_rows(args));
  list.push_back(std::make_unique<BlockPhase<KeepRowsArgs>>(
      "keep_rows", args, args.step.n_rows, 1, items_for_values(args.d), 0, keep_rows));
  return ok_status();
}

Status add_pick_rows(PhaseList& list, const PickRowsArgs& args) {
  EBB_TRY(check_pick_rows(args));
  list.push_back(std::make_unique<BlockPhase<PickRowsArgs>>(
      "pick_rows", args, args.step.n_rows, 1, items_for_values(args.d), 0, pick_rows));
  return ok_status();
}

Status add_score(PhaseList& list, const ScoreArgs& args) {
  ScorePlan plan{args, 0, (args.keys.n_rows + kTile - 1) / kTile};
  EBB_ASSIGN(plan.n_rot, check_score(args));
  list.push_back(std::make_unique<BlockPhase<ScorePlan>>(
      "score", plan, args.step.n_rows, plan.n_tiles, 1, scratch_bytes(args), score_tiles));
  return ok_status();
}

}  // namespace ebb::cpu
