#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace ebb::gguf {

static_assert(std::endian::native == std::endian::little, "GGUF is read as it lies in memory");

/// A position in bytes that can not be moved past their end: a read either succeeds as a whole or
/// returns false and leaves the position where it was.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  std::uint64_t position() const noexcept { return position_; }
  std::uint64_t size() const noexcept { return bytes_.size(); }
  std::uint64_t left() const noexcept { return bytes_.size() - position_; }

  template <class T>
  bool read(T& value) noexcept {
    if (left() < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }

  bool read_text(std::uint64_t length, std::string_view& text) noexcept {
    if (left() < length) return false;
    text = {reinterpret_cast<const char*>(bytes_.data() + position_),
            static_cast<std::size_t>(length)};
    position_ += length;
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t position_ = 0;
};

}  // namespace ebb::gguf
