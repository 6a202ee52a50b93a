#define BOOST_TEST_MODULE core_manifest
#define BOOST_TEST_DYN_LINK
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include "tests/core/manifest_folder.h"

namespace ebb {
namespace {

using test::kModules;
using Folder = test::ManifestFolder;

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

}  // namespace
}  // namespace ebb
