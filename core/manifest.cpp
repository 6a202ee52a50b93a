#include "core/manifest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>

#include "core/options_toml.h"
#include "core/text.h"

// A manifest is read from the file named outwards: its own table, below it the table of the file it
// extends, and so on; then each --set on top. Merging moves nodes, and a toml++ node that is moved
// keeps the position it was parsed at. Then every section is read through Options, as modules do
// it, and all mistakes are reported together.

namespace ebb {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxChain = 16;  // files that extend one another

// Sections; the first five name modules that every manifest needs, the next three may be absent.
constexpr std::string_view kSections[] = {"loader",  "compute",   "comm",    "attention",
                                          "decoder", "tokenizer", "swap",    "memory",
                                          "engine",  "modules",   "sampling"};
constexpr std::size_t kRequired = 5;
constexpr std::size_t kModules = 8;
constexpr std::string_view kScorer = "scorer";

Error bad(std::string_view where, std::string_view why, Errc code = Errc::invalid_argument) {
  return Error{code, fmt::format("{}: {}", where, why)};
}

Result<std::string> read_text(const std::string& path) {
  const std::string name = printable(path);
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::not_found) return bad(name, "no such file", Errc::not_found);
  if (type != fs::file_type::regular) return bad(name, "not a regular file");
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open()) return bad(name, "cannot be opened");
  if (file.bad()) return bad(name, "cannot be read", Errc::io);
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) return bad(name, "over 1 MiB: this is no manifest");
  return text;
}

void merge(toml::table& below, toml::table&& above, bool one_source = false) {
  // The keys of a section belong to the module it names: another module brings its own.
  const auto name = above["module"].value_exact<std::string>();
  if (!one_source && name && name != below["module"].value_exact<std::string>()) below.clear();
  for (auto&& [key, value] : above) {
    toml::node* old = below.get(key);
    if (old && old->is_table() && value.is_table()) {
      merge(*old->as_table(), std::move(*value.as_table()), one_source);
      continue;
    }
    below.erase(key);
    value.visit([&below, &key = key](auto& concrete) { below.insert(key, std::move(concrete)); });
  }
}

// The table of `path` on top of those it extends. `chain` holds the files on the way here.
Result<toml::table> load_chain(const std::string& path, std::vector<fs::path>& chain) {
  EBB_ASSIGN(const std::string text, read_text(path));
  std::error_code error;
  chain.push_back(fs::weakly_canonical(path, error));
  EBB_ASSIGN(toml::table table, parse_toml(text, path));
  const toml::node* extends = table.get("extends");
  if (!extends) return table;

  const std::string where =
      fmt::format("{}: extends = {}", position(extends->source()), show(*extends));
  const auto name = extends->value_exact<std::string>();
  if (!name || name->empty() || name->find('\0') != name->npos) {
    return bad(where, "want the path of a manifest");
  }
  const std::string base_path = (fs::path(path).parent_path() / *name).lexically_normal().string();
  const fs::path base_file = fs::weakly_canonical(base_path, error);
  if (std::find(chain.begin(), chain.end(), base_file) != chain.end()) {
    return bad(where, "this file is being extended already: a cycle");
  }
  if (chain.size() >= kMaxChain) {
    return bad(where, fmt::format("want at most {} files in a row", kMaxChain));
  }
  const std::size_t depth = chain.size();
  Result<toml::table> base = load_chain(base_path, chain);
  if (!base && chain.size() == depth) {  // it is the base itself that cannot be read
    return bad(where, base.error().message, base.error().code);
  }
  EBB_ASSIGN(toml::table merged, std::move(base));
  table.erase("extends");
  merge(merged, std::move(table));
  return merged;
}

Result<toml::table> parse_override(const std::string& argument) {
  const std::string source = std::string(kOverridePrefix) + argument;
  const std::size_t equals = argument.find('=');
  const bool control = std::any_of(argument.begin(), argument.end(),
                                   [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (equals == argument.npos || control) {
    return bad(printable(source), "want section.key=value on one line");
  }
  const std::string key = argument.substr(0, equals);
  EBB_TRY(parse_toml(key + " = 0", source));  // so that a bad key is not blamed on the value
  std::string value = argument.substr(equals + 1);
  value.erase(0, value.find_first_not_of(' '));
  value.erase(value.find_last_not_of(' ') + 1);
  const bool is_quoted = value.find_first_of("\"'[{") == 0;
  if (is_quoted || value.find('#') == value.npos) {
    Result<toml::table> literal = parse_toml(key + " = " + value, source);
    if (literal || is_quoted) return literal;
  }
  for (std::size_t at = 0; (at = value.find_first_of("\\\"", at)) != value.npos; at += 2) {
    value.insert(at, 1, '\\');
  }
  return parse_toml(key + " = \"" + value + '"', source);
}

}  // namespace

struct Manifest::Tree {
  toml::table root;

  /// [kind], or the i-th [[memory.scorer]]; nullptr if there is none.
  toml::table* section(std::string_view kind, std::size_t i) {
    if (kind != kScorer) return i == 0 ? root[kind].as_table() : nullptr;
    return root["memory"][kScorer][i].as_table();
  }
};

Result<Manifest> Manifest::load(const std::string& path,
                                const std::vector<std::string>& overrides) noexcept try {
  std::vector<fs::path> chain;
  Manifest manifest;
  manifest.path_ = path;
  manifest.tree_ = std::make_shared<Tree>();
  EBB_ASSIGN(manifest.tree_->root, load_chain(path, chain));
  toml::table all_overrides;  // together one layer: the order of module and keys does not matter
  for (const std::string& argument : overrides) {
    EBB_ASSIGN(toml::table above, parse_override(argument));
    merge(all_overrides, std::move(above), true);
  }
  merge(manifest.tree_->root, std::move(all_overrides));
  EBB_TRY(manifest.read());
  return manifest;
} catch (const std::exception& thrown) {
  return bad(printable(path), printable(thrown.what()), Errc::internal);
}

Status Manifest::read() {
  std::vector<std::string> mistakes;
  const auto mistake = [&mistakes](std::string_view where, std::string_view why) {
    mistakes.push_back(bad(where, why).message);
  };
  for (const auto& [key, value] : tree_->root) {
    const std::string where = position(key.source()) + ": " + printable(key.str(), 60);
    if (std::find(std::begin(kSections), std::end(kSections), key.str()) == std::end(kSections)) {
      mistake(where, fmt::format("unknown; known sections: {}", fmt::join(kSections, ", ")));
    } else if (!value.is_table()) {
      mistake(where, "want a table, [" + std::string(key.str()) + "]");
    }
  }
  const auto read_module = [&](std::string_view kind, std::size_t i) {
    const auto* section = tree_->section(kind, i);
    if (!section) return;
    const std::string where = options(kind, i)->where("module");
    const toml::node* spelled = section->get("module");
    const auto name = spelled ? spelled->value_exact<std::string>() : std::nullopt;
    if (!name || name->empty()) {
      mistake(where, "want the name of a module, in quotes");
    } else {
      modules_.push_back({std::string(kind), *name, folder_of(spelled->source()), where});
    }
  };
  for (const std::string_view kind : std::span(kSections).first<kModules>()) {
    if (tree_->root.contains(kind)) {
      read_module(kind, 0);
    } else if (std::find(kSections, kSections + kRequired, kind) != kSections + kRequired) {
      mistake(printable(path_), fmt::format("[{}] is missing: want module = \"NAME\" in it", kind));
    }
  }
  const auto scorers = tree_->root["memory"]["scorer"];
  const toml::array* list = scorers.as_array();
  if (scorers && !(list && (list->empty() || list->is_array_of_tables()))) {
    mistake(position(scorers.node()->source()) + ": scorer", "want tables [[memory.scorer]]");
  }
  for (std::size_t i = 0; tree_->section(kScorer, i); ++i) read_module(kScorer, i);
  const auto finish = [&mistakes](Options& options) {
    if (Status status = options.finish(); !status) mistakes.push_back(status.error().message);
  };

  const auto engine = options("engine");
  engine_.name = engine->get_string("name", "ebb");
  engine_.seed = static_cast<std::uint64_t>(engine->get_int("seed", 0, 0, INT64_MAX));
  engine_.max_context = engine->get_int("max_context", 8192, 1, 1 << 24);
  engine_.max_sequences = static_cast<std::int32_t>(engine->get_int("max_sequences", 1, 1, 1024));
  engine_.prefix_sequences =
      static_cast<std::int32_t>(engine->get_int("prefix_sequences", 0, 0, 1024));
  engine_.prefill_chunk =
      static_cast<std::int32_t>(engine->get_int("prefill_chunk", 512, 1, 65536));
  finish(*engine);

  const auto modules = options("modules");
  modules_folder_ = modules->get_path("path");
  finish(*modules);

  if (mistakes.empty()) return ok_status();
  return Error{Errc::invalid_argument, fmt::format("{}", fmt::join(mistakes, "\n"))};
}

const ModuleChoice* Manifest::module(std::string_view kind, std::size_t i) const {
  const auto found = std::find_if(modules_.begin(), modules_.end(), [&](const ModuleChoice& c) {
    return c.kind == kind && i-- == 0;
  });
  return found == modules_.end() ? nullptr : &*found;
}

std::unique_ptr<Options> Manifest::options(std::string_view kind, std::size_t i) const {
  std::shared_ptr<const toml::table> keys(tree_, tree_->section(kind, i));  // holds the tree
  if (!keys) keys = std::make_shared<const toml::table>();
  if (kind == "memory" && keys->contains(kScorer)) {  // whose tables are read on their own
    toml::table own = *keys;
    own.erase(kScorer);
    keys = std::make_shared<const toml::table>(std::move(own));
  }
  const std::string section = kind == kScorer ? "memory.scorer" : std::string(kind);
  std::unique_ptr<Options> made = make_options(section, std::move(keys));
  if (module(kind, i)) (void)made->get_string("module", "");  // the core's own key
  return made;
}

std::string Manifest::effective() const {
  std::ostringstream text;
  text << toml::toml_formatter(tree_->root, toml::format_flags::none) << '\n';
  return text.str();
}

std::string Manifest::hash() const {
  const std::string text = effective();
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

}  // namespace ebb
