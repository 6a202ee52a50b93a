#include "tools/ebb/temporary.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/text.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

bool is_temporary_of(std::string_view name, std::string_view of) {
  constexpr std::string_view kEnd = ".tmp";
  if (!name.starts_with(of) || !name.ends_with(kEnd)) return false;
  if (name.size() < of.size() + 2 + kEnd.size() || name[of.size()] != '.') return false;
  name = name.substr(of.size() + 1, name.size() - of.size() - 1 - kEnd.size());
  return name.find_first_not_of("0123456789") == name.npos;
}

// What else is in it is not ours.
bool holds_only_files(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator at(folder, error);
  for (const fs::directory_iterator end; !error && at != end; at.increment(error)) {
    if (!fs::is_regular_file(at->symlink_status(error))) return false;
  }
  return !error;
}

// Whether a living process holds it.
bool remove_leftover(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return false;
  struct stat facts = {};
  const bool is_known = ::fstat(descriptor, &facts) == 0;
  const bool is_folder = is_known && S_ISDIR(facts.st_mode);
  bool is_held = false;
  if (is_folder || (is_known && S_ISREG(facts.st_mode))) {
    const bool is_free = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    is_held = !is_free && errno == EWOULDBLOCK;
    // Between opening and locking it may have got its real name.
    if (is_free && is_named(descriptor, path) && (!is_folder || holds_only_files(path))) {
      std::error_code error;
      fs::remove_all(path, error);
    }
  }
  ::close(descriptor);
  return is_held;
}

}  // namespace

std::string temporary_name(const std::string& path) {
  return fmt::format("{}.{}.tmp", path, ::getpid());
}

bool remove_leftovers(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  const std::string name = fs::path(path).filename().string();
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator at(folder.empty() ? "." : folder, error);
  for (const fs::directory_iterator end; !error && at != end; at.increment(error)) {
    if (is_temporary_of(at->path().filename().string(), name)) found.push_back(at->path());
  }
  return std::count_if(found.begin(), found.end(), remove_leftover) > 0;
}

bool hold_temporary(int descriptor, const std::string& temporary) {
  while (::flock(descriptor, LOCK_EX) != 0) {
    if (errno != EINTR) return true;  // no locks here: nobody removes it either
  }
  return is_named(descriptor, temporary);
}

Error temporary_exists(const std::string& temporary) {
  return make_error(Errc::invalid_argument,
                    "%s: there already: delete it, unless another process is writing it",
                    printable(temporary).c_str());
}

bool is_named(int descriptor, const std::string& path) {
  struct stat open = {}, named = {};
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

}  // namespace ebb::cli
