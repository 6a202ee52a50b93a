// Parts of one type that go the same way, on the matrix units or on the arithmetic units, are one
// launch. Activations are split into columns first, unless there is one row: then every block of
// the product splits it for itself, which takes less time than a kernel.

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_plain.h"
#include "kernels/cuda/tensor_product.h"

namespace ebb::cuda {
namespace {

/// Whether blocks split the activations of a step for themselves.
bool own_split(const MatmulArgs& args) {
  return args.max_rows == 1 && args.parts[0].weight.n_in <= kMaxOwnSplit;
}

Precision precision_of(const MatmulArgs& args, Precision precision) {
  return args.exact ? Precision::exact : precision;
}

Weight one_group(const MatmulArgs& args, std::int32_t part) {
  Weight weight = args.parts[static_cast<std::size_t>(part)].weight;
  weight.n_out /= args.n_groups;
  return weight;
}

cudaError_t tensor_matmul(const Launch& launch, const MatmulArgs& args, Precision precision) {
  const Weight& weight = args.parts[0].weight;
  TensorProduct p;
  p.x = args.x;
  p.grid_iq2 = launch.grid_iq2;
  p.n_in = static_cast<std::int32_t>(weight.n_in);
  p.n_parts = args.n_parts;
  for (std::int32_t i = 0; i < args.n_parts; ++i) {
    const MatmulPart& part = args.parts[static_cast<std::size_t>(i)];
    p.parts[i] = {planes_of(part.weight),
                  {},
                  part.y,
                  static_cast<std::int32_t>(part.weight.n_out / args.n_groups),
                  0};
  }
  const std::int32_t per_vector = columns_per_vector(precision);
  const std::int64_t n_vectors = std::int64_t{args.max_rows} * args.n_groups;
  p.columns.per_vector = per_vector;
  if (!own_split(args)) {
    p.columns = columns_at(launch.workspace, n_vectors, weight.n_in, precision);
    const cudaError_t error =
        split_columns(launch, args.x, p.n_in, tensor_order(weight.type), args.n_rows, args.max_rows,
                      {args.n_groups, 0, args.n_groups}, p.columns);
    if (error != cudaSuccess) return error;
  }
  const std::int32_t rows = tensor_piece_rows(weight.type, args.max_rows, per_vector);
  p.pieces.n_rows = args.n_rows;
  p.pieces.rows = rows;
  p.pieces.n_ranges = (args.max_rows + rows - 1) / rows;
  p.pieces.vector_stride = args.n_groups;
  p.pieces.place_stride = args.n_groups;
  return tensor_product(launch, weight.type, p, std::int64_t{p.pieces.n_ranges} * args.n_groups,
                        rows);
}

}  // namespace

std::size_t matmul_workspace(const MatmulArgs& args, Precision precision) {
  bool any = false;
  for (std::int32_t i = 0; i < args.n_parts; ++i) any |= suits_tensor_units(one_group(args, i));
  if (!any || own_split(args)) return 0;
  return columns_bytes(std::int64_t{args.max_rows} * args.n_groups, args.parts[0].weight.n_in,
                       precision_of(args, precision));
}

cudaError_t matmul(const Launch& launch, const MatmulArgs& args, Precision precision) {
  bool done[6] = {};
  for (std::int32_t first = 0; first < args.n_parts; ++first) {
    if (done[first]) continue;
    const DType type = args.parts[static_cast<std::size_t>(first)].weight.type;
    const bool on_tensor = on_tensor_units(launch, one_group(args, first));
    MatmulArgs same = args;
    same.n_parts = 0;
    for (std::int32_t i = first; i < args.n_parts; ++i) {
      const MatmulPart& part = args.parts[static_cast<std::size_t>(i)];
      if (part.weight.type != type || on_tensor_units(launch, one_group(args, i)) != on_tensor) {
        continue;
      }
      done[i] = true;
      same.parts[static_cast<std::size_t>(same.n_parts++)] = part;
    }
    const cudaError_t error = on_tensor ? tensor_matmul(launch, same, precision_of(args, precision))
                                        : matmul_plain(launch, same);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace ebb::cuda
