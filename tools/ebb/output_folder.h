#pragma once

#include <string>

#include "core/api/result.h"

namespace ebb::cli {

/// A folder that appears whole or not at all: filled under a temporary name beside its own, renamed
/// by commit(), removed without it; if the process is killed, by the next that makes a folder of
/// that name. Never takes the place of anything but an empty folder.
class OutputFolder {
 public:
  /// A link to a folder is followed. Errors: invalid_argument if there is something at `path`, if
  /// another process is making it, or if it cannot be made; io.
  static Result<OutputFolder> create(const std::string& path);
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();

  /// Where a file of this name is to be written before commit().
  std::string file(const std::string& name) const { return temporary_ + '/' + name; }
  /// On an error, what was written is kept, and the message says where.
  Status commit();

 private:
  OutputFolder(std::string path, std::string temporary, int descriptor)
      : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

  std::string path_, temporary_;
  int descriptor_;  // of the folder: its lock says that it is no leftover
};

}  // namespace ebb::cli
