#include "tests/tokenizer/fake_host.h"

#include <stdexcept>

extern "C" const ebb::ModuleDescriptor ebb_module;

namespace ebb::test {
namespace {

class FakeHost final : public Host {
 public:
  explicit FakeHost(Loader* loader) : loader_(loader) {}
  void log(LogLevel, std::string_view) noexcept override {}
  void assert_thread(ThreadTag) noexcept override {}
  std::uint64_t seed() const noexcept override { return 0; }
  Loader* loader() noexcept override { return loader_; }
  Compute* compute() noexcept override { return nullptr; }
  Comm* comm() noexcept override { return nullptr; }
  Attention* attention() noexcept override { return nullptr; }

 private:
  Loader* loader_;
};

/// An empty manifest table.
class NoOptions final : public Options {
 public:
  bool get_bool(std::string_view, bool fallback) noexcept override { return fallback; }
  std::int64_t get_int(std::string_view, std::int64_t fallback, std::int64_t,
                       std::int64_t) noexcept override {
    return fallback;
  }
  double get_float(std::string_view, double fallback, double, double) noexcept override {
    return fallback;
  }
  std::uint64_t get_size(std::string_view, std::uint64_t fallback, std::uint64_t,
                         std::uint64_t) noexcept override {
    return fallback;
  }
  std::string get_string(std::string_view, std::string_view fallback) noexcept override {
    return std::string(fallback);
  }
  std::size_t get_choice(std::string_view, std::size_t fallback,
                         const std::vector<std::string_view>&) noexcept override {
    return fallback;
  }
  std::string get_path(std::string_view) noexcept override { return {}; }
  std::vector<std::int64_t> get_int_list(std::string_view,
                                         const std::vector<std::int64_t>& fallback, std::int64_t,
                                         std::int64_t) noexcept override {
    return fallback;
  }
  std::vector<double> get_float_list(std::string_view, const std::vector<double>& fallback, double,
                                     double) noexcept override {
    return fallback;
  }
  std::vector<std::string> get_string_list(
      std::string_view, const std::vector<std::string>& fallback) noexcept override {
    return fallback;
  }
  bool has(std::string_view) const noexcept override { return false; }
  std::string where(std::string_view) const noexcept override { return "fake.toml"; }
  Status finish() noexcept override { return ok_status(); }
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
  NoOptions options;
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
