// GGUF: magic, u32 version, u64 tensor count, u64 key count; per key a string (u64 length, bytes),
// a u32 value type and the value; an array is u32 element type, u64 count, values. Little-endian.

#include "tests/tokenizer/gguf_metadata.h"

#include <cstdint>
#include <fstream>
#include <stdexcept>

namespace ebb::test {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path, std::ios::binary) {
    if (!file_) throw std::runtime_error("cannot open " + path);
    file_.exceptions(std::ios::failbit | std::ios::badbit | std::ios::eofbit);
  }

  FakeLoader metadata() {
    FakeLoader loader;
    if (number<std::uint32_t>() != 0x46554747) throw std::runtime_error("not a GGUF file");
    number<std::uint32_t>();
    number<std::uint64_t>();
    const auto n_keys = number<std::uint64_t>();
    for (std::uint64_t i = 0; i < n_keys; ++i) {
      std::string key = text();
      loader.values[std::move(key)] = value(number<std::uint32_t>());
    }
    return loader;
  }

 private:
  static constexpr std::uint32_t kString = 8;
  static constexpr std::uint32_t kArray = 9;

  template <class T>
  T number() {
    T value;
    file_.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  std::string text() {
    std::string out(number<std::uint64_t>(), '\0');
    file_.read(out.data(), static_cast<std::streamsize>(out.size()));
    return out;
  }
  static bool is_real(std::uint32_t type) { return type == 6 || type == 12; }
  double real(std::uint32_t type) { return type == 6 ? number<float>() : number<double>(); }
  std::int64_t integer(std::uint32_t type) {
    switch (type) {
      case 0:
        return number<std::uint8_t>();
      case 1:
        return number<std::int8_t>();
      case 2:
        return number<std::uint16_t>();
      case 3:
        return number<std::int16_t>();
      case 4:
        return number<std::uint32_t>();
      case 5:
        return number<std::int32_t>();
      case 7:
        return number<std::uint8_t>();
      case 10:
        return static_cast<std::int64_t>(number<std::uint64_t>());
      case 11:
        return number<std::int64_t>();
      default:
        throw std::runtime_error("unknown value type");
    }
  }
  MetaValue value(std::uint32_t type) {
    if (type == kString) return text();
    if (type == kArray) return array();
    if (is_real(type)) return real(type);
    if (type == 7) return integer(type) != 0;
    return integer(type);
  }
  MetaValue array() {
    const auto type = number<std::uint32_t>();
    const auto n = number<std::uint64_t>();
    std::vector<std::string> texts;
    std::vector<double> reals;
    std::vector<std::int64_t> integers;
    for (std::uint64_t i = 0; i < n; ++i) {
      if (type == kString) {
        texts.push_back(text());
      } else if (is_real(type)) {
        reals.push_back(real(type));
      } else {
        integers.push_back(integer(type));
      }
    }
    if (type == kString) return texts;
    if (is_real(type)) return reals;
    return integers;
  }

  std::ifstream file_;
};

}  // namespace

FakeLoader read_gguf_metadata(const std::string& path) { return Reader(path).metadata(); }

}  // namespace ebb::test
