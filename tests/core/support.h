#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "core/options_toml.h"

namespace ebb::test {

/// A fresh folder, removed at the end.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ebb_test_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string operator/(std::string_view name) const { return (path_ / name).string(); }
  /// Writes a file, and its folder if need be; returns its path.
  std::string write(std::string_view name, std::string_view text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

/// The message of a failure without the folder's name, "" for success.
template <class T>
std::string message(const Result<T>& result, const TempFolder& folder) {
  if (result) return "";
  std::string text = result.error().message;
  const std::string prefix = folder / "";
  for (std::size_t at; (at = text.find(prefix)) != text.npos;) text.erase(at, prefix.size());
  return text;
}

/// Options over one table, given as TOML text without a header.
inline std::unique_ptr<Options> options_of(std::string_view text, std::string section = "swap",
                                           const std::string& source = "engine.toml") {
  Result<toml::table> table = parse_toml(text, source);
  if (!table) throw std::runtime_error(table.error().message);
  return make_options(std::move(section), std::make_shared<toml::table>(*std::move(table)));
}

}  // namespace ebb::test
