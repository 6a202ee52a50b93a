// A metadata entry is name, value type, value. Every length is compared with the bytes left before
// anything is allocated or skipped. In memory a value takes more than in the file (a u8 eight
// times, an empty string four times), so decoded sizes are charged to a budget as well: a file of
// many gigabytes whose metadata claims to be most of it is refused instead of copied.
#include "modules/loader_gguf/metadata.h"

#include <array>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "modules/loader_gguf/names.h"

namespace ebb::gguf {
namespace {

enum class ValueType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};
constexpr std::uint32_t kValueTypes = 13;
constexpr std::array<const char*, kValueTypes> kTypeNames{
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
/// Bytes of a value; for text its length field, which it has at least.
constexpr std::array<std::uint64_t, kValueTypes> kTypeBytes{1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

constexpr std::uint64_t kMaxNameBytes = 65535;  // of the format
/// All values together; a vocabulary of 129k tokens takes about 12 MiB.
constexpr std::uint64_t kMaxDecodedBytes = 64u << 20;
constexpr std::uint64_t kKeyBytes = sizeof(Key) + 64;  // with its node in the set of names
constexpr std::uint64_t kLeastKeyBytes = 8 + 1 + 4 + 1;

class MetadataReader {
 public:
  MetadataReader(const std::string& label, Cursor& cursor) : label_(label), cursor_(cursor) {}

  Result<std::vector<Key>> read(std::uint64_t n_keys) {
    if (n_keys > cursor_.left() / kLeastKeyBytes) {
      return bad_file(
          "{}: key count {} at offset 16: more than the {} bytes left in the file can "
          "hold",
          label_, n_keys, cursor_.left());
    }
    std::vector<Key> keys;
    std::set<std::string_view> names;  // into the file, so growth of `keys` does not move them
    for (std::uint64_t i = 0; i < n_keys; ++i) {
      Key key;
      key.offset = cursor_.position();
      std::string_view name;
      EBB_ASSIGN(name, read_name(i));
      EBB_TRY(charge(kKeyBytes + name.size()));
      key.name = name;
      place_ = key_place(label_, name, key.offset);
      if (!names.insert(name).second) return bad_file("{}: duplicate key", place_);
      ValueType type{};
      EBB_ASSIGN(type, read_type("value"));
      EBB_ASSIGN(key.value, read_value(type));
      keys.push_back(std::move(key));
    }
    return keys;
  }

 private:
  Result<std::string_view> read_name(std::uint64_t ordinal) {
    place_ = fmt::format("{}: key number {} at offset {}", label_, ordinal + 1, cursor_.position());
    return gguf::read_name(place_, kMaxNameBytes, cursor_);
  }

  Result<ValueType> read_type(const char* what) {
    std::uint32_t number = 0;
    if (!cursor_.read(number)) return truncated("the type");
    if (number >= kValueTypes) {
      return bad_file("{}: {} type {} does not exist", place_, what, number);
    }
    return static_cast<ValueType>(number);
  }

  Result<MetaValue> read_value(ValueType type) {
    switch (type) {
      case ValueType::u8:
        return read_scalar<std::uint8_t>();
      case ValueType::i8:
        return read_scalar<std::int8_t>();
      case ValueType::u16:
        return read_scalar<std::uint16_t>();
      case ValueType::i16:
        return read_scalar<std::int16_t>();
      case ValueType::u32:
        return read_scalar<std::uint32_t>();
      case ValueType::i32:
        return read_scalar<std::int32_t>();
      case ValueType::i64:
        return read_scalar<std::int64_t>();
      case ValueType::u64:
        return read_scalar<std::uint64_t>();
      case ValueType::f32:
        return read_scalar<float>();
      case ValueType::f64:
        return read_scalar<double>();
      case ValueType::boolean:
        return read_bool();
      case ValueType::string:
        return read_string();
      case ValueType::array:
        return read_array();
    }
    return bad_file("{}: value type is not known", place_);
  }

  template <class T>
  Result<MetaValue> read_scalar() {
    T value{};
    if (!cursor_.read(value)) return truncated("the value");
    if constexpr (std::is_floating_point_v<T>) {
      return MetaValue(static_cast<double>(value));
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return MetaValue(value);
      }
      return MetaValue(static_cast<std::int64_t>(value));
    } else {
      return MetaValue(static_cast<std::int64_t>(value));
    }
  }

  Result<MetaValue> read_bool() {
    std::uint8_t value = 0;
    if (!cursor_.read(value)) return truncated("the value");
    if (value > 1) return bad_file("{}: bool value {}, want 0 or 1", place_, value);
    return MetaValue(value == 1);
  }

  Result<MetaValue> read_string() {
    std::string_view text;
    EBB_ASSIGN(text, read_text());
    EBB_TRY(charge(text.size()));
    return MetaValue(std::string(text));
  }

  Result<std::string_view> read_text() {
    const std::uint64_t at = cursor_.position();
    std::uint64_t length = 0;
    if (!cursor_.read(length)) return truncated("a string");
    std::string_view text;
    if (!cursor_.read_text(length, text)) {
      return bad_file("{}: truncated: string length {} at {} exceeds the {} bytes left in the file",
                      place_, length, at, cursor_.left());
    }
    return text;
  }

  Result<MetaValue> read_array() {
    ValueType type{};
    EBB_ASSIGN(type, read_type("array element"));
    std::uint64_t count = 0;
    if (!cursor_.read(count)) return truncated("the array count");
    if (type == ValueType::array) {
      return bad_file("{}: array of arrays; nested arrays are not supported", place_);
    }
    const auto number = static_cast<std::uint32_t>(type);
    if (count > cursor_.left() / kTypeBytes[number]) {
      return bad_file(
          "{}: truncated: array count {} of type {} exceeds the {} bytes left in the "
          "file",
          place_, count, kTypeNames[number], cursor_.left());
    }
    switch (type) {
      case ValueType::u8:
        return read_numbers<std::uint8_t, std::int64_t>(count);
      case ValueType::i8:
        return read_numbers<std::int8_t, std::int64_t>(count);
      case ValueType::u16:
        return read_numbers<std::uint16_t, std::int64_t>(count);
      case ValueType::i16:
        return read_numbers<std::int16_t, std::int64_t>(count);
      case ValueType::u32:
        return read_numbers<std::uint32_t, std::int64_t>(count);
      case ValueType::i32:
        return read_numbers<std::int32_t, std::int64_t>(count);
      case ValueType::u64:
        return read_numbers<std::uint64_t, std::int64_t>(count);
      case ValueType::i64:
        return read_numbers<std::int64_t, std::int64_t>(count);
      case ValueType::f32:
        return read_numbers<float, double>(count);
      case ValueType::f64:
        return read_numbers<double, double>(count);
      case ValueType::boolean:
        return read_bools(count);
      case ValueType::string:
        return read_strings(count);
      case ValueType::array:
        break;
    }
    return bad_file("{}: array element type is not known", place_);
  }

  template <class Stored, class Held>
  Result<MetaValue> read_numbers(std::uint64_t count) {
    EBB_TRY(charge(count * sizeof(Held)));
    std::vector<Held> values(count);
    for (Held& value : values) {
      Stored stored{};
      if (!cursor_.read(stored)) return truncated("the array");
      value = static_cast<Held>(stored);
    }
    return MetaValue(std::move(values));
  }

  Result<MetaValue> read_bools(std::uint64_t count) {
    EBB_TRY(charge(count));
    std::vector<bool> values(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint8_t value = 0;
      if (!cursor_.read(value)) return truncated("the array");
      if (value > 1) {
        return bad_file("{}: element {}: bool value {}, want 0 or 1", place_, i, value);
      }
      values[i] = value == 1;
    }
    return MetaValue(std::move(values));
  }

  /// Walks the strings once to learn that they are there, then copies them into memory of the right
  /// size: nothing is allocated for a count that the file does not keep.
  Result<MetaValue> read_strings(std::uint64_t count) {
    const Cursor first = cursor_;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string_view text;
      EBB_ASSIGN(text, read_text());
      EBB_TRY(charge(sizeof(std::string) + text.size()));
    }
    std::vector<std::string> values;
    values.reserve(count);
    cursor_ = first;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string_view text;
      EBB_ASSIGN(text, read_text());
      values.emplace_back(text);
    }
    return MetaValue(std::move(values));
  }

  Status charge(std::uint64_t bytes) {
    if (bytes > kMaxDecodedBytes - decoded_) {
      return bad_file("{}: the metadata is too large: more than {} MiB in memory", place_,
                      kMaxDecodedBytes >> 20);
    }
    decoded_ += bytes;
    return ok_status();
  }

  Error truncated(const char* what) const { return gguf::truncated(place_, what, cursor_); }

  const std::string& label_;
  Cursor& cursor_;
  std::string place_;          // of the current key, begins its messages
  std::uint64_t decoded_ = 0;  // bytes of values in memory so far
};

}  // namespace

Result<std::vector<Key>> read_metadata(const std::string& label, Cursor& cursor,
                                       std::uint64_t n_keys) {
  return MetadataReader(label, cursor).read(n_keys);
}

}  // namespace ebb::gguf
