// A directory entry is name, dimensions, type, offset in the data section. Sizes come from the
// file, so each product and sum is bounded before it is formed: dimensions multiply only while the
// result fits 2^63, blocks times their bytes are compared by division, and offset plus size is
// compared as size against what lies behind the offset. Tensors may stand in any order and leave
// gaps, but two of them never share a byte: with shared bytes one of the two entries is wrong.
#include "modules/loader_gguf/directory.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>

#include "modules/loader_gguf/names.h"

namespace ebb::gguf {
namespace {

constexpr std::uint64_t kMaxNameBytes = 63;  // 64 with the NUL that other readers append
constexpr std::uint64_t kLeastEntryBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr std::uint64_t kMaxTensors = 1 << 17;  // the largest models have some ten thousand
constexpr std::uint64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

/// Types of the format that no weight here has, to name them in messages.
const char* foreign_type_name(std::uint32_t id) noexcept {
  switch (id) {
    case 2:
      return " (Q4_0)";
    case 3:
      return " (Q4_1)";
    case 6:
      return " (Q5_0)";
    case 7:
      return " (Q5_1)";
    case 9:
      return " (Q8_1)";
    case 15:
      return " (Q8_K, for activations only)";
    case 24:
      return " (I8)";
    case 25:
      return " (I16)";
    case 27:
      return " (I64)";
    case 28:
      return " (F64)";
    case 34:
      return " (TQ1_0)";
    case 35:
      return " (TQ2_0)";
    default:
      return "";
  }
}

class DirectoryReader {
 public:
  DirectoryReader(const std::string& label, Cursor& cursor) : label_(label), cursor_(cursor) {}

  Result<std::vector<Tensor>> read(std::uint64_t n_tensors) {
    if (n_tensors > cursor_.left() / kLeastEntryBytes) {
      return bad_file(
          "{}: tensor count {} at offset 8: more than the {} bytes left in the file can "
          "hold",
          label_, n_tensors, cursor_.left());
    }
    if (n_tensors > kMaxTensors) {
      return bad_file("{}: tensor count {} at offset 8: too many, at most {}", label_, n_tensors,
                      kMaxTensors);
    }
    std::vector<Tensor> tensors;
    std::set<std::string_view> names;
    for (std::uint64_t i = 0; i < n_tensors; ++i) {
      Tensor tensor;
      tensor.offset = cursor_.position();
      EBB_ASSIGN(tensor.view.name, read_name(i));
      place_ = fmt::format("{}: tensor {} at offset {}", label_, printable(tensor.view.name),
                           tensor.offset);
      if (!names.insert(tensor.view.name).second) return bad_file("{}: duplicate tensor", place_);
      EBB_TRY(read_shape(tensor.view));
      EBB_TRY(read_type(tensor.view));
      if (!cursor_.read(tensor.data_offset)) return truncated("the data offset");
      tensors.push_back(tensor);
    }
    return tensors;
  }

 private:
  Result<std::string_view> read_name(std::uint64_t ordinal) {
    place_ =
        fmt::format("{}: tensor number {} at offset {}", label_, ordinal + 1, cursor_.position());
    return gguf::read_name(place_, kMaxNameBytes, cursor_);
  }

  Status read_shape(TensorView& view) {
    std::uint32_t n_dims = 0;
    if (!cursor_.read(n_dims)) return truncated("the number of dimensions");
    if (n_dims < 1 || n_dims > 4) {
      return bad_file("{}: {} dimensions, want 1..4", place_, n_dims);
    }
    view.n_dims = static_cast<std::int32_t>(n_dims);
    std::uint64_t n_values = 1;
    for (std::uint32_t i = 0; i < n_dims; ++i) {
      std::uint64_t extent = 0;
      if (!cursor_.read(extent)) return truncated("the shape");
      if (extent < 1 || extent > kInt64Max) {
        return bad_file("{}: dimension {} is {}, out of range 1..{}", place_, i, extent, kInt64Max);
      }
      if (n_values > kInt64Max / extent) {
        return bad_file("{}: the shape overflows: more than {} values", place_, kInt64Max);
      }
      n_values *= extent;
      view.ne[i] = static_cast<std::int64_t>(extent);
    }
    view.n_bytes = n_values;  // values until the type is known
    return ok_status();
  }

  Status read_type(TensorView& view) {
    std::uint32_t id = 0;
    if (!cursor_.read(id)) return truncated("the type");
    const DTypeTraits* traits = nullptr;
    for (const DTypeTraits& known : kDTypes) {
      if (static_cast<std::uint32_t>(known.type) == id) traits = &known;
    }
    if (traits == nullptr || traits->type == DType::q8_k) {
      return bad_file("{}: ggml type {}{} is not supported", place_, id, foreign_type_name(id));
    }
    view.type = traits->type;
    const auto block_values = static_cast<std::uint64_t>(traits->block_values);
    const auto block_bytes = static_cast<std::uint64_t>(traits->block_bytes);
    if (static_cast<std::uint64_t>(view.ne[0]) % block_values != 0) {
      return bad_file("{}: rows of {} values are not a multiple of the {} block, which has {}",
                      place_, view.ne[0], traits->name, block_values);
    }
    const std::uint64_t n_blocks = view.n_bytes / block_values;
    if (n_blocks > kInt64Max / block_bytes) {
      return bad_file("{}: the shape overflows: more than {} bytes", place_, kInt64Max);
    }
    view.n_bytes = n_blocks * block_bytes;
    return ok_status();
  }

  Error truncated(const char* what) const { return gguf::truncated(place_, what, cursor_); }

  const std::string& label_;
  Cursor& cursor_;
  std::string place_;
};

/// Turns offsets in the data section into offsets in the file, and checks that the data is there.
Status place_data(const std::string& label, std::span<const std::byte> bytes,
                  std::uint64_t data_start, std::uint64_t alignment, std::vector<Tensor>& tensors) {
  const std::uint64_t available = data_start < bytes.size() ? bytes.size() - data_start : 0;
  for (Tensor& tensor : tensors) {
    const std::uint64_t start = tensor.data_offset;
    const std::uint64_t size = tensor.view.n_bytes;
    const auto place = [&] {
      return fmt::format("{}: tensor {} at offset {}", label, printable(tensor.view.name),
                         tensor.offset);
    };
    if (start % alignment != 0) {
      return bad_file("{}: data offset {} is not a multiple of the alignment {}", place(), start,
                      alignment);
    }
    if (start > available || size > available - start) {
      return bad_file(
          "{}: {} bytes of data at {} of the data section (which starts at {}) lie beyond "
          "the end of the file, {} bytes",
          place(), size, start, data_start, bytes.size());
    }
    tensor.data_offset = data_start + start;
    tensor.view.data = bytes.data() + tensor.data_offset;
  }
  return ok_status();
}

Status check_disjoint(const std::string& label, const std::vector<Tensor>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return tensors[a].data_offset < tensors[b].data_offset;
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Tensor& before = tensors[order[i - 1]];
    const Tensor& after = tensors[order[i]];
    if (before.view.n_bytes > after.data_offset - before.data_offset) {
      return bad_file("{}: its data overlaps that of tensor {}, {} bytes at {}",
                      tensor_place(label, after.view.name, after.offset, after.data_offset),
                      printable(before.view.name), before.view.n_bytes, before.data_offset);
    }
  }
  return ok_status();
}

}  // namespace

Result<std::vector<Tensor>> read_directory(const std::string& label, Cursor& cursor,
                                           std::span<const std::byte> bytes,
                                           std::uint64_t n_tensors, std::uint64_t alignment) {
  std::vector<Tensor> tensors;
  EBB_ASSIGN(tensors, DirectoryReader(label, cursor).read(n_tensors));
  const std::uint64_t data_start = (cursor.position() + alignment - 1) / alignment * alignment;
  EBB_TRY(place_data(label, bytes, data_start, alignment, tensors));
  EBB_TRY(check_disjoint(label, tensors));
  return tensors;
}

}  // namespace ebb::gguf
