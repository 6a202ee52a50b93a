#include "modules/attention_csa/recorded.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>

#include "kernels/ops/ops.h"
#include "modules/mapped_files/text.h"

namespace ebb {
namespace {

constexpr char kMagic[] = "EBBSELS1";
constexpr std::uint64_t kMaxValues = std::uint64_t{1} << 28;  // 1 GiB

struct Header {
  std::array<char, 8> magic;
  std::uint32_t n_layers, n_steps, top_k;
};

}  // namespace

Result<RecordedSelections> RecordedSelections::read(const std::string& path, std::int32_t top_k) {
  const std::string shown = files::printable(path, path.size());
  const auto bad = [&shown](const char* why) {
    return make_error(Errc::invalid_argument, "[attention] selections = %s: %s", shown.c_str(),
                      why);
  };
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return make_error(Errc::not_found, "[attention] selections = %s: cannot be read",
                      shown.c_str());
  }
  Header header{};
  char bytes[8 + 12];
  if (!file.read(bytes, sizeof(bytes))) return bad("no file of selections: too short");
  std::memcpy(header.magic.data(), bytes, 8);
  std::memcpy(&header.n_layers, bytes + 8, 4);
  std::memcpy(&header.n_steps, bytes + 12, 4);
  std::memcpy(&header.top_k, bytes + 16, 4);
  if (std::memcmp(header.magic.data(), kMagic, 8) != 0) return bad("no file of selections");
  if (header.top_k != static_cast<std::uint32_t>(top_k)) {
    return make_error(Errc::incompatible,
                      "[attention] selections = %s: rows of %u chunks; the model selects %d",
                      shown.c_str(), header.top_k, top_k);
  }
  const std::uint64_t n_rows = std::uint64_t{header.n_layers} * header.n_steps;
  if (n_rows == 0 || n_rows > kMaxValues / (header.top_k + 1)) return bad("a size that cannot be");
  const std::uint64_t n_values = n_rows * (header.top_k + 1);
  file.seekg(0, std::ios::end);
  if (static_cast<std::uint64_t>(file.tellg()) != sizeof(bytes) + n_values * 4) {
    return bad("its size is not that of its header");
  }
  file.seekg(sizeof(bytes));
  RecordedSelections all;
  all.values_.resize(n_values);
  if (!file.read(reinterpret_cast<char*>(all.values_.data()),
                 static_cast<std::streamsize>(n_values * 4))) {
    return bad("cannot be read");
  }
  all.shown_path_ = shown;
  all.n_layers_ = static_cast<std::int32_t>(header.n_layers);
  all.n_steps_ = static_cast<std::int32_t>(header.n_steps);
  all.top_k_ = top_k;
  for (std::uint64_t row = 0; row < n_rows; ++row) {
    const std::int32_t n = all.values_[n_rows * header.top_k + row];
    if (n < 0 || n > top_k) return bad("a count beyond the row");
    const std::int32_t* const ids = all.values_.data() + row * header.top_k;
    if (n > 0 && ids[0] < 0) return bad("a negative chunk");
    if (std::adjacent_find(ids, ids + n, std::greater_equal<>()) != ids + n) {
      return bad("chunks that do not ascend");
    }
  }
  return all;
}

void RecordedSelections::carve(Arena& arena) {
  if (!empty()) {
    memory_ =
        arena.take<std::int32_t>(static_cast<std::int64_t>(values_.size()), "recorded selections");
  }
}

Status RecordedSelections::upload(Compute& compute, std::int64_t n_chunks) const {
  if (empty()) return ok_status();
  const auto ids_end = values_.begin() + std::int64_t{n_layers_} * n_steps_ * top_k_;
  const std::int32_t largest = *std::max_element(values_.begin(), ids_end);
  if (largest >= n_chunks) {
    return make_error(Errc::invalid_argument,
                      "[attention] selections = %s: chunk %d; max_context has %lld",
                      shown_path_.c_str(), largest, static_cast<long long>(n_chunks));
  }
  return compute.write(memory_, values_.data(), values_.size() * sizeof(values_[0]));
}

Status RecordedSelections::plan(Ops& ops, const StepView& step, std::int32_t layer,
                                std::int32_t* ids, std::int32_t* count) const {
  const std::int64_t from = std::int64_t{layer % n_layers_} * n_steps_;
  EBB_TRY(ops.pick_rows({step, memory_ + from * top_k_, n_steps_, top_k_, ids}));
  const std::int32_t* const counts = memory_ + std::int64_t{n_layers_} * n_steps_ * top_k_;
  return ops.pick_rows({step, counts + from, n_steps_, 1, count});
}

}  // namespace ebb
