#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/attention.h"

namespace ebb::cuda {

inline constexpr std::int32_t kMaxHeadWidth = 512;  ///< largest d of attend

std::size_t attend_workspace(const AttendArgs& args);

/// Bytes of launch.landing that attend wants; 0: none. Else attend_fetch comes before it, which
/// brings chosen chunks without a slot in once: every block of heads would read them over the bus,
/// a few at a time. It comes behind whatever writes ids, chunks and slot tables.
std::size_t attend_landing(const AttendArgs& args);
cudaError_t attend_fetch(const Launch& launch, const AttendArgs& args);

/// True if attend can do what `heads` asks for as it reads its queries.
inline bool attend_can_finish(const HeadsArgs& heads, const AttendArgs& args) {
  return heads.x == args.q && heads.n_heads == args.n_heads && heads.d == args.d &&
         heads.rounding == Rounding::none && heads.step.n_rows == args.step.n_rows &&
         heads.step.max_rows == args.step.max_rows;
}

/// `ring_rot`, `chunk_rot`: n_rot of row_format.h for the two stores. `heads`, if given, is done to
/// the queries as they are read; the queries in memory stay as they are.
cudaError_t attend(const Launch& launch, const AttendArgs& args, std::int32_t ring_rot,
                   std::int32_t chunk_rot, const HeadsArgs* heads = nullptr);

}  // namespace ebb::cuda
