#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/api/result.h"
#include "core/api/types.h"
#include "modules/mapped_files/mapped_file.h"

namespace ebb::safetensors {

struct Tensor {
  std::string name;
  std::string_view type;             ///< as the format spells it: "F32", "BF16"
  std::vector<std::int64_t> shape;   ///< outermost dimension first; empty: a single value
  std::uint64_t offset = 0;          ///< of the data, from the start of the file
  std::span<const std::byte> bytes;  ///< the data, in the file's memory

  std::int64_t n_values() const noexcept;
};

/// What a file holds, checked.
struct Contents {
  std::vector<std::pair<std::string, std::string>> metadata;  ///< in file order, keys unique
  /// In the order of their data, which follow one another without gap or overlap; names unique.
  std::vector<Tensor> tensors;
};

/// Parses a whole file. `label` begins every message (the path, printable); the tensors' bytes
/// borrow from `bytes`.
/// Errors: invalid_argument with file, tensor and defect. Memory used is a few times the header's
/// size, and never follows a number that the file merely claims. May throw std::bad_alloc.
/// Source: https://github.com/huggingface/safetensors, "Format"
Result<Contents> parse(const std::string& label, std::span<const std::byte> bytes);

/// Whether a file that begins so can be one: a length that fits, and an opening brace.
bool begins_like_one(std::span<const std::byte> bytes) noexcept;

/// Dimensions as messages show them: "[2048, 4096]".
std::string show_shape(std::span<const std::int64_t> shape);

/// A .safetensors file mapped into memory. Move-only; whatever it returns lives as long as it.
class File {
 public:
  /// Errors: as files::MappedFile::open and parse; out_of_memory.
  static Result<File> open(const std::string& path) noexcept;

  /// The path, printable.
  const std::string& label() const noexcept { return label_; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const noexcept {
    return contents_.metadata;
  }
  std::span<const Tensor> tensors() const noexcept { return contents_.tensors; }
  const Tensor* find(std::string_view name) const noexcept;
  /// How a message about a tensor begins: "scorers.safetensors: tensor wq_a.weight".
  std::string where(std::string_view name) const;
  /// The tensor of that name for Compute's imports; it must be of exactly this shape, and F32, F16
  /// or BF16. Errors: not_found, incompatible; they name file, tensor, what it is and what is
  /// wanted.
  Result<TensorView> view(std::string_view name, std::span<const std::int64_t> shape) const;

 private:
  explicit File(files::MappedFile file) : file_(std::move(file)) {}

  files::MappedFile file_;
  std::string label_;
  Contents contents_;
  std::vector<std::uint32_t> by_name_;  // places in contents_.tensors, names ascending
};

}  // namespace ebb::safetensors
