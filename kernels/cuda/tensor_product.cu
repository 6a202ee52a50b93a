#include <type_traits>

#include "kernels/cuda/tensor_iq2.cuh"
#include "kernels/cuda/tensor_product.h"

namespace ebb::cuda {

// Compiled one file per type, since they are large.
template <DType kType>
cudaError_t launch_tensor(const Launch& launch, const TensorProduct& p, std::int64_t n_pieces,
                          std::int32_t piece_rows);
namespace {

template <DType kType>
using Type = std::integral_constant<DType, kType>;

/// Calls run with a type that has a codec.
template <class Run>
auto with_tensor_type(DType type, Run run) {
  switch (type) {
    case DType::f16:
      return run(Type<DType::f16>{});
    case DType::mxfp4:
      return run(Type<DType::mxfp4>{});
    case DType::iq2_xxs:
      return run(Type<DType::iq2_xxs>{});
    case DType::q2_k:
      return run(Type<DType::q2_k>{});
    case DType::q4_k:
      return run(Type<DType::q4_k>{});
    case DType::q6_k:
      return run(Type<DType::q6_k>{});
    default:
      return run(Type<DType::q8_0>{});
  }
}

}  // namespace

bool suits_tensor_units(const Weight& weight) {
  return has_tensor_codec(weight.type) && weight.n_in % kOrderBlock == 0 &&
         weight.n_out >= kTileRows;
}

bool on_tensor_units(const Launch& launch, const Weight& weight) {
  return launch.tensor_units && suits_tensor_units(weight);
}

bool norms_input(DType type) {
  // Kernels with tables have blocks of another size, which would add in another order.
  return with_tensor_type(type, [](auto t) { return !TensorCodec<t.value>::kTables; });
}

Order tensor_order(DType type) {
  return with_tensor_type(type, [](auto t) -> Order { return TileCodec<t.value>::kOrder; });
}

std::int32_t tensor_piece_rows(DType type, std::int64_t max_rows, std::int32_t columns_per_vector) {
  const std::int64_t columns = max_rows * columns_per_vector;
  // Up to twice kStreamColumns, streaming the weights twice beats a tile that is half empty.
  if (columns > 2 * kStreamColumns) return kTileColumns / columns_per_vector;
  // Two sets of columns and the stages of these types are more than the shared memory.
  const bool is_narrow = columns <= kFewColumns || type == DType::iq2_xxs || type == DType::q6_k;
  return (is_narrow ? kFewColumns : kStreamColumns) / columns_per_vector;
}

cudaError_t tensor_product(const Launch& launch, DType type, const TensorProduct& p,
                           std::int64_t n_pieces, std::int32_t piece_rows) {
  return with_tensor_type(
      type, [&](auto t) { return launch_tensor<t.value>(launch, p, n_pieces, piece_rows); });
}

}  // namespace ebb::cuda
