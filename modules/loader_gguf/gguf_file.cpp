// A GGUF file is a header (magic, version, two counts), the metadata, the tensor directory, padding
// and the data section. The parts are read in that order, each checked before the next is looked
// at.
#include "modules/loader_gguf/gguf_file.h"

#include <bit>
#include <string_view>
#include <utility>

#include "modules/loader_gguf/cursor.h"
#include "modules/loader_gguf/directory.h"
#include "modules/loader_gguf/metadata.h"
#include "modules/loader_gguf/place.h"

namespace ebb::gguf {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::int64_t kMaxAlignment = std::int64_t{1} << 31;

struct Header {
  std::uint64_t n_tensors = 0;
  std::uint64_t n_keys = 0;
};

Result<Header> read_header(const std::string& label, Cursor& cursor) {
  std::string_view magic;
  if (!cursor.read_text(std::min<std::uint64_t>(kMagic.size(), cursor.left()), magic) ||
      magic != kMagic.substr(0, magic.size())) {
    return bad_file("{}: not a GGUF file: the magic at offset 0 is \"{}\", want \"GGUF\"", label,
                    printable(magic));
  }
  std::uint32_t version = 0;
  if (!cursor.read(version)) {
    return bad_file("{}: truncated: the file ends inside the header, at {}", label, cursor.size());
  }
  if (version != kVersion) {
    const bool swapped = (version & 0xFFFF) == 0 && version != 0;
    return bad_file("{}: GGUF version {} at offset 4 {}", label, version,
                    swapped ? "says that the file is big-endian; only little-endian is supported"
                            : "is not supported, want 3");
  }
  Header header;
  if (!cursor.read(header.n_tensors) || !cursor.read(header.n_keys)) {
    return bad_file("{}: truncated: the file ends inside the header, at {}", label, cursor.size());
  }
  return header;
}

Result<std::uint64_t> data_alignment(const std::string& label, const Contents& contents) {
  const Key* key = contents.find("general.alignment");
  if (key == nullptr) return kDefaultAlignment;
  const auto* value = std::get_if<std::int64_t>(&key->value);
  const std::string place = key_place(label, key->name, key->offset);
  if (value == nullptr) return bad_file("{}: the alignment has the wrong type, want u32", place);
  if (*value < 1 || *value > kMaxAlignment ||
      !std::has_single_bit(static_cast<std::uint64_t>(*value))) {
    return bad_file("{}: alignment {}, want a power of two in 1..{}", place, *value, kMaxAlignment);
  }
  return static_cast<std::uint64_t>(*value);
}

}  // namespace

const Key* Contents::find(std::string_view name) const noexcept {
  for (const Key& key : keys) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

Result<Contents> parse(const std::string& label, std::span<const std::byte> bytes) {
  Cursor cursor(bytes);
  Header header;
  EBB_ASSIGN(header, read_header(label, cursor));
  Contents contents;
  EBB_ASSIGN(contents.keys, read_metadata(label, cursor, header.n_keys));
  std::uint64_t alignment = 0;
  EBB_ASSIGN(alignment, data_alignment(label, contents));
  EBB_ASSIGN(contents.tensors, read_directory(label, cursor, bytes, header.n_tensors, alignment));
  contents.directory_bytes = cursor.position();
  for (const Tensor& tensor : contents.tensors) contents.data_bytes += tensor.view.n_bytes;
  return contents;
}

}  // namespace ebb::gguf
