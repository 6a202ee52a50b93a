#include "tools/ebb/output_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/text.h"
#include "tools/ebb/output_file.h"
#include "tools/ebb/temporary.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

// The place itself: without links, dots and slashes at the end, for the temporary folder to be
// beside it.
std::string place_of(const std::string& name) {
  std::error_code error;
  std::string path = name;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::string last = fs::path(path).filename().string();
  if (last == "." || last == "..") {
    const std::string full = fs::absolute(path, error).lexically_normal().string();
    if (!error) path = full;
  }
  if (fs::is_symlink(path, error)) {
    const std::string target = fs::weakly_canonical(path, error).string();
    if (!error) path = target;
  }
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// What is mounted there cannot be replaced by a folder beside it.
bool is_mount(const std::string& folder) {
  struct stat own = {}, above = {};
  return ::stat(folder.c_str(), &own) == 0 && ::stat((folder + "/..").c_str(), &above) == 0 &&
         (own.st_dev != above.st_dev || own.st_ino == above.st_ino);
}

Status check_place(const std::string& path) {
  const auto refuse = [&](const char* why) {
    return make_error(Errc::invalid_argument, "%s: %s", printable(path).c_str(), why);
  };
  std::error_code error;
  const fs::file_status facts = fs::symlink_status(path, error);
  if (!fs::exists(facts)) return ok_status();
  if (!fs::is_directory(facts)) return refuse("exists: name another folder, or remove it first");
  const bool is_empty = fs::is_empty(path, error);
  if (error) return Error{Errc::invalid_argument, printable(path) + ": " + error.message()};
  if (!is_empty) return refuse("exists and is not empty: name another folder, or remove it first");
  if (is_mount(path)) return refuse("a file system of its own: name a folder in it");
  // Its shell would stay in the folder that was there before, and see nothing.
  if (fs::equivalent(path, ".", error))
    return refuse("the command runs in it: name a folder in it");
  return ok_status();
}

}  // namespace

Result<OutputFolder> OutputFolder::create(const std::string& name) {
  if (name.empty()) return make_error(Errc::invalid_argument, "the output folder has no name");
  std::string path = place_of(name);
  EBB_TRY(check_place(path));
  if (remove_leftovers(path)) {
    return make_error(Errc::invalid_argument, "%s: another process is writing it",
                      printable(path).c_str());
  }
  std::string temporary = temporary_name(path);
  for (;;) {
    if (::mkdir(temporary.c_str(), 0777) != 0) {
      if (errno == EEXIST) return temporary_exists(temporary);
      return system_error(temporary, "make the folder", Errc::invalid_argument);
    }
    const int descriptor = ::open(temporary.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor >= 0 && hold_temporary(descriptor, temporary)) {
      return OutputFolder(std::move(path), std::move(temporary), descriptor);
    }
    if (descriptor < 0 && errno != ENOENT) {
      const Error why = system_error(temporary, "open the folder", Errc::io);
      ::rmdir(temporary.c_str());
      return why;
    }
    if (descriptor >= 0) ::close(descriptor);
  }
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFolder::~OutputFolder() {
  std::error_code error;
  if (!temporary_.empty()) fs::remove_all(temporary_, error);
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status OutputFolder::commit() {
  const std::string temporary = std::exchange(temporary_, {});
  if (std::rename(temporary.c_str(), path_.c_str()) != 0) {
    const Error why = system_error(path_, "put the folder there", Errc::io);
    // Under a name that nobody takes for a leftover.
    std::string kept = fmt::format("{}.{}", path_, ::getpid());
    if (std::rename(temporary.c_str(), kept.c_str()) != 0) kept = temporary;
    return Error{why.code, fmt::format("{}; it is {}", why.message, printable(kept))};
  }
  sync_folder_of(path_);
  return ok_status();
}

}  // namespace ebb::cli
