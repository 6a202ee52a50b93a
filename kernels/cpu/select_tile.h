#pragma once

#include <cstdint>

namespace ebb::cpu {

inline constexpr std::int32_t kSelectTile = 64;  ///< chunks that are scored together

/// tile[i][c] = rows[c][i], for d dims and kSelectTile rows. `tile` is aligned to 64 bytes.
void transpose_tile(const float* const* rows, std::int32_t d, float* tile);

/// score[c] = sum_h weight[h] * weight_scale * max(0, q[h] . key c), for a transposed tile of keys;
/// q [n_heads, d]. Sums run over dims, then over heads, in order, for every chunk on its own.
/// Returns a bit for every chunk whose score is above `least`.
std::uint64_t score_tile(const float* q, const float* weight, float weight_scale,
                         std::int32_t n_heads, std::int32_t d, const float* tile, float least,
                         float* score);

}  // namespace ebb::cpu
