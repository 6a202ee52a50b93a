#include "tools/ebb/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "core/text.h"

namespace ebb::cli {

using nlohmann::json;

namespace {

// Printing a value recurses into it.
constexpr int kMaxDepth = 64;

bool is_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      if (c == '\\') ++i;  // whatever stands behind it does not end the string
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Fields::Fields(const json& object, std::string what) : object_(object), what_(std::move(what)) {
  if (!object_.is_object()) {
    mistake_ = what_.empty() ? "want a JSON object" : what_ + ": want an object";
  }
}

const json* Fields::find(const char* key) {
  known_.emplace_back(key);
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::string Fields::text(const char* key, std::string_view fallback) {
  const json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  mistake(key, "text");
  return std::string(fallback);
}

bool Fields::flag(const char* key, bool fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  mistake(key, "true or false");
  return fallback;
}

std::int64_t Fields::integer(const char* key, std::int64_t fallback, std::int64_t low,
                             std::int64_t high) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  // A number above INT64_MAX is held as unsigned: get<int64_t> would wrap it.
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<std::uint64_t>() <= INT64_MAX);
  if (fits && value->get<std::int64_t>() >= low && value->get<std::int64_t>() <= high) {
    return value->get<std::int64_t>();
  }
  mistake(key, fmt::format("a whole number {}..{}", low, high));
  return fallback;
}

double Fields::number(const char* key, double fallback, double low, double high) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_number() && value->get<double>() >= low && value->get<double>() <= high) {
    return value->get<double>();
  }
  mistake(key, fmt::format("a number {}..{}", low, high));
  return fallback;
}

std::vector<std::int32_t> Fields::ids(const char* key) {
  std::vector<std::int32_t> ids;
  const json* value = find(key);
  if (value != nullptr && !read_ids(*value, ids)) mistake(key, "a list of token ids");
  return ids;
}

void Fields::mistake(const char* key, std::string_view want) {
  if (!mistake_.empty()) return;
  const auto found = object_.is_object() ? object_.find(key) : object_.end();
  const std::string name = what_.empty() ? key : fmt::format("{}.{}", what_, key);
  mistake_ =
      found == object_.end()
          ? fmt::format("{} is missing: want {}", name, want)
          : fmt::format("{} = {}: want {}", name,
                        printable(found->dump(-1, ' ', false, json::error_handler_t::replace), 60),
                        want);
}

Status Fields::finish() const {
  if (!mistake_.empty()) return Error{Errc::invalid_argument, mistake_};
  for (const auto& [key, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    return Error{Errc::invalid_argument,
                 fmt::format("unknown key {}{}{}; known: {}", what_, what_.empty() ? "" : ".",
                             printable(key, 60), fmt::join(known_, " "))};
  }
  return ok_status();
}

bool read_ids(const json& value, std::vector<std::int32_t>& ids) {
  if (!value.is_array()) return false;
  for (const json& id : value) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > INT32_MAX) return false;
    ids.push_back(id.get<std::int32_t>());
  }
  return true;
}

Result<json> parse_json(std::string_view text) {
  if (is_too_deep(text)) {
    return Error{Errc::invalid_argument,
                 fmt::format("no valid JSON: nested more than {} deep", kMaxDepth)};
  }
  // The parser would keep the last of equal keys, and nobody would know.
  std::vector<std::set<std::string>> open;  // keys of the objects around the place that is read
  std::optional<std::string> twice;
  const auto look = [&open, &twice](int, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!open.back().insert(key).second && !twice) twice = key;
    }
    return true;
  };
  try {
    json parsed = json::parse(text, look);
    if (!twice) return parsed;
    return Error{Errc::invalid_argument,
                 fmt::format("key {} stands twice in one object", printable(*twice, 60))};
  } catch (const json::parse_error& thrown) {
    if (thrown.byte > text.size()) {
      return Error{Errc::invalid_argument,
                   fmt::format("no valid JSON: it ends too early, after {} bytes", text.size())};
    }
    return Error{Errc::invalid_argument,
                 fmt::format("no valid JSON at byte {} of {}", thrown.byte, text.size())};
  } catch (const json::exception& thrown) {
    // Without the library's own name and number, "[json.exception...] ".
    std::string_view why = thrown.what();
    why.remove_prefix(std::min(why.find("] ") + 2, why.size()));
    return Error{Errc::invalid_argument, "no valid JSON: " + printable(why)};
  }
}

std::string to_line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace ebb::cli
