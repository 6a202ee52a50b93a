// safetensors: u64 length of the header, the header (JSON, padded so that the data is aligned), the
// data without holes. Little-endian.

#include "tools/ebb/tensor_file.h"

#include <array>
#include <bit>
#include <utility>

#include "tools/ebb/fields.h"

namespace ebb::cli {

static_assert(std::endian::native == std::endian::little, "values are written as they stand");

std::int64_t TensorPlan::bytes() const {
  const std::string_view name_of_type = type;
  std::int64_t bytes = name_of_type == "BF16" ? 2 : name_of_type == "I64" ? 8 : 4;
  for (const std::int64_t n : shape) bytes *= n;
  return bytes;
}

Result<TensorFile> TensorFile::create(const std::string& path,
                                      const std::vector<TensorPlan>& tensors,
                                      const nlohmann::ordered_json& about) {
  constexpr std::size_t kAlign = 64;
  nlohmann::ordered_json header{{"__metadata__", about}};
  std::vector<std::int64_t> begin, sizes;
  std::int64_t used = 0;
  for (const TensorPlan& tensor : tensors) {
    begin.push_back(used);
    sizes.push_back(tensor.bytes());
    used += sizes.back();
    header[tensor.name] = {
        {"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {begin.back(), used}}};
  }
  std::string text = to_line(header);
  text.pop_back();  // the line feed
  text.append((kAlign - (8 + text.size()) % kAlign) % kAlign, ' ');
  EBB_ASSIGN(OutputFile output, OutputFile::create(path));
  TensorFile file(std::move(output));
  const std::array<std::uint64_t, 1> length{text.size()};
  EBB_TRY(file.file_.write(std::as_bytes(std::span(length))));
  EBB_TRY(file.file_.write(std::as_bytes(std::span(text))));
  for (std::int64_t& offset : begin) offset += 8 + static_cast<std::int64_t>(text.size());
  file.begin_ = std::move(begin);
  file.bytes_ = std::move(sizes);
  return file;
}

Status TensorFile::write(std::size_t i, std::int64_t offset, std::span<const std::byte> bytes) {
  EBB_ASSERT(offset >= 0 && offset + static_cast<std::int64_t>(bytes.size()) <= bytes_[i]);
  return file_.write_at(static_cast<std::uint64_t>(begin_[i] + offset), bytes);
}

}  // namespace ebb::cli
