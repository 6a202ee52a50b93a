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
#include "core/api/module.h"
#include "core/api/tokenizer.h"

namespace ebb::test {

/// A loader that holds metadata only, to be filled by the test. Its file is "fake.gguf", and every
/// key is at offset 77.
class FakeLoader final : public Loader {
 public:
  std::map<std::string, MetaValue, std::less<>> values;

  template <class T>
  T& get(std::string_view key) {
    return std::get<T>(values.find(key)->second);
  }

  const MetaValue* meta(std::string_view key) const noexcept override;
  std::span<const std::string> keys() const noexcept override { return {}; }
  const TensorView* tensor(std::string_view) const noexcept override { return nullptr; }
  std::span<const TensorView> tensors() const noexcept override { return {}; }
  std::string where_key(std::string_view key) const noexcept override;
  std::string where_tensor(std::string_view name) const noexcept override;
  std::string_view source() const noexcept override { return "fake.gguf"; }
  std::string_view digest() const noexcept override { return ""; }
  std::uint64_t data_bytes() const noexcept override { return 0; }
};

struct Destroy {
  void operator()(Tokenizer* tokenizer) const noexcept;
};
using TokenizerPtr = std::unique_ptr<Tokenizer, Destroy>;

/// A tokenizer of `loader` through the module's descriptor; without a loader if it is null.
Result<TokenizerPtr> make_tokenizer(Loader* loader);

/// The same where nothing is expected to go wrong; throws the error's text if it does.
TokenizerPtr tokenizer_of(Loader& loader);

}  // namespace ebb::test
