#include "modules/compute_cuda/uploader.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/cuda/planes.h"

namespace ebb::cuda {
namespace {

/// One core cannot fill a pinned buffer as fast as the link empties it.
void copy_on_all_cores(std::byte* target, const std::byte* source, std::uint64_t bytes) {
  constexpr std::uint64_t kShare = std::uint64_t{4} << 20;
  const std::uint64_t wanted = std::min<std::uint64_t>(8, (bytes + kShare - 1) / kShare);
  const std::uint64_t n = std::max<std::uint64_t>(
      1, std::min<std::uint64_t>(wanted, std::thread::hardware_concurrency()));
  std::vector<std::thread> others;
  const auto part = [&](std::uint64_t i) {
    const std::uint64_t begin = bytes * i / n, end = bytes * (i + 1) / n;
    std::memcpy(target + begin, source + begin, end - begin);
  };
  for (std::uint64_t i = 1; i < n; ++i) others.emplace_back(part, i);
  part(0);
  for (std::thread& other : others) other.join();
}

}  // namespace

Result<Uploader> Uploader::create(cudaStream_t stream, std::int32_t n_sms) {
  Uploader uploader;
  uploader.stream_ = stream;
  uploader.launch_.stream = stream;
  uploader.launch_.n_sms = n_sms;
  for (Slot& slot : uploader.slots_) {
    EBB_ASSIGN(slot.host, new_pinned_memory(kPieceBytes));
    EBB_ASSIGN(slot.device, new_device_memory(kPieceBytes, "memory for uploads"));
    EBB_ASSIGN(slot.free, new_event());
  }
  return uploader;
}

template <class Arrived>
Status Uploader::for_pieces(const std::byte* stored, std::uint64_t bytes, std::uint64_t unit,
                            Arrived arrived) {
  const std::uint64_t most = kPieceBytes / unit * unit;
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t n = std::min(most, bytes - at);
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    EBB_TRY(check(cudaEventSynchronize(slot.free.get()), "waiting for an upload"));
    copy_on_all_cores(slot.host.get(), stored + at, n);
    EBB_TRY(check(
        cudaMemcpyAsync(slot.device.get(), slot.host.get(), n, cudaMemcpyHostToDevice, stream_),
        "uploading"));
    EBB_TRY(check(arrived(slot.device.get(), at, n), "spreading blocks"));
    EBB_TRY(check(cudaEventRecord(slot.free.get(), stream_), "cudaEventRecord"));
    at += n;
  }
  return ok_status();
}

Status Uploader::upload_blocks(DType type, const std::byte* stored, std::uint64_t bytes,
                               std::byte* target) {
  const auto block = static_cast<std::uint64_t>(dtype_traits(type)->block_bytes);
  const bool plain = block_fields(type).n_fields == 1;
  return for_pieces(
      stored, bytes, block, [&](const std::byte* piece, std::uint64_t at, std::uint64_t n) {
        if (plain) {
          return cudaMemcpyAsync(target + at, piece, n, cudaMemcpyDeviceToDevice, stream_);
        }
        return spread_blocks(launch_, type, piece, static_cast<std::int64_t>(n / block), target,
                             static_cast<std::int64_t>(at / block),
                             static_cast<std::int64_t>(bytes / block));
      });
}

Status Uploader::upload_floats(DType type, const std::byte* stored, std::int64_t count,
                               float* target) {
  const std::uint64_t size = type == DType::f32 ? 4 : 2;
  return for_pieces(stored, static_cast<std::uint64_t>(count) * size, size,
                    [&](const std::byte* piece, std::uint64_t at, std::uint64_t n) {
                      float* const place = target + at / size;
                      if (type == DType::f32) {
                        return cudaMemcpyAsync(place, piece, n, cudaMemcpyDeviceToDevice, stream_);
                      }
                      return widen_floats(launch_, type, piece, static_cast<std::int64_t>(n / size),
                                          place);
                    });
}

}  // namespace ebb::cuda
