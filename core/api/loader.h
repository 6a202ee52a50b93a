#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/api/module.h"
#include "core/api/types.h"

namespace ebb {

/// One metadata value. Integers of every width and sign are int64_t; a u64 above INT64_MAX is kept
/// as uint64_t. f32 and f64 are double. Arrays are never nested.
using MetaValue =
    std::variant<std::int64_t, std::uint64_t, double, bool, std::string, std::vector<std::int64_t>,
                 std::vector<double>, std::vector<bool>, std::vector<std::string>>;

/// Tensors and metadata by name.
/// Ownership: everything returned is borrowed from the loader and lives as long as it.
/// Thread:    [any] after create; the loader is read-only from then on.
class Loader : public Module {
 public:
  static constexpr const char* kKind = "loader";

  /// The value of `key`, or nullptr if the model does not carry it.
  virtual const MetaValue* meta(std::string_view key) const noexcept = 0;
  /// All keys in the order of the model.
  virtual std::span<const std::string> keys() const noexcept = 0;

  /// The tensor `name`, or nullptr. Its bytes are whole, inside the file, of a known type.
  virtual const TensorView* tensor(std::string_view name) const noexcept = 0;
  virtual std::span<const TensorView> tensors() const noexcept = 0;

  /// How a message about `key` or tensor `name` begins, with its place:
  ///   x.gguf: key deepseek4.block_count at offset 123
  ///   x.gguf: tensor blk.0.attn_kv.weight at offset 7358
  /// For something absent: `x.gguf: key NAME` (no offset). Names are escaped for one terminal line.
  virtual std::string where_key(std::string_view key) const noexcept = 0;
  virtual std::string where_tensor(std::string_view name) const noexcept = 0;

  /// What was loaded, for humans (a path, or "synthetic").
  virtual std::string_view source() const noexcept = 0;
  /// Hex digest that names the model in results: over metadata, the tensor directory (names, types,
  /// shapes, offsets) and a sample of the data, or all of it if the loader was told to verify.
  virtual std::string_view digest() const noexcept = 0;
  /// Bytes of tensor data in total.
  virtual std::uint64_t data_bytes() const noexcept = 0;
};

}  // namespace ebb
