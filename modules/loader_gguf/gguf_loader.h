#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/host.h"
#include "core/api/loader.h"
#include "core/api/options.h"
#include "modules/loader_gguf/gguf_file.h"
#include "modules/mapped_files/mapped_file.h"

namespace ebb::gguf {

/// A GGUF model, single or split, mapped into memory. Knows no architecture.
class GgufLoader final : public Loader {
 public:
  static Result<std::unique_ptr<GgufLoader>> create(Host& host, Options& options);

  /// Opens the model at `path` and, if it is split, the parts beside it. With `verify` all tensor
  /// data is read once, for the digest. Errors: as files::MappedFile::open, parse and split.h.
  static Result<std::unique_ptr<GgufLoader>> open(const std::string& path, bool verify);

  const MetaValue* meta(std::string_view key) const noexcept override;
  std::span<const std::string> keys() const noexcept override { return key_names_; }
  const TensorView* tensor(std::string_view name) const noexcept override;
  std::span<const TensorView> tensors() const noexcept override { return tensors_; }
  std::string where_key(std::string_view key) const noexcept override;
  std::string where_tensor(std::string_view name) const noexcept override;
  std::string_view source() const noexcept override { return source_; }
  std::string_view digest() const noexcept override { return digest_; }
  std::uint64_t data_bytes() const noexcept override { return data_bytes_; }

 private:
  struct Part {
    std::string label;  // printable path
    files::MappedFile file;
    Contents contents;
  };
  struct TensorPlace {
    std::size_t part = 0;
    std::uint64_t offset = 0;
    std::uint64_t data_offset = 0;
  };

  GgufLoader() = default;

  Status read_parts(const std::string& path);
  Status index_tensors();
  void index_keys();
  void make_digest(bool verify);

  std::vector<Part> parts_;
  std::string source_;
  std::string digest_;
  std::uint64_t data_bytes_ = 0;
  std::vector<std::string> key_names_;
  // Ordered maps: a hostile file cannot choose names that make look-ups slow.
  std::map<std::string_view, const Key*> key_index_;
  std::vector<TensorView> tensors_;
  std::vector<TensorPlace> places_;  // of tensors_, same order
  std::map<std::string_view, std::size_t> tensor_index_;
};

}  // namespace ebb::gguf
