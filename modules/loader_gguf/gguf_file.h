#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/api/loader.h"

namespace ebb::gguf {

/// One metadata entry of a file.
struct Key {
  std::string name;
  MetaValue value;
  std::uint64_t offset = 0;  ///< of the entry, in bytes from the start of the file
};

/// One entry of the tensor directory.
struct Tensor {
  TensorView view;                ///< name and data point into the file's bytes
  std::uint64_t offset = 0;       ///< of the directory entry, from the start of the file
  std::uint64_t data_offset = 0;  ///< of the tensor's data, from the start of the file
};

/// What a GGUF file (or one part of a split one) holds, checked.
struct Contents {
  std::vector<Key> keys;              ///< in file order, names unique
  std::vector<Tensor> tensors;        ///< in file order, names unique, data whole and disjoint
  std::uint64_t directory_bytes = 0;  ///< header, metadata and directory: the bytes before padding
  std::uint64_t data_bytes = 0;       ///< of all tensors, without padding

  const Key* find(std::string_view name) const noexcept;
};

/// Parses GGUF version 3, little-endian. `label` begins every message (the path, printable); the
/// result borrows from `bytes`.
/// Integer arrays come as int64_t; elements of a u64 array above INT64_MAX wrap to negative values,
/// which no range check lets through.
/// Errors: invalid_argument with file, key or tensor, byte offset and defect. Memory used is
/// bounded by the size of the metadata and directory, and never by a count that the file merely
/// claims. Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
Result<Contents> parse(const std::string& label, std::span<const std::byte> bytes);

}  // namespace ebb::gguf
