#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/api/result.h"

namespace ebb::files {

/// A regular file mapped read-only into memory. Move-only; the bytes live as long as the object and
/// keep their address when it moves. The file must not be truncated meanwhile.
class MappedFile {
 public:
  /// Maps `path`. Never blocks: a FIFO or device is refused, not opened for reading.
  /// Errors: not_found if there is no such file; invalid_argument if it is empty, not a regular
  /// file or not readable; out_of_memory or io if the system cannot map it. Messages begin with the
  /// path.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace ebb::files
