#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/api/result.h"

namespace ebb::test {

/// Value types of the format.
enum GgufType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

/// Writes GGUF version 3 files of any content, right or wrong. Tensor data is zeros, placed in the
/// order of the directory at multiples of 32.
class GgufBytes {
 public:
  template <class T>
  GgufBytes& scalar(std::string_view name, GgufType type, T value) {
    begin_key(name, type);
    put(keys_, value);
    return *this;
  }

  GgufBytes& text(std::string_view name, std::string_view value) {
    begin_key(name, kString);
    put_text(keys_, value);
    return *this;
  }

  template <class T>
  GgufBytes& array(std::string_view name, GgufType element, const std::vector<T>& values) {
    begin_key(name, kArray);
    put(keys_, static_cast<std::uint32_t>(element));
    put(keys_, static_cast<std::uint64_t>(values.size()));
    for (const T& value : values) {
      if constexpr (std::is_convertible_v<T, std::string_view>) {
        put_text(keys_, value);
      } else {
        put(keys_, value);
      }
    }
    return *this;
  }

  GgufBytes& tensor(std::string_view name, const std::vector<std::uint64_t>& ne, std::uint32_t type,
                    std::uint64_t n_bytes) {
    return tensor_at(name, ne, type, data_bytes_, n_bytes);
  }

  GgufBytes& tensor_at(std::string_view name, const std::vector<std::uint64_t>& ne,
                       std::uint32_t type, std::uint64_t offset, std::uint64_t n_bytes) {
    ++n_tensors_;
    put_text(directory_, name);
    put(directory_, static_cast<std::uint32_t>(ne.size()));
    for (const std::uint64_t extent : ne) put(directory_, extent);
    put(directory_, type);
    put(directory_, offset);
    if (n_bytes > 0) data_bytes_ = (std::max(data_bytes_, offset + n_bytes) + 31) / 32 * 32;
    return *this;
  }

  std::string bytes() const {
    std::string file = "GGUF";
    put(file, std::uint32_t{3});
    put(file, n_tensors_);
    put(file, n_keys_);
    file += keys_ + directory_;
    file.resize((file.size() + 31) / 32 * 32, '\0');
    file.resize(file.size() + data_bytes_, '\0');
    return file;
  }

 private:
  template <class T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void put_text(std::string& to, std::string_view text) {
    put(to, static_cast<std::uint64_t>(text.size()));
    to.append(text);
  }
  void begin_key(std::string_view name, GgufType type) {
    ++n_keys_;
    put_text(keys_, name);
    put(keys_, static_cast<std::uint32_t>(type));
  }

  std::string keys_;
  std::string directory_;
  std::uint64_t n_keys_ = 0;
  std::uint64_t n_tensors_ = 0;
  std::uint64_t data_bytes_ = 0;
};

/// The message of a failure, "" of a success: for assertions, which evaluate it either way.
template <class T>
std::string error_of(const Result<T>& result) {
  return result ? "" : result.error().message;
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace ebb::test
