// Parts of one type that go the same way, on the matrix units or on the arithmetic units, are one
// launch. Activations are split into columns first, unless there is one row: then every block of
// the product splits it for itself, which takes less time than a kernel.

#include <algorithm>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_plain.h"
#include "kernels/cuda/norm.h"
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

/// All but the columns, and the pieces of a step of more rows.
TensorProduct product_of(const Launch& launch, const MatmulArgs& args, Precision precision) {
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
  p.columns.per_vector = columns_per_vector(precision);
  p.pieces.n_rows = args.n_rows;
  p.pieces.vector_stride = args.n_groups;
  p.pieces.place_stride = args.n_groups;
  return p;
}

cudaError_t tensor_matmul(const Launch& launch, const MatmulArgs& args, Precision precision,
                          const RmsNormArgs* norm) {
  const Weight& weight = args.parts[0].weight;
  TensorProduct p = product_of(launch, args, precision);
  if (norm != nullptr) {
    p.x = norm->x;
    p.norm = {norm->weight, norm->y, norm->eps};
  }
  const std::int64_t n_vectors = std::int64_t{args.max_rows} * args.n_groups;
  if (!own_split(args)) {
    p.columns = columns_at(launch.workspace, n_vectors, weight.n_in, precision);
    const Split split{tensor_order(weight.type), {args.n_groups, 0, args.n_groups}, p.columns};
    const cudaError_t error =
        split_columns(launch, args.x, p.n_in, args.n_rows, args.max_rows, &split);
    if (error != cudaSuccess) return error;
  }
  const std::int32_t rows = tensor_piece_rows(weight.type, args.max_rows, p.columns.per_vector);
  p.pieces.rows = rows;
  p.pieces.n_ranges = (args.max_rows + rows - 1) / rows;
  return tensor_product(launch, weight.type, p, std::int64_t{p.pieces.n_ranges} * args.n_groups,
                        std::min(rows, args.max_rows));
}

}  // namespace

std::size_t matmul_workspace(const MatmulArgs& args, Precision precision) {
  bool any = false;
  for (std::int32_t i = 0; i < args.n_parts; ++i) any |= suits_tensor_units(one_group(args, i));
  if (!any || own_split(args)) return 0;
  return columns_bytes(std::int64_t{args.max_rows} * args.n_groups, args.parts[0].weight.n_in,
                       precision_of(args, precision));
}

bool matmul_norms(const MatmulArgs& args, const RmsNormArgs& norm) {
  const DType type = args.parts[0].weight.type;
  bool all = args.max_rows == 1 && args.n_groups == 1 && own_split(args) && norms_input(type) &&
             norm.y == args.x && norm.x != norm.y && norm.d == args.parts[0].weight.n_in &&
             norm.d <= 4 * kNormThreads && norm.n_rows == args.n_rows &&
             norm.max_rows == args.max_rows;
  for (std::int32_t i = 0; i < args.n_parts; ++i) {
    const Weight& weight = args.parts[static_cast<std::size_t>(i)].weight;
    all = all && weight.type == type && suits_tensor_units(weight);
  }
  return all;
}

cudaError_t matmul(const Launch& launch, const MatmulArgs& args, Precision precision,
                   const RmsNormArgs* norm) {
  if (norm != nullptr && !launch.tensor_units) {
    if (const cudaError_t error = rms_norm(launch, *norm)) return error;
    norm = nullptr;
  }
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
    const cudaError_t error = on_tensor
                                  ? tensor_matmul(launch, same, precision_of(args, precision), norm)
                                  : matmul_plain(launch, same);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

bool matmul_pairs(const MatmulArgs& first, const MatmulArgs& second) {
  const auto suits = [](const MatmulArgs& args, DType type) {
    bool all = args.max_rows == 1 && args.n_groups == 1 && !args.exact && own_split(args);
    for (std::int32_t i = 0; i < args.n_parts; ++i) {
      const Weight& weight = args.parts[static_cast<std::size_t>(i)].weight;
      all = all && weight.type == type && suits_tensor_units(weight);
    }
    return all;
  };
  return first.x == second.x && first.n_rows == second.n_rows && suits(first, DType::q8_0) &&
         suits(second, DType::f16);
}

cudaError_t matmul_pair(const Launch& launch, const MatmulArgs& first, const MatmulArgs& second,
                        Precision precision) {
  if (launch.tensor_units) {
    return tensor_products(launch, product_of(launch, second, precision),
                           product_of(launch, first, precision));
  }
  if (const cudaError_t error = matmul(launch, first, precision)) return error;
  return matmul(launch, second, precision);
}

}  // namespace ebb::cuda
