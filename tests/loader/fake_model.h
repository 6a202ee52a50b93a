#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/loader.h"

namespace ebb::test {

/// A loader whose keys and tensors a test sets by hand. Messages name "fake".
class FakeModel final : public Loader {
 public:
  FakeModel() = default;
  FakeModel(FakeModel&&) = default;  // tensors point into the object's own maps: no copies
  FakeModel& operator=(FakeModel&&) = default;

  /// A valid model: three layers of ratios 0, 4 and 128, the first of them hash-routed, D 16,
  /// 2 heads of 96 (32 rotated), 4 experts of which 2 are used, 40 tokens. All tensors are zeros.
  static FakeModel valid();

  template <class T>
  void set(const std::string& key, T value) {
    metadata_[key] = MetaValue(std::move(value));
  }
  void remove_key(const std::string& key) { metadata_.erase(key); }
  void add_tensor(const std::string& name, DType type, const std::vector<std::int64_t>& ne);
  void remove_tensor(const std::string& name) { tensors_.erase(name); }
  /// Contents of an I32 tensor.
  void set_ids(const std::string& name, std::vector<std::int32_t> ids);

  const MetaValue* meta(std::string_view key) const noexcept override;
  std::span<const std::string> keys() const noexcept override { return {}; }
  const TensorView* tensor(std::string_view name) const noexcept override;
  std::span<const TensorView> tensors() const noexcept override { return {}; }
  std::string where_key(std::string_view key) const noexcept override;
  std::string where_tensor(std::string_view name) const noexcept override;
  std::string_view source() const noexcept override { return "fake"; }
  std::string_view digest() const noexcept override { return ""; }
  std::uint64_t data_bytes() const noexcept override { return 0; }

 private:
  std::map<std::string, MetaValue, std::less<>> metadata_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::vector<std::int32_t>, std::less<>> ids_;
};

}  // namespace ebb::test
