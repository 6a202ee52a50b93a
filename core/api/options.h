#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/result.h"

namespace ebb {

/// Typed reads of one manifest table, handed to a module's create.
/// A key that is absent gives the default. A key of the wrong type or out of range is recorded with
/// file:line:column and gives the default too, so that one pass reports every mistake; finish()
/// then fails. Keys that were never asked for are mistakes as well.
/// Thread: [startup]
class Options {
 public:
  virtual ~Options() = default;

  virtual bool get_bool(std::string_view key, bool fallback) noexcept = 0;
  virtual std::int64_t get_int(std::string_view key, std::int64_t fallback, std::int64_t low,
                               std::int64_t high) noexcept = 0;
  /// As get_int, and the text "auto" gives 0.
  virtual std::int64_t get_int_or_auto(std::string_view key, std::int64_t fallback,
                                       std::int64_t low, std::int64_t high) noexcept = 0;
  virtual double get_float(std::string_view key, double fallback, double low,
                           double high) noexcept = 0;
  /// Bytes: an integer, or text such as "64KiB", "16GiB" (powers of 1024) or "5GB" (of 1000).
  virtual std::uint64_t get_size(std::string_view key, std::uint64_t fallback, std::uint64_t low,
                                 std::uint64_t high) noexcept = 0;
  virtual std::string get_string(std::string_view key, std::string_view fallback) noexcept = 0;
  /// One of `allowed`; returns its index. `fallback` is an index too.
  virtual std::size_t get_choice(std::string_view key, std::size_t fallback,
                                 const std::vector<std::string_view>& allowed) noexcept = 0;
  /// A file path; a relative one is resolved against the manifest that spells it. Empty if absent.
  virtual std::string get_path(std::string_view key) noexcept = 0;
  virtual std::vector<std::int64_t> get_int_list(std::string_view key,
                                                 const std::vector<std::int64_t>& fallback,
                                                 std::int64_t low, std::int64_t high) noexcept = 0;
  virtual bool has(std::string_view key) const noexcept = 0;

  /// Where the value of `key` stands ("engine.toml:14:11: [swap] slots"), to begin a message with.
  virtual std::string where(std::string_view key) const noexcept = 0;
  /// Fails with every mistake found so far, one per line, unknown keys included. Call it last.
  virtual Status finish() noexcept = 0;
};

}  // namespace ebb
