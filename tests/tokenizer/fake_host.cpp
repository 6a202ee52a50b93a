#include "tests/tokenizer/fake_host.h"

#include <stdexcept>

#include "tests/core/bare_host.h"
#include "tools/ebb/path_option.h"

extern "C" const ebb::ModuleDescriptor ebb_module;

namespace ebb::test {
namespace {

class FakeHost final : public BareHost {
 public:
  explicit FakeHost(Loader* loader) : loader_(loader) {}
  Loader* loader() noexcept override { return loader_; }

 private:
  Loader* loader_;
};

}  // namespace

const MetaValue* FakeLoader::meta(std::string_view key) const noexcept {
  const auto found = values.find(key);
  return found == values.end() ? nullptr : &found->second;
}

std::string FakeLoader::where_key(std::string_view key) const noexcept {
  const std::string place = meta(key) == nullptr ? "" : " at offset 77";
  return "fake.gguf: key " + std::string(key) + place;
}

std::string FakeLoader::where_tensor(std::string_view name) const noexcept {
  return "fake.gguf: tensor " + std::string(name);
}

void Destroy::operator()(Tokenizer* tokenizer) const noexcept { ebb_module.destroy(tokenizer); }

Result<TokenizerPtr> make_tokenizer(Loader* loader) {
  FakeHost host(loader);
  cli::PathOption options("");  // the module has no keys
  Result<Module*> made = ebb_module.create(host, options);
  if (!made) return std::move(made).error();
  return TokenizerPtr(static_cast<Tokenizer*>(*made));
}

TokenizerPtr tokenizer_of(Loader& loader) {
  Result<TokenizerPtr> made = make_tokenizer(&loader);
  if (!made) throw std::runtime_error(made.error().message);
  return *std::move(made);
}

}  // namespace ebb::test
