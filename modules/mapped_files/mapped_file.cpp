// The kind of file is checked before it is opened, since opening a device can act on it, and again
// on the open descriptor, since the name may lead elsewhere by then. O_NONBLOCK keeps a FIFO that
// slips in between from blocking.
#include "modules/mapped_files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>

#include "modules/mapped_files/text.h"

namespace ebb::files {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const noexcept { return number_; }

 private:
  int number_;
};

Error system_failure(const std::string& label, const char* action, int number) {
  const Errc code = number == ENOENT || number == ENOTDIR ? Errc::not_found
                    : number == ENOMEM                    ? Errc::out_of_memory
                    : number == EIO                       ? Errc::io
                                                          : Errc::invalid_argument;
  return make_error(code, "%s: cannot %s: %s", label.c_str(), action,
                    std::generic_category().message(number).c_str());
}

Status check_kind(const std::string& label, const struct stat& facts) {
  if (S_ISREG(facts.st_mode)) return ok_status();
  const char* kind = S_ISDIR(facts.st_mode)                             ? "directory"
                     : S_ISFIFO(facts.st_mode)                          ? "FIFO"
                     : S_ISSOCK(facts.st_mode)                          ? "socket"
                     : S_ISCHR(facts.st_mode) || S_ISBLK(facts.st_mode) ? "device"
                                                                        : "special file";
  return make_error(Errc::invalid_argument, "%s: not a regular file but a %s", label.c_str(), kind);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const std::string label = printable(path, path.size());
  if (path.find('\0') != std::string::npos) {
    return make_error(Errc::invalid_argument, "%s: cannot open: the path holds a NUL byte",
                      label.c_str());
  }
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return system_failure(label, "open", errno);
  EBB_TRY(check_kind(label, facts));

  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.number() < 0) return system_failure(label, "open", errno);
  if (::fstat(file.number(), &facts) != 0) return system_failure(label, "read", errno);
  EBB_TRY(check_kind(label, facts));
  if (facts.st_size <= 0) {
    return make_error(Errc::invalid_argument, "%s: the file is empty (0 bytes)", label.c_str());
  }
  const auto size = static_cast<std::uint64_t>(facts.st_size);
  if (size > std::numeric_limits<std::size_t>::max()) return system_failure(label, "map", EFBIG);
  void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (start == MAP_FAILED) return system_failure(label, "map", errno);
  return MappedFile({static_cast<const std::byte*>(start), static_cast<std::size_t>(size)});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace ebb::files
