// A split model is several whole GGUF files. The first carries the metadata; every part carries its
// number, the number of parts, the number of tensors of the model, and its own tensors with offsets
// that start at 0 again. Names and keys both tell the place of a part, so they are checked against
// each other: a renamed or foreign part is found before its tensors are believed.
#include "modules/loader_gguf/split.h"

#include <array>
#include <limits>

#include "modules/loader_gguf/place.h"

namespace ebb::gguf {
namespace {

constexpr std::size_t kDigits = 5;
constexpr std::string_view kSuffix = ".gguf";
constexpr std::size_t kTailBytes =
    1 + kDigits + 4 + kDigits + kSuffix.size();  // -00001-of-00003.gguf

constexpr const char* kPartKey = "split.no";
constexpr const char* kPartsKey = "split.count";
constexpr const char* kTensorsKey = "split.tensors.count";

std::optional<std::int64_t> parse_digits(std::string_view text) {
  std::int64_t number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + (c - '0');
  }
  return number;
}

Result<std::int64_t> read_count(const std::string& label, const Contents& contents,
                                const char* name, std::int64_t fallback, std::int64_t low,
                                std::int64_t high) {
  const Key* key = contents.find(name);
  if (key == nullptr) return fallback;
  const std::string place = key_place(label, key->name, key->offset);
  const auto* value = std::get_if<std::int64_t>(&key->value);
  if (value == nullptr) return bad_file("{}: the value has the wrong type, want an integer", place);
  if (*value < low || *value > high) {
    return bad_file("{}: {} is out of range {}..{}", place, *value, low, high);
  }
  return *value;
}

std::string place_of(const std::string& label, const Contents& contents, const char* name) {
  const Key* key = contents.find(name);
  return key == nullptr ? fmt::format("{}: key {}", label, name)
                        : key_place(label, key->name, key->offset);
}

}  // namespace

std::string PartName::path_of(std::int64_t number) const {
  return fmt::format("{}-{:05}-of-{:05}{}", stem, number, parts, kSuffix);
}

std::optional<PartName> parse_part_name(std::string_view path) {
  if (path.size() <= kTailBytes) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTailBytes);
  if (tail[0] != '-' || tail.substr(1 + kDigits, 4) != "-of-" || !tail.ends_with(kSuffix)) {
    return std::nullopt;
  }
  const auto part = parse_digits(tail.substr(1, kDigits));
  const auto parts = parse_digits(tail.substr(1 + kDigits + 4, kDigits));
  if (!part || !parts) return std::nullopt;
  return PartName{std::string(path.substr(0, path.size() - kTailBytes)), *part, *parts};
}

Result<PartKeys> read_part_keys(const std::string& label, const Contents& contents) {
  constexpr std::int64_t kMaxParts = 99999;  // five digits of the name
  PartKeys keys;
  EBB_ASSIGN(keys.parts, read_count(label, contents, kPartsKey, 1, 1, kMaxParts));
  EBB_ASSIGN(keys.part, read_count(label, contents, kPartKey, 0, 0, keys.parts - 1));
  keys.part += 1;
  EBB_ASSIGN(keys.tensors, read_count(label, contents, kTensorsKey, -1, 0,
                                      std::numeric_limits<std::int32_t>::max()));
  return keys;
}

Result<std::optional<PartName>> check_first_part(const std::string& label, std::string_view path,
                                                 const Contents& contents, const PartKeys& keys) {
  if (keys.parts == 1) return std::optional<PartName>();
  std::optional<PartName> name = parse_part_name(path);
  if (!name) {
    return bad_file(
        "{}: split model of {} parts, but the file name does not end in "
        "-00001-of-{:05}.gguf, so the other parts cannot be found",
        place_of(label, contents, kPartsKey), keys.parts, keys.parts);
  }
  if (name->parts != keys.parts) {
    return bad_file("{}: split into {} parts, but the file name says {}",
                    place_of(label, contents, kPartsKey), keys.parts, name->parts);
  }
  if (name->part != keys.part) {
    return bad_file("{}: part {} of the split, but the file name says {}",
                    place_of(label, contents, kPartKey), keys.part, name->part);
  }
  if (keys.part != 1) {
    return bad_file("{}: part {} of {} of a split model; name the first part, {}",
                    place_of(label, contents, kPartKey), keys.part, keys.parts,
                    printable(name->path_of(1), std::numeric_limits<std::size_t>::max()));
  }
  return name;
}

Status check_later_part(const std::string& label, const Contents& contents, std::int64_t number,
                        const PartKeys& first_keys, const Contents& first) {
  for (const char* required : {kPartKey, kPartsKey}) {
    if (contents.find(required) == nullptr) {
      return bad_file("{}: key {} is missing; part {} of a split model needs it", label, required,
                      number);
    }
  }
  PartKeys keys;
  EBB_ASSIGN(keys, read_part_keys(label, contents));
  if (keys.part != number) {
    return bad_file("{}: part {} of the split, but the file name says {}",
                    place_of(label, contents, kPartKey), keys.part, number);
  }
  if (keys.parts != first_keys.parts) {
    return bad_file("{}: split into {} parts, but part 1 says {}",
                    place_of(label, contents, kPartsKey), keys.parts, first_keys.parts);
  }
  if (keys.tensors != -1 && first_keys.tensors != -1 && keys.tensors != first_keys.tensors) {
    return bad_file("{}: {} tensors in the split model, but part 1 says {}",
                    place_of(label, contents, kTensorsKey), keys.tensors, first_keys.tensors);
  }
  for (const Key& key : contents.keys) {
    if (key.name.starts_with("split.") || key.name == "general.alignment") continue;
    const Key* same = first.find(key.name);
    if (same != nullptr && same->value != key.value) {
      return bad_file("{}: the value differs from that in part 1 of the split model",
                      key_place(label, key.name, key.offset));
    }
  }
  return ok_status();
}

}  // namespace ebb::gguf
