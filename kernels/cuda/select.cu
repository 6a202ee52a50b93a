// score  in blocks of chunks (score_block.cuh)
// pick   a block finds the top_k-th largest by counting (select_pick.cuh).
//
// Rows that see no more than top_k chunks need no scores. Many rows go in waves and keys in
// segments, so that the memory for scores is bounded. Kernels know at compile time whether there is
// a mask: without one it costs nothing.

#include <algorithm>

#include "kernels/cuda/score_block.cuh"
#include "kernels/cuda/score_few.cuh"
#include "kernels/cuda/select.h"
#include "kernels/cuda/select_pick.cuh"

namespace ebb::cuda {
namespace {

constexpr int kWaveRows = 256;
constexpr std::int32_t kFewSpread = 8192;    // chunks up to which few rows are dealt to more blocks
constexpr std::int32_t kSegment = 16384;     // chunks of a wave of many rows
constexpr std::int32_t kFewSegment = 65536;  // and of few rows

template <int kWidth, bool kMasked>
__global__ void __launch_bounds__(kScoreThreads, kWidth <= 128 ? 2 : 1)
    score_kernel(const __grid_constant__ SelectPlan p, const __grid_constant__ RowReader reader,
                 int block_rows) {
  extern __shared__ __half memory[];
  wait_for_inputs();
  const SelectArgs& a = p.args;
  const int first = p.first_row + blockIdx.y * block_rows;
  const int last = min(min(first + block_rows, p.first_row + p.wave_rows), *a.step.n_rows);
  const int segment = p.segment * p.segment_size, begin = segment + blockIdx.x * kBlockChunks;
  const auto order_at = [&](int row, int chunk) -> std::uint32_t& {
    return p.order[static_cast<std::int64_t>(row - p.first_row) * p.segment_size + chunk - segment];
  };
  score_block<kWidth>(
      a, reader, memory, first, last, begin,
      [&](int row, int visible) {
        if (visible <= a.top_k || visible <= begin) return false;
        if constexpr (kMasked) {
          const int chunk = begin + static_cast<int>(threadIdx.x);
          const bool own = threadIdx.x < kBlockChunks && chunk < visible;
          if (__syncthreads_or(own && allowed_of(a, row)[chunk] != 0) == 0) {
            if (own) order_at(row, chunk) = kNotAllowed;
            return false;
          }
        }
        return true;
      },
      [&](int row, int chunk, float score) {
        const bool is_allowed = !kMasked || allowed_of(a, row)[chunk] != 0;
        order_at(row, chunk) = is_allowed ? order_of(score) : kNotAllowed;
      });
}

/// The same for few rows.
template <int kWidth, bool kMasked>
__global__ void __launch_bounds__(kScoreThreads, kWidth <= 128 ? 3 : 1)
    score_few_kernel(const __grid_constant__ SelectPlan p,
                     const __grid_constant__ RowReader reader) {
  extern __shared__ uint4 few_memory[];
  const SelectArgs& a = p.args;
  const int row = p.first_row + blockIdx.y;
  const int n_rows = of_step(a.step.n_rows), seq = of_step(a.step.seq + row);
  const int visible = visible_chunks(of_step(a.step.pos + row), a.ratio);
  wait_for_inputs();
  const int segment = p.segment * p.segment_size, begin = segment + blockIdx.x * kFewChunks;
  if (row >= n_rows || visible <= a.top_k || visible <= begin) return;
  std::uint32_t* const order =
      p.order + static_cast<std::int64_t>(row - p.first_row) * p.segment_size - segment;
  if constexpr (kMasked) {
    const int chunk = begin + static_cast<int>(threadIdx.x);
    const bool own = threadIdx.x < kFewChunks && chunk < visible;
    if (__syncthreads_or(own && allowed_of(a, row)[chunk] != 0) == 0) {
      if (own) order[chunk] = kNotAllowed;
      return;
    }
  }
  score_few<kWidth>(a, reader, reinterpret_cast<std::uint8_t*>(few_memory), row, seq, visible,
                    begin, [&](int chunk, float score) {
                      const bool is_allowed = !kMasked || allowed_of(a, row)[chunk] != 0;
                      order[chunk] = is_allowed ? order_of(score) : kNotAllowed;
                    });
}

template <int kThreads, bool kMasked>
__global__ void __launch_bounds__(kThreads, 1) pick_kernel(const __grid_constant__ SelectPlan p) {
  __shared__ PickMemory<kThreads> memory;
  const SelectArgs& a = p.args;
  const int row = p.first_row + blockIdx.x;
  const int n_rows = of_step(a.step.n_rows);
  const int visible = visible_chunks(of_step(a.step.pos + row), a.ratio);
  wait_for_inputs();
  if (row >= n_rows) return;
  const int begin = p.segment * p.segment_size;
  std::int32_t* const ids = a.ids + static_cast<std::int64_t>(row) * a.top_k;
  if (visible <= a.top_k) {
    if (p.segment > 0) return;
    int n = visible;
    if constexpr (kMasked) {
      n = pick_allowed(allowed_of(a, row), visible, memory, ids);
    } else {
      for (int i = threadIdx.x; i < visible; i += kThreads) ids[i] = i;
    }
    if (threadIdx.x == 0) a.count[row] = n;
    return;
  }
  if (visible <= begin) return;  // chosen with the segment before
  const int end = min(visible, begin + p.segment_size);
  const bool is_last = end == visible;
  const auto half = [&](auto* kept, int segment) {
    return kept + (static_cast<std::int64_t>(segment % 2) * p.wave_rows + blockIdx.x) * a.top_k;
  };
  Candidates c{};
  c.n_kept = min(begin, a.top_k);
  if (c.n_kept > 0) {
    c.kept_order = half(p.kept_order, p.segment);
    c.kept_ids = half(p.kept_ids, p.segment);
  }
  c.order = p.order + static_cast<std::int64_t>(blockIdx.x) * p.segment_size;
  c.first_id = begin;
  c.n = c.n_kept + end - begin;
  std::int32_t* const out_ids = is_last ? ids : half(p.kept_ids, p.segment + 1);
  std::uint32_t* const out_order = is_last ? nullptr : half(p.kept_order, p.segment + 1);
  if (!kMasked && is_last && threadIdx.x == 0) a.count[row] = a.top_k;
  const int top_k = min(a.top_k, c.n);
  int n = 0;
  if (kThreads == kFewPickThreads || c.n <= kThreads * 4) {
    n = pick<kThreads, 4, true, kMasked>(c, top_k, memory, out_ids, out_order);
  } else if (c.n <= kThreads * 16) {
    n = pick<kThreads, 16, true, kMasked>(c, top_k, memory, out_ids, out_order);
  } else {
    n = pick<kThreads, 16, false, kMasked>(c, top_k, memory, out_ids, out_order);
  }
  if (kMasked && is_last && threadIdx.x == 0) a.count[row] = n;
}

/// How rows and keys are cut.
struct Layout {
  std::int32_t wave_rows, segment, n_segments;
  std::size_t kept_order, kept_ids, end;  // places in the workspace, bytes

  explicit Layout(const SelectArgs& args) {
    const std::int32_t rows = args.step.max_rows;
    wave_rows = std::min(rows, kWaveRows);
    const std::int64_t capacity =
        std::max<std::int64_t>(4, (args.keys.n_rows + 3) / 4 * std::int64_t{4});
    segment = static_cast<std::int32_t>(
        std::min<std::int64_t>(capacity, rows <= kFewRows ? kFewSegment : kSegment));
    n_segments = static_cast<std::int32_t>((capacity + segment - 1) / segment);
    const auto wave = static_cast<std::size_t>(wave_rows);
    kept_order = wave * static_cast<std::size_t>(segment) * sizeof(std::uint32_t);
    const std::size_t kept =
        n_segments > 1 ? 2 * wave * static_cast<std::size_t>(args.top_k) * sizeof(std::uint32_t)
                       : 0;
    kept_ids = kept_order + kept;
    end = kept_ids + kept;
  }
};

template <int kWidth, bool kMasked>
cudaError_t score(const Launch& launch, const SelectPlan& plan, std::int32_t rows) {
  const SelectArgs& a = plan.args;
  const RowReader reader = row_reader(a.keys, a.d, plan.n_rot);
  const auto few_bytes = static_cast<std::size_t>(FewMemory<kWidth>(a.n_heads).end);
  if (rows <= kFewRows && plan.segment_size <= kFewSpread && a.d == kWidth && reader.by_quads &&
      few_bytes <= launch.largest_shared) {
    const auto kernel = score_few_kernel<kWidth, kMasked>;
    if (const cudaError_t error = allow_shared(kernel, few_bytes)) return error;
    return start(launch, kernel,
                 dim3(static_cast<unsigned>((plan.segment_size + kFewChunks - 1) / kFewChunks),
                      static_cast<unsigned>(rows)),
                 dim3(kScoreThreads), few_bytes, plan, reader);
  }
  const std::size_t bytes = score_bytes<kWidth>(a.n_heads);
  if (const cudaError_t error = allow_shared(score_kernel<kWidth, kMasked>, bytes)) return error;
  const int block_rows = rows > kFewRows ? kBlockRows : 1;
  return start(launch, score_kernel<kWidth, kMasked>,
               dim3(static_cast<unsigned>((plan.segment_size + kBlockChunks - 1) / kBlockChunks),
                    static_cast<unsigned>((rows + block_rows - 1) / block_rows)),
               dim3(kScoreThreads), bytes, plan, reader, block_rows);
}

template <bool kMasked>
cudaError_t select_all(const Launch& launch, const SelectArgs& args, std::int32_t n_rot) {
  const Layout layout(args);
  SelectPlan plan;
  plan.args = args;
  plan.order = reinterpret_cast<std::uint32_t*>(launch.workspace);
  plan.kept_order = reinterpret_cast<std::uint32_t*>(launch.workspace + layout.kept_order);
  plan.kept_ids = reinterpret_cast<std::int32_t*>(launch.workspace + layout.kept_ids);
  plan.segment_size = layout.segment;
  plan.wave_rows = layout.wave_rows;
  plan.n_rot = n_rot;
  for (std::int32_t first = 0; first < args.step.max_rows; first += layout.wave_rows) {
    const std::int32_t rows = std::min(layout.wave_rows, args.step.max_rows - first);
    plan.first_row = first;
    for (plan.segment = 0; plan.segment < layout.n_segments; ++plan.segment) {
      if (args.keys.n_rows > args.top_k) {
        const cudaError_t error = args.d <= 64    ? score<64, kMasked>(launch, plan, rows)
                                  : args.d <= 128 ? score<128, kMasked>(launch, plan, rows)
                                                  : score<256, kMasked>(launch, plan, rows);
        if (error != cudaSuccess) return error;
      }
      const bool few = args.step.max_rows <= kFewRows && layout.segment <= 4 * kFewPickThreads;
      const cudaError_t error =
          few ? start(launch, pick_kernel<kFewPickThreads, kMasked>,
                      dim3(static_cast<unsigned>(rows)), dim3(kFewPickThreads), 0, plan)
              : start(launch, pick_kernel<kPickThreads, kMasked>, dim3(static_cast<unsigned>(rows)),
                      dim3(kPickThreads), 0, plan);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace

std::size_t select_workspace(const SelectArgs& args) { return Layout(args).end; }

cudaError_t select(const Launch& launch, const SelectArgs& args, std::int32_t n_rot) {
  return args.allowed == nullptr ? select_all<false>(launch, args, n_rot)
                                 : select_all<true>(launch, args, n_rot);
}

}  // namespace ebb::cuda
