// Manifests that are made of several: extends, --set, and what remains.

#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>

#include "tests/core/manifest_folder.h"

namespace ebb {
namespace {

using test::kModules;
using Folder = test::ManifestFolder;

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
