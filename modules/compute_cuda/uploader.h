#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/ops/dense.h"
#include "modules/compute_cuda/handles.h"

namespace ebb::cuda {

/// Brings stored tensors to the device in pieces, through two pinned buffers: while one is copied,
/// the next is filled. Blocks are spread over planes (kernels/cuda/planes.h) on arrival. There is
/// no second copy of the model on the host.
class Uploader {
 public:
  /// Errors: device, out_of_memory.
  static Result<Uploader> create(cudaStream_t stream, std::int32_t n_sms);

  /// Fills `target` (all of the weight's bytes) with the stored blocks of `type` at `stored`. The
  /// source may be reused when it returns; the target is complete once the stream gets there.
  Status upload_blocks(DType type, const std::byte* stored, std::uint64_t bytes, std::byte* target);
  /// F32, F16 or BF16 values as f32.
  Status upload_floats(DType type, const std::byte* stored, std::int64_t count, float* target);

 private:
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;

  struct Slot {
    PinnedMemory host;
    DeviceMemory device;
    Event free;
  };
  Uploader() = default;

  /// Calls arrived(device piece, offset, bytes) for every piece, of whole units.
  template <class Arrived>
  Status for_pieces(const std::byte* stored, std::uint64_t bytes, std::uint64_t unit,
                    Arrived arrived);

  cudaStream_t stream_ = nullptr;
  Launch launch_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

}  // namespace ebb::cuda
