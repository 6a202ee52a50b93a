#pragma once

#include <string>
#include <utility>

#include "core/api/options.h"

namespace ebb::cli {

/// Options of a module that is opened for a file without a manifest: `path` is the file, every
/// other key has its default.
class PathOption final : public Options {
 public:
  explicit PathOption(std::string path) : path_(std::move(path)) {}

  bool get_bool(std::string_view, bool fallback) noexcept override { return fallback; }
  std::int64_t get_int(std::string_view, std::int64_t fallback, std::int64_t,
                       std::int64_t) noexcept override {
    return fallback;
  }
  std::int64_t get_int_or_auto(std::string_view, std::int64_t fallback, std::int64_t,
                               std::int64_t) noexcept override {
    return fallback;
  }
  double get_float(std::string_view, double fallback, double, double) noexcept override {
    return fallback;
  }
  std::uint64_t get_size(std::string_view, std::uint64_t fallback, std::uint64_t,
                         std::uint64_t) noexcept override {
    return fallback;
  }
  std::string get_string(std::string_view, std::string_view fallback) noexcept override {
    return std::string(fallback);
  }
  std::size_t get_choice(std::string_view, std::size_t fallback,
                         const std::vector<std::string_view>&) noexcept override {
    return fallback;
  }
  std::string get_path(std::string_view key) noexcept override { return has(key) ? path_ : ""; }
  std::vector<std::int64_t> get_int_list(std::string_view,
                                         const std::vector<std::int64_t>& fallback, std::int64_t,
                                         std::int64_t) noexcept override {
    return fallback;
  }
  bool has(std::string_view key) const noexcept override { return key == "path"; }
  std::string where(std::string_view key) const noexcept override {
    return has(key) ? "FILE" : std::string(key);
  }
  Status finish() noexcept override { return ok_status(); }

 private:
  std::string path_;
};

}  // namespace ebb::cli
