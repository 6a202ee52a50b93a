#include "tools/ebb/output_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/text.h"
#include "tools/ebb/output_file.h"

namespace ebb::cli {

namespace fs = std::filesystem;

Result<OutputFolder> OutputFolder::create(const std::string& name) {
  std::error_code error;
  // A slash at the end would make the temporary folder one inside.
  std::string path = name;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path.empty()) return make_error(Errc::invalid_argument, "the output folder has no name");
  const std::string last = fs::path(path).filename().string();
  if (last == "." || last == "..") path = fs::absolute(path).lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const fs::file_status facts = fs::symlink_status(path, error);
  if (fs::exists(facts) && !(fs::is_directory(facts) && fs::is_empty(path, error) && !error)) {
    return make_error(Errc::invalid_argument,
                      "%s: exists%s: name another folder, or remove it first",
                      printable(path).c_str(), fs::is_directory(facts) ? " and is not empty" : "");
  }
  std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  if (!fs::create_directory(temporary, error) || error) {
    errno = error ? error.value() : EEXIST;
    return system_error(temporary, "make the folder", Errc::invalid_argument);
  }
  return OutputFolder(std::move(path), std::move(temporary));
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, {})) {}

OutputFolder::~OutputFolder() {
  if (temporary_.empty()) return;
  std::error_code error;
  fs::remove_all(temporary_, error);
}

Status OutputFolder::commit() {
  const std::string temporary = std::exchange(temporary_, {});
  if (std::rename(temporary.c_str(), path_.c_str()) != 0) {
    const Error why = system_error(path_, "put the folder there", Errc::io);
    return Error{why.code, fmt::format("{}; it is {}", why.message, printable(temporary))};
  }
  sync_folder_of(path_);
  return ok_status();
}

}  // namespace ebb::cli
