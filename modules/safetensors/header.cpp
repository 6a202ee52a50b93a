// The header is read event by event and must have the one shape that the format knows: an object of
// tensors, each {"dtype", "shape", "data_offsets"}, and perhaps "__metadata__", an object of texts.
// Anything else ends the reading where it is met. So no tree of values is built, nesting is bounded
// by the shape, and a key that comes twice is seen, which a tree would hide.

#include "modules/safetensors/header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "modules/mapped_files/text.h"

namespace ebb::safetensors {
namespace {

using files::printable;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kMaxTensors = 1 << 20;
constexpr std::size_t kMaxMetadata = 1 << 16;
constexpr std::size_t kMaxDims = 16;
constexpr std::size_t kMaxNameBytes = 1024;

struct Type {
  std::string_view name;
  std::uint64_t bits;
};
constexpr std::array<Type, 20> kTypes{{
    {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"F64", 64},    {"F8_E4M3", 8},
    {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
    {"I8", 8},      {"U8", 8},      {"I16", 16},    {"U16", 16},    {"I32", 32},
    {"U32", 32},    {"I64", 64},    {"U64", 64},    {"BOOL", 8},    {"C64", 64},
}};

/// Bytes of so many values, or nothing if they do not fill bytes or the number overflows.
std::optional<std::uint64_t> bytes_of(const Type& type, std::span<const std::int64_t> shape) {
  std::uint64_t bits = type.bits;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(extent), &bits)) return {};
  }
  return bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt;
}

/// Listens to the parser. Every function returns false to stop it; error_ says why.
class Listener {
 public:
  explicit Listener(const std::string& label) : label_(label) {}

  Header take() { return std::move(header_); }
  Error error() const { return error_.value_or(bad_file("{}: the header ends early", label_)); }

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a truth value"); }
  bool number_integer(std::int64_t) { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) {
    return unexpected("a number that is not a whole one of 64 bits");
  }
  bool number_unsigned(std::uint64_t value) {
    if (at_ == At::shape_list) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return fail("{}: a dimension of {}", place(), value);
      }
      if (entry_.tensor.shape.size() == kMaxDims) {
        return fail("{}: more than {} dimensions", place(), kMaxDims);
      }
      entry_.tensor.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (at_ != At::offsets_list) return unexpected("a number");
    if (n_offsets_ == 2) return fail("{}: data_offsets has more than two numbers", place());
    (n_offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    return true;
  }
  bool string(std::string& text) {
    if (at_ == At::metadata_value) {
      header_.metadata.back().second = std::move(text);
      at_ = At::metadata;
      return true;
    }
    if (at_ != At::type) return unexpected("a text");
    const auto type = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&text](const Type& known) { return known.name == text; });
    if (type == kTypes.end()) return fail("{}: unknown type {}", place(), printable(text));
    type_ = &*type;
    at_ = At::entry;
    return true;
  }
  bool binary(const std::vector<std::uint8_t>&) { return unexpected("bytes"); }

  bool start_object(std::size_t) {
    switch (at_) {
      case At::file:
        at_ = At::header;
        return true;
      case At::tensor_value:
        at_ = At::entry;
        return true;
      case At::metadata_object:
        at_ = At::metadata;
        return true;
      default:
        return unexpected("an object");
    }
  }
  bool key(std::string& name) {
    switch (at_) {
      case At::header:
        return name == kMetadata ? begin_metadata() : begin_tensor(name);
      case At::metadata:
        if (header_.metadata.size() == kMaxMetadata) {
          return fail("{}: more than {} metadata entries", label_, kMaxMetadata);
        }
        header_.metadata.emplace_back(name, "");
        at_ = At::metadata_value;
        return true;
      default:
        return begin_field(name);
    }
  }
  bool end_object() {
    switch (at_) {
      case At::header:
        at_ = At::end;
        return true;
      case At::metadata:
        at_ = At::header;
        return true;
      default:
        return end_tensor();
    }
  }
  bool start_array(std::size_t) {
    if (at_ == At::shape) {
      at_ = At::shape_list;
      return true;
    }
    if (at_ != At::offsets) return unexpected("a list");
    at_ = At::offsets_list;
    return true;
  }
  bool end_array() {
    if (at_ == At::offsets_list && n_offsets_ != 2) {
      return fail("{}: data_offsets has {} numbers, want two", place(), n_offsets_);
    }
    at_ = At::entry;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return fail("{}: the header is not JSON from its byte {} on", label_, position);
  }

 private:
  /// What comes next.
  enum class At {
    file,
    header,
    metadata_object,
    metadata,
    metadata_value,
    tensor_value,
    entry,
    type,
    shape,
    shape_list,
    offsets,
    offsets_list,
    end,
  };

  template <class... Args>
  bool fail(fmt::format_string<Args...> format, Args&&... args) {
    error_ = bad_file(format, std::forward<Args>(args)...);
    return false;
  }
  std::string place() const { return tensor_place(label_, entry_.tensor.name); }

  bool unexpected(const char* found) {
    switch (at_) {
      case At::metadata_object:
        return fail("{}: {} is {}, want an object", label_, kMetadata, found);
      case At::metadata_value:
        return fail("{}: metadata {} is {}, want a text", label_,
                    printable(header_.metadata.back().first), found);
      case At::tensor_value:
        return fail("{}: {}, want an object", place(), found);
      case At::type:
        return fail("{}: dtype is {}, want a text", place(), found);
      case At::shape:
        return fail("{}: shape is {}, want a list", place(), found);
      case At::shape_list:
        return fail("{}: {} in shape, want numbers", place(), found);
      case At::offsets:
        return fail("{}: data_offsets is {}, want a list", place(), found);
      case At::offsets_list:
        return fail("{}: {} in data_offsets, want numbers", place(), found);
      default:
        return fail("{}: the header is {}, want an object", label_, found);
    }
  }

  bool begin_metadata() {
    if (has_metadata_) return fail("{}: {} comes twice", label_, kMetadata);
    has_metadata_ = true;
    at_ = At::metadata_object;
    return true;
  }
  bool begin_tensor(std::string& name) {
    if (header_.entries.size() == kMaxTensors) {
      return fail("{}: more than {} tensors", label_, kMaxTensors);
    }
    entry_ = {};
    type_ = nullptr;
    has_shape_ = has_offsets_ = false;
    n_offsets_ = 0;
    if (name.empty() || name.size() > kMaxNameBytes) {
      return fail("{}: a tensor's name of {} bytes, want 1..{}", label_, name.size(),
                  kMaxNameBytes);
    }
    entry_.tensor.name = std::move(name);
    at_ = At::tensor_value;
    return true;
  }
  bool begin_field(const std::string& name) {
    const bool twice = (name == "dtype" && type_ != nullptr) || (name == "shape" && has_shape_) ||
                       (name == "data_offsets" && has_offsets_);
    if (twice) return fail("{}: {} comes twice", place(), name);
    if (name == "dtype") {
      at_ = At::type;
    } else if (name == "shape") {
      at_ = At::shape;
      has_shape_ = true;
    } else if (name == "data_offsets") {
      at_ = At::offsets;
      has_offsets_ = true;
    } else {
      return fail("{}: unknown field {}, want dtype, shape and data_offsets", place(),
                  printable(name));
    }
    return true;
  }
  bool end_tensor() {
    const char* const missing = type_ == nullptr ? "dtype"
                                : !has_shape_    ? "shape"
                                : !has_offsets_  ? "data_offsets"
                                                 : nullptr;
    if (missing != nullptr) return fail("{}: {} is missing", place(), missing);
    Tensor& tensor = entry_.tensor;
    tensor.type = type_->name;
    const auto n_bytes = bytes_of(*type_, tensor.shape);
    if (!n_bytes) {
      return fail("{}: {} values of {} are no whole number of bytes below 2^61", place(),
                  show_shape(tensor.shape), tensor.type);
    }
    if (entry_.end < entry_.begin || entry_.end - entry_.begin != *n_bytes) {
      return fail("{}: data_offsets [{}, {}], want {} bytes for {} {}", place(), entry_.begin,
                  entry_.end, *n_bytes, tensor.type, show_shape(tensor.shape));
    }
    header_.entries.push_back(std::move(entry_));
    at_ = At::header;
    return true;
  }

  const std::string& label_;
  Header header_;
  std::optional<Error> error_;
  At at_ = At::file;
  bool has_metadata_ = false;
  // The tensor that is being read.
  Entry entry_;
  const Type* type_ = nullptr;
  bool has_shape_ = false, has_offsets_ = false;
  int n_offsets_ = 0;
};

/// The first of the names that is there twice, if any.
template <class List, class Name>
const std::string* twice(const List& list, Name name) {
  std::vector<const std::string*> names;
  for (const auto& item : list) names.push_back(&name(item));
  const auto less = [](const std::string* a, const std::string* b) { return *a < *b; };
  std::sort(names.begin(), names.end(), less);
  const auto found =
      std::adjacent_find(names.begin(), names.end(),
                         [](const std::string* a, const std::string* b) { return *a == *b; });
  return found == names.end() ? nullptr : *found;
}

}  // namespace

std::string tensor_place(std::string_view label, std::string_view name) {
  return fmt::format("{}: tensor {}", label, printable(name));
}

Result<Header> read_header(const std::string& label, std::string_view text) {
  // The parser would take a NUL for the end.
  if (text.find('\0') != std::string_view::npos) {
    return bad_file("{}: the header holds a NUL byte, at {}", label, text.find('\0'));
  }
  Listener listener(label);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &listener)) return listener.error();
  Header header = listener.take();
  if (const auto* name = twice(
          header.entries, [](const Entry& e) -> const std::string& { return e.tensor.name; })) {
    return bad_file("{}: the name comes twice", tensor_place(label, *name));
  }
  if (const auto* name = twice(header.metadata,
                               [](const auto& item) -> const std::string& { return item.first; })) {
    return bad_file("{}: metadata {} comes twice", label, printable(*name));
  }
  return header;
}

}  // namespace ebb::safetensors
