#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tools/ebb/output_file.h"

namespace ebb::cli {

/// One tensor of a file to be written.
struct TensorPlan {
  std::string name;
  const char* type = "F32";  ///< F32, BF16, I32 or I64, as safetensors spells them
  std::vector<std::int64_t> shape;

  std::int64_t bytes() const;
};

/// A .safetensors file whose sizes are known before its values: tensors are written piece by piece,
/// in any order, so that a large one never stands in memory. Appears whole or not at all.
class TensorFile {
 public:
  /// `about` goes into the file's __metadata__: texts by name. Errors: as OutputFile::create.
  static Result<TensorFile> create(const std::string& path, const std::vector<TensorPlan>& tensors,
                                   const nlohmann::ordered_json& about);

  /// `offset` in bytes from the start of tensors[i], which must hold the piece.
  Status write(std::size_t i, std::int64_t offset, std::span<const std::byte> bytes);
  Status commit() { return file_.commit(); }

 private:
  explicit TensorFile(OutputFile file) : file_(std::move(file)) {}

  OutputFile file_;
  std::vector<std::int64_t> begin_, bytes_;  // of each tensor
};

}  // namespace ebb::cli
