#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/result.h"

namespace ebb::cli {

/// Typed reads of one JSON object, as Options reads a manifest: an absent or null key gives the
/// default, a wrong one is remembered, and finish() names the first mistake or a key that nobody
/// asked for. Borrows the object.
class Fields {
 public:
  /// `what` names the object in messages; empty for a whole line.
  Fields(const nlohmann::json& object, std::string what);

  /// The value, or nullptr if it is absent or null. Counts as asked for.
  const nlohmann::json* find(const char* key);
  bool has(const char* key) { return find(key) != nullptr; }

  std::string text(const char* key, std::string_view fallback);
  bool flag(const char* key, bool fallback);
  std::int64_t integer(const char* key, std::int64_t fallback, std::int64_t low, std::int64_t high);
  double number(const char* key, double fallback, double low, double high);
  /// Token ids, each 0..2^31-1.
  std::vector<std::int32_t> ids(const char* key);

  /// Takes note of a mistake: `what.key: want WANT`.
  void mistake(const char* key, std::string_view want);
  Status finish() const;

 private:
  const nlohmann::json& object_;
  std::string what_;
  std::vector<std::string> known_;
  std::string mistake_;
};

/// Whether `value` is a list of ids, each 0..2^31-1; appends them to `ids`.
bool read_ids(const nlohmann::json& value, std::vector<std::int32_t>& ids);

/// Parses UTF-8 JSON text. Errors: invalid_argument that names the byte, or a key that one object
/// has twice.
Result<nlohmann::json> parse_json(std::string_view text);

/// One line of JSON; bytes that are not UTF-8 become U+FFFD.
std::string to_line(const nlohmann::ordered_json& value);

}  // namespace ebb::cli
