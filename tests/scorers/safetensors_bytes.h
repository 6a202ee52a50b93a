#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::test {

/// A file of any header and data, right or wrong.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = "") {
  const std::uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file.append(header).append(data);
}

/// Writes right files, tensor by tensor.
class SafetensorsFile {
 public:
  /// `data` are the bytes of its values.
  SafetensorsFile& add(std::string_view name, std::string_view type,
                       const std::vector<std::int64_t>& shape, std::string_view data) {
    std::string extents;
    for (const std::int64_t extent : shape) {
      extents += (extents.empty() ? "" : ",") + std::to_string(extent);
    }
    header_ += (header_.empty() ? "" : ",") + ("\"" + std::string(name) + "\":{\"dtype\":\"") +
               std::string(type) + "\",\"shape\":[" + extents + "],\"data_offsets\":[" +
               std::to_string(data_.size()) + "," + std::to_string(data_.size() + data.size()) +
               "]}";
    data_ += data;
    return *this;
  }
  /// `padding` spaces end the header, as writers do that align the data.
  std::string bytes(std::size_t padding = 0) const {
    return safetensors_bytes("{" + header_ + "}" + std::string(padding, ' '), data_);
  }

 private:
  std::string header_, data_;
};

}  // namespace ebb::test
