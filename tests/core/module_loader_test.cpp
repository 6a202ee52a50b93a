#define BOOST_TEST_MODULE core_module_loader
#define BOOST_TEST_DYN_LINK
#include "core/module_loader.h"

#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include "core/api/comm.h"
#include "core/api/loader.h"
#include "core/host.h"
#include "tests/core/support.h"

namespace ebb {
namespace {

using test::message;
using test::options_of;
using test::TempFolder;

const std::string kFixtures = EBB_FIXTURES_DIR;

struct Bench : TempFolder {
  std::vector<std::string> lines;
  HostServices services{[this](LogLevel, std::string_view text) { lines.emplace_back(text); }, 5};
  ModuleLoader loader{kFixtures};

  static ModuleChoice choice(const std::string& name, const std::string& folder = "") {
    return {"comm", name, folder, "m.toml:2:10: [comm] module"};
  }
  Result<ModulePtr<Comm>> load(const std::string& name, std::string_view keys = "",
                               const std::string& folder = "") {
    const auto options = options_of(keys, "comm", "m.toml");
    return loader.load<Comm>(choice(name, folder), services.host_for(name), *options);
  }
  /// How loading `name` fails, after the part that every message begins with.
  std::string refusal(const std::string& name, const std::string& folder = "") {
    const std::string text = message(load(name, "", folder), *this);
    const std::string begin = "m.toml:2:10: [comm] module = \"" + printable_name(name) + "\": ";
    BOOST_REQUIRE_MESSAGE(text.starts_with(begin), text);
    BOOST_TEST(text.find('\n') == text.npos);
    return text.substr(begin.size());
  }
  static std::string printable_name(const std::string& name) {
    return name.size() > 80 ? name.substr(0, 80) + "..." : name;
  }
  static std::string file(const std::string& name) { return kFixtures + "/" + name + ".so: "; }
};

BOOST_FIXTURE_TEST_CASE(a_whole_module_loads_and_is_destroyed_by_itself, Bench) {
  {
    Result<ModulePtr<Comm>> module = load("fixture_good");
    BOOST_REQUIRE_MESSAGE(module, message(module, *this));
    BOOST_TEST((*module)->size() == 4);
    BOOST_TEST(module->file() == kFixtures + "/fixture_good.so");
    BOOST_TEST(module->descriptor().name == std::string("fixture_good"));
    BOOST_TEST(module->descriptor().version == std::string("1.2.3"));
    ModulePtr<Comm> moved = *std::move(module);
    BOOST_TEST(moved.get()->rank() == 3);
    BOOST_TEST(lines.empty());
    moved = ModulePtr<Comm>();  // the object goes before the code it needs
    BOOST_TEST(lines.size() == 1u);
  }
  BOOST_TEST(lines == std::vector<std::string>{"fixture_good: destroyed"},
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(two_loaders_in_one_process_do_not_share_objects, Bench) {
  const ModuleLoader second(kFixtures);
  const auto options = options_of("", "comm", "m.toml");
  Result<ModulePtr<Comm>> a = load("fixture_good");
  HostServices other_services(nullptr, 6);
  Result<ModulePtr<Comm>> b =
      second.load<Comm>(choice("fixture_good"), other_services.host_for("b"), *options);
  BOOST_REQUIRE(a);
  BOOST_REQUIRE(b);
  BOOST_TEST(a->get() != b->get());
  *a = ModulePtr<Comm>();
  BOOST_TEST(lines.size() == 1u);
  BOOST_TEST((*b)->rank() == 3);
}

BOOST_FIXTURE_TEST_CASE(faulty_modules_are_refused_before_anything_in_them_runs, Bench) {
  BOOST_TEST(refusal("fixture_no_descriptor") ==
             file("fixture_no_descriptor") + "exports no ebb_module: not a module");
  BOOST_TEST(refusal("fixture_wrong_magic") ==
             file("fixture_wrong_magic") + "magic 0x7f454c46, want 0x45424231: not a module");
  BOOST_TEST(refusal("fixture_wrong_size") ==
             file("fixture_wrong_size") + "descriptor of 16 bytes, want " +
                 std::to_string(sizeof(ModuleDescriptor)) + ": build it again");
  BOOST_TEST(refusal("fixture_wrong_abi") ==
             file("fixture_wrong_abi") + "made for ABI 0123456789abcdef-Other-1.2.3, want " EBB_ABI
                                         ": build it again");
  BOOST_TEST(refusal("fixture_no_abi") ==
             file("fixture_no_abi") + "made for ABI (none), want " EBB_ABI ": build it again");
  BOOST_TEST(refusal("fixture_wrong_kind") ==
             file("fixture_wrong_kind") + "kind loader, want comm");
  BOOST_TEST(refusal("fixture_wrong_name") ==
             file("fixture_wrong_name") +
                 "the module in it is named fixture_good, want the file's name fixture_wrong_name");
  const std::string unresolved = refusal("fixture_unresolved");
  BOOST_TEST(unresolved.starts_with(file("fixture_unresolved")));
  BOOST_TEST(unresolved.find("ebb_fixture_symbol_that_nobody_has") != unresolved.npos);
  const auto options = options_of("", "loader", "m.toml");
  const auto as_loader =
      loader.load<Loader>(choice("fixture_good"), services.host_for("x"), *options);
  BOOST_TEST(message(as_loader, *this).ends_with(file("fixture_good") + "kind comm, want loader"));
}

BOOST_FIXTURE_TEST_CASE(failures_of_create_come_back_as_errors, Bench) {
  const Result<ModulePtr<Comm>> failing = load("fixture_failing_create");
  BOOST_TEST(message(failing, *this) == "no such device: 7");
  BOOST_TEST((failing.error().code == Errc::device));
  BOOST_TEST(message(load("fixture_throwing_create"), *this) == "create failed: out of luck");
  BOOST_TEST(message(load("fixture_throwing_int"), *this) ==
             "create failed with an unknown exception");
  BOOST_TEST(message(load("fixture_null_create"), *this).find("made nothing") != std::string::npos);
  BOOST_TEST(message(load("fixture_good", "size = 1"), *this) ==
             "m.toml:1:1: [comm] size: unknown key; known: ");
}

BOOST_FIXTURE_TEST_CASE(mistakes_are_reported_for_a_module_that_does_not_ask, Bench) {
  BOOST_TEST(bool(load("fixture_forgets_finish", "size = 8")));
  BOOST_TEST(lines.size() == 1u);
  BOOST_TEST(message(load("fixture_forgets_finish", "size = 9\nsiez = 1"), *this) ==
             "m.toml:1:8: [comm] size = 9: want an integer 1..8\n"
             "m.toml:2:1: [comm] siez: unknown key; known: size");
  BOOST_TEST(lines.size() == 2u);  // the object made is destroyed
}

BOOST_FIXTURE_TEST_CASE(files_that_are_no_library_are_refused, Bench) {
  loader = ModuleLoader(*this / "modules");
  BOOST_TEST(refusal("absent") ==
             "modules/absent.so: no such file; modules: No such file or directory");
  write("modules/text.so", "[swap]\nmodule = \"swap_lru\"\n" + std::string(100, '#'));
  BOOST_TEST(refusal("text") == "modules/text.so: not a shared object, or cut short");
  write("modules/empty.so", "");
  BOOST_TEST(refusal("empty") == "modules/empty.so: not a shared object, or cut short");
  std::filesystem::create_directory(*this / "modules/folder.so");
  BOOST_TEST(refusal("folder") == "modules/folder.so: not a regular file");
  mkfifo((*this / "modules/pipe.so").c_str(), 0600);
  BOOST_TEST(refusal("pipe") == "modules/pipe.so: not a regular file");
  std::filesystem::create_symlink("nowhere.so", *this / "modules/dangling.so");
  BOOST_TEST(refusal("dangling") ==
             "modules/dangling.so: no such file; comm modules in that folder: none");
}

BOOST_FIXTURE_TEST_CASE(a_missing_module_is_told_with_those_of_its_kind, Bench) {
  loader = ModuleLoader(*this / "modules");
  write("modules/broken.so", "text");
  for (const char* name : {"fixture_good", "fixture_failing_create", "fixture_wrong_kind"}) {
    std::filesystem::copy(kFixtures + "/" + name + ".so", *this / "modules");
  }
  BOOST_TEST(refusal("absent") ==
             "modules/absent.so: no such file; comm modules in that folder: "
             "fixture_failing_create, fixture_good");
  BOOST_TEST(message(loader.open(choice("absent"), "loader"), *this)
                 .ends_with("no such file; loader modules in that folder: fixture_wrong_kind"));
  BOOST_TEST(message(loader.open(choice("absent"), "swap"), *this)
                 .ends_with("no such file; swap modules in that folder: none"));
  BOOST_TEST(lines.empty());  // nothing in them was made
  // A folder that a path names is not looked into: it may hold any libraries.
  BOOST_TEST(refusal("./absent.so", *this / "modules") == "modules/absent.so: no such file");
}

BOOST_FIXTURE_TEST_CASE(a_library_cut_short_anywhere_is_refused, Bench) {
  loader = ModuleLoader(*this / "");
  std::ifstream file(kFixtures + "/fixture_good.so", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  BOOST_REQUIRE(whole.size() > 10000u);
  for (std::size_t size = 1; size < whole.size(); size += 997) {
    write("fixture_good.so", whole.substr(0, size));
    BOOST_TEST(refusal("fixture_good") == "fixture_good.so: not a shared object, or cut short");
  }
  write("fixture_good.so", whole.substr(0, whole.size() - 1));
  BOOST_TEST(refusal("fixture_good") == "fixture_good.so: not a shared object, or cut short");
  write("fixture_good.so", whole);
  BOOST_TEST(bool(load("fixture_good")));
}

BOOST_FIXTURE_TEST_CASE(bare_names_are_plain_words, Bench) {
  const std::string want = "want a name of a-z, 0-9 and _, or a path (with /) to such a name.so";
  for (const std::string name : {"", "fixture_good.so", "Fixture_good", "fixture-good", "..", ".",
                                 "fixture good", "fixture_good\\", "gr\xc3\xbcn", "a:b"}) {
    BOOST_TEST(refusal(name) == want);
  }
  BOOST_TEST(refusal(std::string(65, 'a')) == want);
  BOOST_TEST(refusal(std::string(64, 'a')).find("/" + std::string(64, 'a') + ".so: no such file") !=
             std::string::npos);
  BOOST_TEST(message(load(std::string("fixture_good\0x", 14)), *this).ends_with(want));
}

BOOST_FIXTURE_TEST_CASE(paths_are_taken_only_if_the_manifest_spells_them, Bench) {
  const std::string want = "want a name of a-z, 0-9 and _, or a path (with /) to such a name.so";
  std::filesystem::create_directory(*this / "sub");
  std::filesystem::copy(kFixtures + "/fixture_good.so", *this / "sub/fixture_good.so");
  std::filesystem::copy(kFixtures + "/fixture_good.so", *this / "sub/other_name.so");
  BOOST_TEST(bool(load(kFixtures + "/fixture_good.so")));
  BOOST_TEST(bool(load("./fixture_good.so", "", *this / "sub")));
  BOOST_TEST(bool(load("sub/fixture_good.so", "", *this / "")));
  BOOST_TEST(bool(load("../sub/fixture_good.so", "", *this / "sub")));
  BOOST_TEST(refusal("./other_name.so", *this / "sub") ==
             "sub/other_name.so: the module in it is named fixture_good, want the file's name "
             "other_name");
  BOOST_TEST(refusal("./fixture_good", *this / "sub") == want);
  BOOST_TEST(refusal("sub/", *this / "") == want);
  BOOST_TEST(refusal("sub/..", *this / "") == want);
  BOOST_TEST(refusal("sub/Fixture.so", *this / "") == want);
  BOOST_TEST(refusal("./sub/.so", *this / "") == want);
}

BOOST_FIXTURE_TEST_CASE(the_current_folder_is_never_looked_in, Bench) {
  loader = ModuleLoader(*this / "modules");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(kFixtures);
  const std::string refused = refusal("fixture_good");
  // A modules folder named relative to the current one is the caller's wish, and works.
  const bool relative = bool(ModuleLoader(".").open(choice("fixture_good"), "comm"));
  std::filesystem::current_path(before);
  BOOST_TEST(refused ==
             "modules/fixture_good.so: no such file; modules: No such file or directory");
  BOOST_TEST(relative);
}

BOOST_FIXTURE_TEST_CASE(a_folder_is_listed_with_what_is_wrong, Bench) {
  write("modules/broken.so", "text");
  write("modules/readme.txt", "not looked at");
  std::filesystem::copy(kFixtures + "/fixture_good.so", *this / "modules");
  const auto modules = list_modules(*this / "modules");
  BOOST_REQUIRE(modules);
  BOOST_REQUIRE(modules->size() == 2u);
  BOOST_TEST(message((*modules)[0], *this) ==
             "modules/broken.so: not a shared object, or cut short");
  BOOST_REQUIRE((*modules)[1]);
  BOOST_TEST((*modules)[1]->descriptor->kind == std::string("comm"));
  BOOST_TEST((*modules)[1]->descriptor->options == std::string("size = 1\n"));
  BOOST_TEST((*modules)[1]->file == *this / "modules/fixture_good.so");
  BOOST_TEST(message(list_modules(*this / "none"), *this) == "none: No such file or directory");
}

}  // namespace
}  // namespace ebb
