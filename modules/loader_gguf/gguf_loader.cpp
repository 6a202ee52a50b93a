// Opening reads headers only: each part is mapped, parsed and checked, then names are indexed
// across the parts. Tensor data stays where it is and reaches memory when somebody reads it.
#include "modules/loader_gguf/gguf_loader.h"

#include <xxhash.h>

#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "modules/loader_gguf/place.h"
#include "modules/loader_gguf/split.h"

namespace ebb::gguf {
namespace {

constexpr std::size_t kWholePath = std::numeric_limits<std::size_t>::max();

}  // namespace

Result<std::unique_ptr<GgufLoader>> GgufLoader::create(Host& host, Options& options) {
  const std::string path = options.get_path("path");
  const bool verify = options.get_bool("verify", false) && !host.is_rehearsal();
  EBB_TRY(options.finish());
  if (path.empty()) {
    return Error{Errc::invalid_argument, options.where("path") + ": missing, want a GGUF file"};
  }
  return open(path, verify);
}

Result<std::unique_ptr<GgufLoader>> GgufLoader::open(const std::string& path, bool verify) {
  const std::string label = printable(path, kWholePath);
  try {
    std::unique_ptr<GgufLoader> loader(new GgufLoader);
    loader->source_ = label;
    EBB_TRY(loader->read_parts(path));
    EBB_TRY(loader->index_tensors());
    loader->index_keys();
    loader->make_digest(verify);
    return loader;
  } catch (const std::bad_alloc&) {
    return Error{Errc::out_of_memory, label + ": not enough memory for the metadata"};
  }
}

Status GgufLoader::read_parts(const std::string& path) {
  const auto read_part = [this](const std::string& part_path) -> Status {
    Result<files::MappedFile> file = files::MappedFile::open(part_path);
    if (!file) return std::move(file).error();
    std::string label = printable(part_path, kWholePath);
    Result<Contents> contents = parse(label, file->bytes());
    if (!contents) return std::move(contents).error();
    parts_.push_back({std::move(label), *std::move(file), *std::move(contents)});
    return ok_status();
  };

  EBB_TRY(read_part(path));
  PartKeys keys;
  EBB_ASSIGN(keys, read_part_keys(parts_[0].label, parts_[0].contents));
  std::optional<PartName> name;
  EBB_ASSIGN(name, check_first_part(parts_[0].label, path, parts_[0].contents, keys));
  for (std::int64_t number = 2; name && number <= name->parts; ++number) {
    Status part = read_part(name->path_of(number));
    if (!part) {
      part.error().message += fmt::format(" (part {} of the split model {})", number, source_);
      return part;
    }
    EBB_TRY(check_later_part(parts_.back().label, parts_.back().contents, number, keys,
                             parts_[0].contents));
  }

  std::uint64_t n_tensors = 0;
  for (const Part& part : parts_) n_tensors += part.contents.tensors.size();
  if (keys.tensors != -1 && n_tensors != static_cast<std::uint64_t>(keys.tensors)) {
    return bad_file(
        "{}: key split.tensors.count: the split model should have {} tensors, but its "
        "parts hold {}",
        source_, keys.tensors, n_tensors);
  }
  return ok_status();
}

Status GgufLoader::index_tensors() {
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    data_bytes_ += parts_[part].contents.data_bytes;
    for (const Tensor& tensor : parts_[part].contents.tensors) {
      if (!tensor_index_.emplace(tensor.view.name, tensors_.size()).second) {
        return bad_file(
            "{}: duplicate tensor, also in {}",
            tensor_place(parts_[part].label, tensor.view.name, tensor.offset, tensor.data_offset),
            parts_[places_[tensor_index_.at(tensor.view.name)].part].label);
      }
      tensors_.push_back(tensor.view);
      places_.push_back({part, tensor.offset, tensor.data_offset});
    }
  }
  return ok_status();
}

void GgufLoader::index_keys() {
  for (const Key& key : parts_[0].contents.keys) {
    key_names_.push_back(key.name);
    key_index_.emplace(key.name, &key);
  }
}

/// Header, metadata and directory bytes hold every name, type, shape and offset. The data follows,
/// in the order of the directory: with `verify` all of it, else a few bytes of each tensor's
/// beginning, middle and end, which tell other weights of the same shape apart without reading the
/// file. Lengths keep the pieces apart.
void GgufLoader::make_digest(bool verify) {
  struct Free {
    void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, Free> state(XXH3_createState());
  if (!state) throw std::bad_alloc();
  XXH3_128bits_reset(state.get());
  const auto add = [&](const std::byte* data, std::uint64_t size) {
    XXH3_128bits_update(state.get(), &size, sizeof size);
    XXH3_128bits_update(state.get(), data, size);
  };
  const std::byte mode{verify};
  add(&mode, 1);
  for (const Part& part : parts_) add(part.file.bytes().data(), part.contents.directory_bytes);
  constexpr std::uint64_t kSample = 64;
  for (const TensorView& tensor : tensors_) {
    if (verify || tensor.n_bytes <= 3 * kSample) {
      add(tensor.data, tensor.n_bytes);
      continue;
    }
    add(tensor.data, kSample);
    add(tensor.data + (tensor.n_bytes - kSample) / 2, kSample);
    add(tensor.data + tensor.n_bytes - kSample, kSample);
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  digest_ = fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

const MetaValue* GgufLoader::meta(std::string_view key) const noexcept {
  const auto found = key_index_.find(key);
  return found == key_index_.end() ? nullptr : &found->second->value;
}

const TensorView* GgufLoader::tensor(std::string_view name) const noexcept {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

std::string GgufLoader::where_key(std::string_view key) const noexcept {
  const auto found = key_index_.find(key);
  if (found == key_index_.end()) return fmt::format("{}: key {}", source_, printable(key));
  return key_place(source_, key, found->second->offset);
}

std::string GgufLoader::where_tensor(std::string_view name) const noexcept {
  const auto found = tensor_index_.find(name);
  if (found == tensor_index_.end()) return fmt::format("{}: tensor {}", source_, printable(name));
  const TensorPlace& place = places_[found->second];
  return tensor_place(parts_[place.part].label, name, place.offset, place.data_offset);
}

}  // namespace ebb::gguf
