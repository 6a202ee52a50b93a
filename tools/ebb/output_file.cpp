#include "tools/ebb/output_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/text.h"
#include "tools/ebb/temporary.h"

namespace ebb::cli {
namespace {

// Absolute first: of a relative name nothing of which is there, weakly_canonical() leaves out the
// folder it starts from, so that "x" and "./x" would be two.
std::filesystem::path full_name(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string temporary, int descriptor)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(descriptor_);
}

Result<OutputFile> OutputFile::create(const std::string& name) {
  // rename() would put a file in the place of a device or a link: the first is refused, the second
  // followed.
  std::error_code error;
  const std::filesystem::file_status facts = std::filesystem::status(name, error);
  if (std::filesystem::exists(facts) && !std::filesystem::is_regular_file(facts)) {
    return make_error(Errc::invalid_argument, "%s: not a regular file", printable(name).c_str());
  }
  std::string path = name;
  if (std::filesystem::is_symlink(name, error)) {
    path = std::filesystem::weakly_canonical(name, error).string();
    if (error || std::filesystem::is_symlink(path, error)) {
      return make_error(Errc::invalid_argument, "%s: a link that leads nowhere",
                        printable(name).c_str());
    }
  }
  remove_leftovers(path);
  std::string temporary = temporary_name(path);
  for (;;) {
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0) return errno == EEXIST ? temporary_exists(temporary) : open_error(path);
    if (hold_temporary(descriptor, temporary)) {
      return OutputFile(path, std::move(temporary), descriptor);
    }
    ::close(descriptor);
  }
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  return write_all(descriptor_, bytes, temporary_);
}

Status OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<::off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(temporary_, "write", Errc::io);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return ok_status();
}

Status OutputFile::commit() {
  if (::fsync(descriptor_) != 0) return system_error(temporary_, "write", Errc::io);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return open_error(path_);
  ::close(std::exchange(descriptor_, -1));
  sync_folder_of(path_);
  return ok_status();
}

Status write_file(const std::string& path, std::string_view content) {
  EBB_ASSIGN(OutputFile file, OutputFile::create(path));
  EBB_TRY(file.write(std::as_bytes(std::span(content))));
  return file.commit();
}

Status probe_file(const std::string& path) {
  if (path.empty()) return ok_status();
  EBB_ASSIGN(const OutputFile file, OutputFile::create(path));
  return ok_status();
}

Status check_outputs(const std::vector<std::pair<const char*, std::string>>& files) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (std::size_t i = 1; i < files.size(); ++i) {
    const auto& [option, path] = files[i];
    if (path.empty()) continue;
    for (std::size_t j = 0; j < i; ++j) {
      const auto& [other, other_path] = files[j];
      if (other_path.empty()) continue;
      // A file that is not there yet is known by its name only.
      const bool is_same =
          full_name(path) == full_name(other_path) || fs::equivalent(path, other_path, ignored);
      if (!is_same) continue;
      return make_error(Errc::invalid_argument, "%s: named by %s and by %s: want another file",
                        printable(path).c_str(), other, option);
    }
  }
  return ok_status();
}

Error system_error(const std::string& path, const char* action, Errc code) {
  const std::string reason = std::generic_category().message(errno);
  return Error{code, fmt::format("{}: cannot {}: {}", printable(path), action, reason)};
}

Error open_error(const std::string& path) {
  const bool is_disk = errno == EIO || errno == ENOSPC || errno == EDQUOT;
  return system_error(path, "open for writing", is_disk ? Errc::io : Errc::invalid_argument);
}

Status write_all(int descriptor, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(path, "write", Errc::io);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return ok_status();
}

void sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace ebb::cli
