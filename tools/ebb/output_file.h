#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/api/result.h"

namespace ebb::cli {

/// A file that appears whole or not at all: written under a temporary name in the same folder,
/// synced and renamed by commit(), removed without it; if the process is killed, by the next that
/// writes a file of that name.
class OutputFile {
 public:
  /// Errors: invalid_argument for a path that cannot be written; io.
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Status write(std::span<const std::byte> bytes);
  /// At a byte of the file; what is written nowhere reads as zeros.
  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  Status commit();

 private:
  OutputFile(std::string path, std::string temporary, int descriptor);

  std::string path_, temporary_;
  int descriptor_;
};

/// All of an OutputFile at once.
Status write_file(const std::string& path, std::string_view content);

/// Files of one command, each with the option that names it; names may be empty. Refuses an output
/// that is its input or another output of it, by whatever path.   Errors: invalid_argument
Status check_outputs(const std::vector<std::pair<const char*, std::string>>& files);

/// Whether a file can be put there: better known before what it is to hold is measured than after.
/// An empty path can.
Status probe_file(const std::string& path);

/// "PATH: cannot ACTION: REASON", the reason being errno's.
Error system_error(const std::string& path, const char* action, Errc code);
/// For a path that does not open: bad input, unless the disk is to blame.
Error open_error(const std::string& path);

Status write_all(int descriptor, std::span<const std::byte> bytes, const std::string& path);
/// Makes a new or renamed name in the file's folder last through a crash.
void sync_folder_of(const std::string& path);

}  // namespace ebb::cli
