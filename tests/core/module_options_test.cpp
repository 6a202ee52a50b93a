#define BOOST_TEST_MODULE core_module_options
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <set>

#include "core/host.h"
#include "core/module_loader.h"
#include "tests/core/support.h"

// options.toml of a module is its documentation: every key with its default. Here each module's
// create reads that very text, through Options that compare what is written with the default the
// code gives. The last call, finish(), fails always, so that nothing is made: a module must read
// all its options, then finish, then look at the rest of the world (modules/README.md).

namespace ebb {
namespace {

constexpr const char* kStop = "stop after the options";

class ComparingOptions final : public Options {
 public:
  explicit ComparingOptions(std::unique_ptr<Options> documented)
      : documented_(std::move(documented)) {}

  bool get_bool(std::string_view key, bool fallback) noexcept override {
    return compare(key, fallback, documented_->get_bool(key, !fallback));
  }
  std::int64_t get_int(std::string_view key, std::int64_t fallback, std::int64_t low,
                       std::int64_t high) noexcept override {
    return compare(key, fallback, documented_->get_int(key, other(fallback), low, high));
  }
  std::int64_t get_int_or_auto(std::string_view key, std::int64_t fallback, std::int64_t low,
                               std::int64_t high) noexcept override {
    return compare(key, fallback, documented_->get_int_or_auto(key, other(fallback), low, high));
  }
  double get_float(std::string_view key, double fallback, double low,
                   double high) noexcept override {
    return compare(key, fallback, documented_->get_float(key, fallback + 1, low, high));
  }
  std::uint64_t get_size(std::string_view key, std::uint64_t fallback, std::uint64_t low,
                         std::uint64_t high) noexcept override {
    return compare(key, fallback, documented_->get_size(key, fallback + 1, low, high));
  }
  std::string get_string(std::string_view key, std::string_view fallback) noexcept override {
    return compare(key, std::string(fallback),
                   documented_->get_string(key, std::string(fallback) + "?"));
  }
  std::size_t get_choice(std::string_view key, std::size_t fallback,
                         const std::vector<std::string_view>& allowed) noexcept override {
    return compare(key, fallback, documented_->get_choice(key, allowed.size(), allowed));
  }
  std::string get_path(std::string_view key) noexcept override {
    // "" is how a file says that a path has no default; as a value it would be a mistake.
    return compare(key, std::string(), documented_->get_string(key, "?"));
  }
  std::vector<std::int64_t> get_int_list(std::string_view key,
                                         const std::vector<std::int64_t>& fallback,
                                         std::int64_t low, std::int64_t high) noexcept override {
    return compare(key, fallback, documented_->get_int_list(key, {}, low, high));
  }
  bool has(std::string_view) const noexcept override { return false; }
  std::string where(std::string_view key) const noexcept override {
    return documented_->where(key);
  }
  Status finish() noexcept override {
    if (const Status status = documented_->finish(); !status) faults.insert(status.error().message);
    return make_error(Errc::internal, kStop);
  }

  std::set<std::string> faults;

 private:
  static std::int64_t other(std::int64_t value) { return value == 0 ? 1 : 0; }

  template <class T>
  T compare(std::string_view key, T fallback, const T& documented) {
    if (!documented_->has(key)) {
      faults.insert(documented_->where(key) + ": not documented");
    } else if (documented != fallback) {
      faults.insert(documented_->where(key) + ": not the default of the code");
    }
    return fallback;
  }

  std::unique_ptr<Options> documented_;
};

/// What is wrong with the documentation of an opened module, one line each.
std::set<std::string> faults_of(const ModuleDescriptor& descriptor, std::string_view text) {
  ComparingOptions options(
      test::options_of(text, descriptor.kind, std::string(descriptor.name) + "/options.toml"));
  HostServices services(nullptr, 0);
  Result<Module*> made = descriptor.create(services.host_for(descriptor.name), options);
  if (made) {
    descriptor.destroy(*made);
    options.faults.insert(std::string(descriptor.name) + ": create does not call finish()");
  } else if (made.error().message != kStop) {
    options.faults.insert(std::string(descriptor.name) +
                          ": create fails before finish(): " + made.error().message);
  }
  return options.faults;
}

/// What to print with a check: the message is made whether the check fails or not.
template <class T>
std::string error_of(const Result<T>& result) {
  return result ? "" : result.error().message;
}

BOOST_AUTO_TEST_CASE(every_module_reads_the_keys_it_documents_with_their_defaults) {
  const auto modules = list_modules(EBB_MODULES_DIR);
  BOOST_REQUIRE_MESSAGE(modules, error_of(modules));
  BOOST_TEST(!modules->empty());
  for (const Result<OpenModule>& module : *modules) {
    BOOST_TEST_REQUIRE(bool(module), error_of(module));
    for (const std::string& fault : faults_of(*module->descriptor, module->descriptor->options)) {
      BOOST_ERROR(fault);
    }
  }
}

// The comparison itself, on a module that reads one integer, `size`, with default 1.
BOOST_AUTO_TEST_CASE(faults_of_the_documentation_are_found) {
  const auto module =
      ModuleLoader(EBB_FIXTURES_DIR).open({"comm", "fixture_forgets_finish", "", "x"}, "comm");
  BOOST_REQUIRE_MESSAGE(module, error_of(module));
  const auto faults = [&module](std::string_view text) {
    std::string all;
    for (const std::string& fault : faults_of(*module->descriptor, text)) all += fault + "\n";
    return all;
  };
  const std::string place = "fixture_forgets_finish/options.toml";
  const std::string forgets = "fixture_forgets_finish: create does not call finish()\n";
  BOOST_TEST(faults("size = 1") == forgets);
  BOOST_TEST(faults("size = 2") ==
             place + ":1:8: [comm] size: not the default of the code\n" + forgets);
  BOOST_TEST(faults("size = \"1\"") ==
             place + ":1:8: [comm] size: not the default of the code\n" + forgets);
  BOOST_TEST(faults("") == place + ":1:1: [comm] size: not documented\n" + forgets);
}

}  // namespace
}  // namespace ebb
