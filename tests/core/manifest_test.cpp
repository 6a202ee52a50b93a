#define BOOST_TEST_MODULE core_manifest
#define BOOST_TEST_DYN_LINK
#include "core/manifest.h"

#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include "tests/core/support.h"

namespace ebb {
namespace {

using test::message;
using test::TempFolder;

constexpr const char* kModules = R"([loader]
module = "loader_x"
path = "model.gguf"
[compute]
module = "compute_x"
[comm]
module = "comm_x"
[attention]
module = "attention_x"
[decoder]
module = "decoder_x"
)";

struct Folder : TempFolder {
  /// Loads `name` and gives the message, "" for success.
  std::string fails(std::string_view name, const std::vector<std::string>& overrides = {}) {
    return message(Manifest::load(*this / name, overrides), *this);
  }
  /// The message for a complete manifest with `text` below the modules.
  std::string with(std::string_view text, const std::vector<std::string>& overrides = {}) {
    write("with.toml", kModules + std::string(text));
    return fails("with.toml", overrides);
  }
  Manifest good(std::string_view name, const std::vector<std::string>& overrides = {}) {
    Result<Manifest> manifest = Manifest::load(*this / name, overrides);
    BOOST_REQUIRE_MESSAGE(manifest, message(manifest, *this));
    return *std::move(manifest);
  }
};

BOOST_FIXTURE_TEST_CASE(a_minimal_manifest_has_the_documented_defaults, Folder) {
  write("m.toml", kModules);
  const Manifest manifest = good("m.toml");
  BOOST_TEST(manifest.engine().name == "ebb");
  BOOST_TEST(manifest.engine().seed == 0u);
  BOOST_TEST(manifest.engine().max_context == 8192);
  BOOST_TEST(manifest.engine().max_sequences == 1);
  BOOST_TEST(manifest.engine().prefix_sequences == 0);
  BOOST_TEST(manifest.engine().prefill_chunk == 512);
  BOOST_TEST(manifest.modules_folder() == "");
  BOOST_TEST(manifest.module("tokenizer") == nullptr);
  BOOST_REQUIRE(manifest.module("comm") != nullptr);
  BOOST_TEST(manifest.module("comm")->name == "comm_x");
  BOOST_TEST(manifest.module("comm")->folder + "/" == *this / "");
  BOOST_TEST(manifest.module("comm")->where == *this / "m.toml:7:10: [comm] module");
}

BOOST_FIXTURE_TEST_CASE(every_setting_is_read, Folder) {
  write("m.toml", std::string(kModules) + R"([tokenizer]
module = "tok"
[engine]
name = "trial"
seed = 7
max_context = 16777216
max_sequences = 1024
prefix_sequences = 1023
prefill_chunk = 65536
[modules]
path = "plug/ins"
)");
  const Manifest manifest = good("m.toml");
  BOOST_TEST(manifest.engine().name == "trial");
  BOOST_TEST(manifest.engine().seed == 7u);
  BOOST_TEST(manifest.engine().max_context == 1 << 24);
  BOOST_TEST(manifest.engine().max_sequences == 1024);
  BOOST_TEST(manifest.engine().prefix_sequences == 1023);
  BOOST_TEST(manifest.engine().prefill_chunk == 65536);
  BOOST_TEST(manifest.modules_folder() == *this / "plug/ins");
  BOOST_TEST(manifest.module("tokenizer")->name == "tok");
}

BOOST_FIXTURE_TEST_CASE(modules_get_their_keys_without_the_module_key, Folder) {
  write("m.toml", kModules);
  std::unique_ptr<Options> options;
  {
    const Manifest manifest = good("m.toml");
    BOOST_TEST(bool(manifest.options("comm")->finish()));
    options = manifest.options("loader");
  }
  // The options outlive the manifest.
  const Status unread = options->finish();
  BOOST_TEST(message(unread, *this) == "m.toml:3:1: [loader] path: unknown key; known: module");
  BOOST_TEST(options->get_path("path") == *this / "model.gguf");
}

BOOST_FIXTURE_TEST_CASE(files_that_are_no_manifest_are_refused, Folder) {
  BOOST_TEST(fails("absent.toml") == "absent.toml: no such file");
  BOOST_TEST(fails("absent/m.toml") == "absent/m.toml: no such file");
  std::filesystem::create_directory(*this / "folder.toml");
  BOOST_TEST(fails("folder.toml") == "folder.toml: not a regular file");
  mkfifo((*this / "pipe.toml").c_str(), 0600);
  BOOST_TEST(fails("pipe.toml") == "pipe.toml: not a regular file");
  write("huge.toml", "# " + std::string(1 << 20, 'x'));
  BOOST_TEST(fails("huge.toml") == "huge.toml: over 1 MiB: this is no manifest");
  write("elf.toml", std::string("\x7f"
                                "ELF\x02\x01\x01\0\0\0",
                                10));
  BOOST_TEST(fails("elf.toml").starts_with("elf.toml:1:1: "));
  write("zero.toml", std::string("[engine]\nseed = 1\0\n", 19));
  BOOST_TEST(fails("zero.toml").starts_with("zero.toml:2:9: "));
  write("latin1.toml", "[engine]\nname = \"gr\xfcn\"\n");
  BOOST_TEST(fails("latin1.toml") == "latin1.toml:2:10: Encountered invalid utf-8 sequence");
  BOOST_TEST(fails("").ends_with(": not a regular file"));
  BOOST_TEST(fails("esc\x1b[m.toml") == "esc\\x1b[m.toml: no such file");
  BOOST_TEST(fails(std::string(5000, 'x')) != "");
  write("empty.toml", "");
  const std::string all = fails("empty.toml");
  for (const char* kind : {"loader", "compute", "comm", "attention", "decoder"}) {
    const std::string line = "empty.toml: [" + std::string(kind) + "] is missing: want module = ";
    BOOST_TEST(all.find(line) != all.npos, all);
  }
  BOOST_TEST(all.find("tokenizer") == all.npos);
}

BOOST_FIXTURE_TEST_CASE(syntax_errors_have_a_position, Folder) {
  for (const auto& [text, position] : std::vector<std::pair<std::string, std::string>>{
           {"a =", "s.toml:1:4: "},
           {"[engine]\nseed = 1\nseed = 2\n", "s.toml:3:8: "},
           {"[engine\n", "s.toml:1:8: "},
           {"[a]\n[b]\nx = \"open\n", "s.toml:3:10: "},
           {"[engine]\nseed = 99999999999999999999\n", "s.toml:2:28: "},
           {"\n  x = yes", "s.toml:2:7: "},
       }) {
    write("s.toml", text);
    const std::string found = fails("s.toml");
    BOOST_TEST(found.starts_with(position), found);
    BOOST_TEST(found.find('\n') == found.npos);
  }
}

BOOST_FIXTURE_TEST_CASE(absurd_nesting_is_an_error, Folder) {
  std::string dotted = "a";
  for (int i = 0; i < 200000; ++i) dotted += ".a";
  for (const std::string& text :
       {"x = " + std::string(200000, '['), "x = " + std::string(200000, '{'), dotted + " = 1",
        "[" + dotted + "]", "[[" + dotted + "]]", "x = {" + dotted + " = 1}"}) {
    write("deep.toml", text);
    BOOST_TEST(fails("deep.toml").starts_with("deep.toml:"));
    BOOST_TEST(with("", {text}) != "");
  }
  // The deepest that is parsed at all: still an error, and still no crash.
  std::string allowed = "a";
  for (int i = 0; i < 4096; ++i) allowed += ".a";
  write("deep.toml", allowed + " = 1");
  BOOST_TEST(fails("deep.toml").starts_with("deep.toml:1:1: a: unknown"));
}

BOOST_FIXTURE_TEST_CASE(unknown_sections_and_keys_are_named, Folder) {
  const std::string known =
      "loader, compute, comm, attention, decoder, tokenizer, swap, memory, engine, modules, "
      "sampling";
  BOOST_TEST(with("[swop]\nslots = 1\n") ==
             "with.toml:12:2: swop: unknown; known sections: " + known);
  write("top.toml", "slots = 3\n" + std::string(kModules));
  BOOST_TEST(fails("top.toml") == "top.toml:1:1: slots: unknown; known sections: " + known);
  BOOST_TEST(with("[engine]\nsede = 3\n") ==
             "with.toml:13:1: [engine] sede: unknown key; known: max_context, max_sequences, name, "
             "prefill_chunk, prefix_sequences, seed");
  BOOST_TEST(
      with("[engine]\nmodule = \"x\"\n").starts_with("with.toml:13:1: [engine] module: unknown"));
  write("value.toml", "engine = 3\n" + std::string(kModules));
  BOOST_TEST(fails("value.toml") == "value.toml:1:1: engine: want a table, [engine]");
  BOOST_TEST(with("[[tokenizer]]\nmodule = \"t\"\n") ==
             "with.toml:12:3: tokenizer: want a table, [tokenizer]");
}

BOOST_FIXTURE_TEST_CASE(scorers_are_a_list_of_tables_in_memory, Folder) {
  write("m.toml", std::string(kModules) + R"([memory]
module = "mem"
interval = 3
[[memory.scorer]]
module = "s_a"
layer = 1
[[memory.scorer]]
module = "s_b"
layer = 2
)");
  const Manifest manifest = good("m.toml");
  BOOST_TEST(manifest.module("memory")->name == "mem");
  BOOST_TEST(manifest.module("scorer")->name == "s_a");
  BOOST_TEST(manifest.module("scorer", 1)->name == "s_b");
  BOOST_TEST(manifest.module("scorer", 1)->where == *this / "m.toml:19:10: [memory.scorer] module");
  BOOST_TEST(manifest.module("scorer", 2) == nullptr);
  BOOST_TEST(manifest.options("scorer", 1)->get_int("layer", 0, 0, 9) == 2);
  const auto memory = manifest.options("memory");
  BOOST_TEST(memory->get_int("interval", 0, 0, 9) == 3);
  BOOST_TEST(bool(memory->finish()));  // the list is not a key that somebody forgot
  BOOST_TEST(manifest.options("scorer")->finish().error().message.find(
                 "m.toml:17:1: [memory.scorer] layer: unknown key") != std::string::npos);
  write("over.toml", "extends = \"m.toml\"\n[[memory.scorer]]\nmodule = \"s_c\"\n");
  const Manifest over = good("over.toml");
  BOOST_TEST(over.module("scorer")->name == "s_c");  // lists are replaced
  BOOST_TEST(over.module("scorer", 1) == nullptr);
  BOOST_TEST(over.module("memory")->name == "mem");
  const std::string memory_section = "[memory]\nmodule = \"mem\"\n";
  BOOST_TEST(with(memory_section + "scorer = 3\n") ==
             "with.toml:14:10: scorer: want tables [[memory.scorer]]");
  BOOST_TEST(with(memory_section + "scorer = [1]\n") ==
             "with.toml:14:10: scorer: want tables [[memory.scorer]]");
  BOOST_TEST(with(memory_section + "[[memory.scorer]]\nlayer = 1\n") ==
             "with.toml:14:1: [memory.scorer] module: want the name of a module, in quotes");
}

BOOST_FIXTURE_TEST_CASE(wrong_settings_are_reported_together, Folder) {
  BOOST_TEST(with(R"([engine]
seed = -1
max_context = 16777217
max_sequences = 0
prefill_chunk = "many"
[tokenizer]
[modules]
path = 3
)") == "with.toml:17:1: [tokenizer] module: want the name of a module, in quotes\n"
       "with.toml:13:8: [engine] seed = -1: want an integer, at least 0\n"
       "with.toml:14:15: [engine] max_context = 16777217: want an integer 1..16777216\n"
       "with.toml:15:17: [engine] max_sequences = 0: want an integer 1..1024\n"
       "with.toml:16:17: [engine] prefill_chunk = \"many\": want an integer 1..65536\n"
       "with.toml:19:8: [modules] path = 3: want a file path");
  BOOST_TEST(with("[tokenizer]\nmodule = 3\n") ==
             "with.toml:13:10: [tokenizer] module: want the name of a module, in quotes");
  BOOST_TEST(with("[tokenizer]\nmodule = \"\"\n") ==
             "with.toml:13:10: [tokenizer] module: want the name of a module, in quotes");
}

BOOST_FIXTURE_TEST_CASE(a_file_lies_on_top_of_the_one_it_extends, Folder) {
  write("base/base.toml", std::string(kModules) + "[engine]\nseed = 1\nmax_context = 4\n");
  write("base/mid.toml", "extends = \"base.toml\"\n[engine]\nseed = 2\n[sampling]\nseed = 9\n");
  write("top.toml",
        "extends = \"base/mid.toml\"\n\n\n[engine]\nname = \"top\"\n[loader]\nlist = [3]\n"
        "file = \"f\"\n[comm]\nmodule = \"./comm_y.so\"\n");
  const Manifest manifest = good("top.toml");
  BOOST_TEST(manifest.engine().name == "top");
  BOOST_TEST(manifest.engine().seed == 2u);
  BOOST_TEST(manifest.engine().max_context == 4);
  BOOST_TEST(manifest.options("sampling")->get_int("seed", 0, 0, 9) == 9);
  // Paths and positions are those of the file that spells the value.
  const auto options = manifest.options("loader");
  BOOST_TEST(options->get_path("path") == *this / "base/model.gguf");
  BOOST_TEST(options->get_path("file") == *this / "f");
  BOOST_TEST(options->where("path") == *this / "base/base.toml:3:8: [loader] path");
  BOOST_TEST(options->where("list") == *this / "top.toml:7:8: [loader] list");
  BOOST_TEST(manifest.module("comm")->folder + "/" == *this / "");
  BOOST_TEST(manifest.module("decoder")->folder == *this / "base");
}

BOOST_FIXTURE_TEST_CASE(mistakes_name_the_file_of_the_chain_they_stand_in, Folder) {
  write("base.toml", std::string(kModules) + "[engine]\nmax_context = 0\nunknown = 1\n");
  write("top.toml", "extends = \"base.toml\"\n[engine]\n\nmax_sequences = -1\n");
  BOOST_TEST(fails("top.toml") ==
             "base.toml:13:15: [engine] max_context = 0: want an integer 1..16777216\n"
             "base.toml:14:1: [engine] unknown: unknown key; known: max_context, max_sequences, "
             "name, prefill_chunk, prefix_sequences, seed\n"
             "top.toml:4:17: [engine] max_sequences = -1: want an integer 1..1024");
}

BOOST_FIXTURE_TEST_CASE(lists_are_replaced_and_tables_merged, Folder) {
  write("base.toml", std::string(kModules) +
                         "[decoder.sub]\na = 1\nb = 2\n[tokenizer]\nmodule = "
                         "\"t\"\nlist = [1, 2, 3]\n");
  write("top.toml", "extends = \"base.toml\"\n[decoder.sub]\nb = 3\n[tokenizer]\nlist = [4]\n");
  const Manifest manifest = good("top.toml");
  BOOST_TEST((manifest.options("tokenizer")->get_int_list("list", {}, 0, 9) ==
              std::vector<std::int64_t>{4}));
  BOOST_TEST(manifest.effective().find("[decoder.sub]\na = 1\nb = 3\n") != std::string::npos,
             manifest.effective());
}

BOOST_FIXTURE_TEST_CASE(another_module_starts_its_section_afresh, Folder) {
  write("base.toml", std::string(kModules) + "[tokenizer]\nmodule = \"t\"\nlist = [1]\nkeep = 2\n");
  write("same.toml", "extends = \"base.toml\"\n[tokenizer]\nmodule = \"t\"\nlist = [4]\n");
  write("other.toml", "extends = \"base.toml\"\n[tokenizer]\nmodule = \"u\"\nlist = [5]\n");
  BOOST_TEST(good("same.toml").options("tokenizer")->get_int("keep", 0, 0, 9) == 2);
  const auto options = good("other.toml").options("tokenizer");
  BOOST_TEST(!options->has("keep"));
  BOOST_TEST((options->get_int_list("list", {}, 0, 9) == std::vector<std::int64_t>{5}));
  // On the command line, in any order: all --set are one layer.
  for (const std::vector<std::string>& set :
       {std::vector<std::string>{"tokenizer.module=v", "tokenizer.fast=true"},
        {"tokenizer.fast=true", "tokenizer.module=v"},
        {"tokenizer.module=w", "tokenizer.fast=true", "tokenizer.module=v"},
        {"tokenizer.fast=false", "tokenizer={module='v', fast=true}"}}) {
    const Result<Manifest> manifest = Manifest::load(*this / "base.toml", set);
    BOOST_REQUIRE(manifest);
    BOOST_TEST(manifest->module("tokenizer")->name == "v");
    BOOST_TEST(manifest->options("tokenizer")->get_bool("fast", false));
    BOOST_TEST(!manifest->options("tokenizer")->has("keep"));
  }
}

BOOST_FIXTURE_TEST_CASE(a_table_and_a_value_of_one_name_replace_each_other, Folder) {
  write("base.toml", std::string(kModules) + "[engine]\nseed = 1\n");
  write("top.toml", "extends = \"base.toml\"\nengine = 5\n");
  BOOST_TEST(fails("top.toml") == "top.toml:2:1: engine: want a table, [engine]");
  write("top2.toml", "extends = \"top.toml\"\n[engine]\nseed = 4\n");
  BOOST_TEST(good("top2.toml").engine().seed == 4u);
}

BOOST_FIXTURE_TEST_CASE(broken_chains_are_errors_at_the_extends, Folder) {
  write("self.toml", "extends = \"self.toml\"\n");
  BOOST_TEST(
      fails("self.toml") ==
      "self.toml:1:11: extends = \"self.toml\": this file is being extended already: a cycle");
  write("a.toml", "extends = \"sub/b.toml\"\n");
  write("sub/b.toml", "\nextends = \"../a.toml\"\n");
  BOOST_TEST(
      fails("a.toml") ==
      "sub/b.toml:2:11: extends = \"../a.toml\": this file is being extended already: a cycle");
  std::filesystem::create_symlink(*this / "link.toml.target", *this / "link.toml");
  write("link.toml.target", "extends = \"link.toml\"\n");
  BOOST_TEST(fails("link.toml").ends_with("a cycle"));
  write("lost.toml", "extends = \"nowhere.toml\"\n");
  BOOST_TEST(fails("lost.toml") ==
             "lost.toml:1:11: extends = \"nowhere.toml\": nowhere.toml: no such file");
  write("far.toml", "extends = \"lost.toml\"\n");
  BOOST_TEST(fails("far.toml") ==
             "lost.toml:1:11: extends = \"nowhere.toml\": nowhere.toml: no such file");
  for (const char* value : {"3", "\"\"", "[\"base.toml\"]", "\"a\\u0000\""}) {
    write("bad.toml", "extends = " + std::string(value) + "\n");
    BOOST_TEST(fails("bad.toml").ends_with(": want the path of a manifest"));
  }
  write("broken.toml", "[engine\n");
  write("user.toml", "extends = \"broken.toml\"\n");
  BOOST_TEST(fails("user.toml").starts_with("broken.toml:1:8: "));
}

BOOST_FIXTURE_TEST_CASE(sixteen_files_may_extend_one_another, Folder) {
  write("0.toml", kModules);
  for (int i = 1; i <= 16; ++i) {
    write(std::to_string(i) + ".toml", "extends = \"" + std::to_string(i - 1) + ".toml\"\n");
  }
  BOOST_TEST(fails("15.toml") == "");
  BOOST_TEST(fails("16.toml") ==
             "1.toml:1:11: extends = \"0.toml\": want at most 16 files in a row");
}

BOOST_FIXTURE_TEST_CASE(overrides_lie_on_top_of_everything, Folder) {
  write("m.toml", std::string(kModules) + "[engine]\nseed = 1\n");
  const Manifest manifest = good(
      "m.toml", {"engine.seed=5", "engine.seed = 6", "engine.name=trial 1", "comm.module=comm_y",
                 "loader.path=x/y.gguf", "tokenizer.module=\"t\"", "tokenizer.list=[1, 2]",
                 "tokenizer.size=64KiB", "tokenizer.tag=a#b", "tokenizer.digits=5#6",
                 "tokenizer.quote=say \"hi\" \\ there",
                 "tokenizer.empty=", "tokenizer.blank=  ", "tokenizer.word = a b ",
                 "tokenizer.table={a = 1}", "tokenizer.flag=true", "sampling.temperature=0.5"});
  BOOST_TEST(manifest.engine().seed == 6u);
  BOOST_TEST(manifest.engine().name == "trial 1");
  BOOST_TEST(manifest.options("sampling")->get_float("temperature", 0, 0, 1) == 0.5);
  BOOST_TEST(manifest.module("comm")->name == "comm_y");
  BOOST_TEST(manifest.module("comm")->folder == "");
  BOOST_TEST(manifest.module("comm")->where == "--set comm.module=comm_y: [comm] module");
  // A path of the command line starts from the current folder.
  BOOST_TEST(manifest.options("loader")->get_path("path") == "x/y.gguf");
  const auto options = manifest.options("tokenizer");
  BOOST_TEST(options->get_size("size", 0, 0, 1 << 20) == 65536u);
  BOOST_TEST(options->get_string("tag", "") == "a#b");
  BOOST_TEST(options->get_string("digits", "") == "5#6");
  BOOST_TEST(options->get_string("quote", "") == "say \"hi\" \\ there");
  BOOST_TEST(options->get_string("empty", "x") == "");
  BOOST_TEST(options->get_string("blank", "x") == "");
  BOOST_TEST(options->get_string("word", "x") == "a b");
  BOOST_TEST(options->get_bool("flag", false));
  BOOST_TEST((options->get_int_list("list", {}, 0, 9) == std::vector<std::int64_t>{1, 2}));
}

BOOST_FIXTURE_TEST_CASE(bad_overrides_are_named_as_typed, Folder) {
  BOOST_TEST(with("", {"engine.max_context=0"}) ==
             "--set engine.max_context=0: [engine] max_context = 0: want an integer 1..16777216");
  BOOST_TEST(with("", {"engine.max_ctx=1"})
                 .starts_with("--set engine.max_ctx=1: [engine] max_ctx: unknown key; known: "));
  BOOST_TEST(with("", {"swop.slots=1"}).starts_with("--set swop.slots=1: swop: unknown; known"));
  BOOST_TEST(
      with("", {"extends=base.toml"}).starts_with("--set extends=base.toml: extends: unknown"));
  BOOST_TEST(with("", {"engine=3"}) == "--set engine=3: engine: want a table, [engine]");
  BOOST_TEST(with("", {"engine.seed"}) == "--set engine.seed: want section.key=value on one line");
  BOOST_TEST(with("", {"engine.seed=1\n[loader]"}) ==
             "--set engine.seed=1\\x0a[loader]: want section.key=value on one line");
  BOOST_TEST(with("", {"=1"}).starts_with("--set =1: "));
  BOOST_TEST(with("", {"a b=1"}).starts_with("--set a b=1: "));
  BOOST_TEST(with("", {"[engine]seed=1"}).starts_with("--set [engine]seed=1: "));
  BOOST_TEST(with("", {"engine.name=\"open"}).starts_with("--set engine.name=\"open: "));
  BOOST_TEST(with("", {"engine.name=[1"}).starts_with("--set engine.name=[1: "));
  BOOST_TEST(with("", {"engine.name=\xff"}).starts_with("--set engine.name=\xff: "));
}

BOOST_FIXTURE_TEST_CASE(the_effective_manifest_reads_back_as_itself, Folder) {
  write("base.toml", std::string(kModules) +
                         "[engine]\nseed = 1\nname = \"a\\u0001\\\"\\\\ü\\n\"\n"
                         "[sampling]\ntemperature = 0.1\n");
  write("top.toml", "extends = \"base.toml\"\n[engine]\nmax_context = 0x10\n");
  const Manifest manifest = good("top.toml", {"sampling.seed=3", "loader.path=other.gguf"});
  const std::string text = manifest.effective();
  BOOST_TEST(text.find("extends") == text.npos);
  write("copy.toml", text);
  const Manifest copy = good("copy.toml");
  BOOST_TEST(copy.effective() == text);
  BOOST_TEST(copy.hash() == manifest.hash());
  BOOST_TEST(copy.engine().name == "a\x01\"\\ü\n");
  BOOST_TEST(copy.engine().max_context == 16);
  BOOST_TEST(copy.options("sampling")->get_float("temperature", 0, 0, 1) == 0.1);
  BOOST_TEST(copy.options("sampling")->get_int("seed", 0, 0, 9) == 3);
  BOOST_TEST(copy.options("loader")->get_path("path") == *this / "other.gguf");
}

BOOST_FIXTURE_TEST_CASE(the_hash_changes_with_values_only, Folder) {
  write("a.toml", std::string(kModules) + "[engine]\nseed = 1\nname = \"x\"\n");
  write("b.toml", "# same values\n[engine]\nname = 'x'\nseed = 0x1\n" + std::string(kModules));
  const std::string hash = good("a.toml").hash();
  BOOST_TEST(hash.size() == 16u);
  BOOST_TEST(hash.find_first_not_of("0123456789abcdef") == hash.npos);
  BOOST_TEST(good("b.toml").hash() == hash);
  BOOST_TEST(good("a.toml", {"engine.seed=2"}).hash() != hash);
}

}  // namespace
}  // namespace ebb
