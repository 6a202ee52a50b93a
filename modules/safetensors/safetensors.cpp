// A file is the length of the header (8 bytes, little-endian), the header, and the data of all
// tensors without gaps.

#include "modules/safetensors/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>

#include "modules/mapped_files/text.h"
#include "modules/safetensors/header.h"

namespace ebb::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

/// Entries must cover the data from its first byte to its last, one after another.
Status check_cover(const std::string& label, const std::vector<Entry>& entries,
                   std::uint64_t n_bytes) {
  std::uint64_t at = 0;
  for (const Entry& entry : entries) {
    const std::string place = tensor_place(label, entry.tensor.name);
    if (entry.end > n_bytes) {
      return bad_file("{}: its data end at {}, but the file holds {} bytes of data", place,
                      entry.end, n_bytes);
    }
    if (entry.begin < at) {
      return bad_file("{}: its data begin at {}, where those of another tensor go on to {}", place,
                      entry.begin, at);
    }
    if (entry.begin > at) {
      return bad_file("{}: its data begin at {}; bytes {}..{} belong to no tensor", place,
                      entry.begin, at, entry.begin - 1);
    }
    at = entry.end;
  }
  if (at != n_bytes) {
    return bad_file("{}: the tensors end at {}, but the file holds {} bytes of data", label, at,
                    n_bytes);
  }
  return ok_status();
}

}  // namespace

std::int64_t Tensor::n_values() const noexcept {
  // Beside an extent of 0 the others may be of any size.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

bool begins_like_one(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() <= kLengthBytes) return false;
  std::uint64_t n_header = 0;
  std::memcpy(&n_header, bytes.data(), kLengthBytes);
  return n_header <= bytes.size() - kLengthBytes && bytes[kLengthBytes] == std::byte{'{'};
}

std::string show_shape(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  return text + "]";
}

Result<Contents> parse(const std::string& label, std::span<const std::byte> bytes) {
  if (bytes.size() < kLengthBytes) {
    return bad_file("{}: not a safetensors file: {} bytes, want 8 or more", label, bytes.size());
  }
  std::uint64_t n_header = 0;
  std::memcpy(&n_header, bytes.data(), kLengthBytes);
  const std::uint64_t n_rest = bytes.size() - kLengthBytes;
  if (n_header > kMaxHeaderBytes) {
    return bad_file("{}: not a safetensors file: a header of {} bytes, want at most {}", label,
                    n_header, kMaxHeaderBytes);
  }
  if (n_header > n_rest) {
    return bad_file("{}: truncated: a header of {} bytes, but {} follow its length", label,
                    n_header, n_rest);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                              static_cast<std::size_t>(n_header));
  if (!text.starts_with('{')) {
    return bad_file("{}: not a safetensors file: the header does not begin with {{", label);
  }
  EBB_ASSIGN(Header header, read_header(label, text));
  std::vector<Entry>& entries = header.entries;
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + text.size());
  EBB_TRY(check_cover(label, entries, data.size()));

  Contents contents;
  contents.metadata = std::move(header.metadata);
  contents.tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    Tensor& tensor = contents.tensors.emplace_back(std::move(entry.tensor));
    tensor.offset = kLengthBytes + n_header + entry.begin;
    tensor.bytes = data.subspan(entry.begin, entry.end - entry.begin);
  }
  return contents;
}

Result<File> File::open(const std::string& path) noexcept {
  try {
    EBB_ASSIGN(files::MappedFile mapped, files::MappedFile::open(path));
    File file(std::move(mapped));
    file.label_ = files::printable(path, std::numeric_limits<std::size_t>::max());
    EBB_ASSIGN(file.contents_, parse(file.label_, file.file_.bytes()));
    const std::vector<Tensor>& tensors = file.contents_.tensors;
    file.by_name_.resize(tensors.size());
    std::iota(file.by_name_.begin(), file.by_name_.end(), 0U);
    std::sort(
        file.by_name_.begin(), file.by_name_.end(),
        [&tensors](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
    return file;
  } catch (const std::bad_alloc&) {
    return Error{Errc::out_of_memory, "no memory for the header of a safetensors file"};
  }
}

const Tensor* File::find(std::string_view name) const noexcept {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [this](std::uint32_t place, std::string_view wanted) {
                                        return contents_.tensors[place].name < wanted;
                                      });
  if (found == by_name_.end() || contents_.tensors[*found].name != name) return nullptr;
  return &contents_.tensors[*found];
}

std::string File::where(std::string_view name) const { return tensor_place(label_, name); }

Result<TensorView> File::view(std::string_view name, std::span<const std::int64_t> shape) const {
  const Tensor* const tensor = find(name);
  if (tensor == nullptr) return Error{Errc::not_found, where(name) + ": not in the file"};
  if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
    return Error{Errc::incompatible, where(name) + ": shape " + show_shape(tensor->shape) +
                                         ", want " + show_shape(shape)};
  }
  TensorView view;
  EBB_ASSERT(!shape.empty() && shape.size() <= view.ne.size());
  const std::pair<std::string_view, DType> types[] = {
      {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16}};
  const auto* const type = std::find_if(std::begin(types), std::end(types), [&](const auto& known) {
    return known.first == tensor->type;
  });
  if (type == std::end(types)) {
    return Error{Errc::incompatible,
                 where(name) + ": type " + std::string(tensor->type) + ", want F32, F16 or BF16"};
  }
  view.name = tensor->name;
  view.type = type->second;
  view.n_dims = static_cast<std::int32_t>(shape.size());
  std::reverse_copy(shape.begin(), shape.end(), view.ne.begin());
  view.data = tensor->bytes.data();
  view.n_bytes = tensor->bytes.size();
  return view;
}

}  // namespace ebb::safetensors
