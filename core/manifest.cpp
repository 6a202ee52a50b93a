#include "core/manifest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/text.h"
#include "core/toml_tools.h"

// A manifest is read from the file named outwards: its own table, below it the table of the file it
// extends, and so on; then each --set on top. Merging moves nodes, and a toml++ node that is moved
// keeps the position it was parsed at. Then every section is read through Options, as modules do
// it, and all mistakes are reported together.

namespace ebb {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxChain = 16;  // files that extend one another

struct Section {
  std::string_view name;
  bool is_module;
  bool required;
};
constexpr std::array<Section, 9> kSections{{{"engine", false, false},
                                            {"modules", false, false},
                                            {"loader", true, true},
                                            {"tokenizer", true, false},
                                            {"compute", true, true},
                                            {"comm", true, true},
                                            {"attention", true, true},
                                            {"decoder", true, true},
                                            {"sampling", false, false}}};

Result<std::string> read_text(const std::string& path) {
  const std::string name = printable(path);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return Error{Errc::not_found, fmt::format("{}: no such file", name)};
  }
  if (status.type() != fs::file_type::regular) {
    return Error{Errc::invalid_argument, fmt::format("{}: not a regular file", name)};
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return Error{Errc::io, fmt::format("{}: cannot be read", name)};
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    return Error{Errc::invalid_argument, fmt::format("{}: over 1 MiB: this is no manifest", name)};
  }
  return text;
}

void merge(toml::table& below, toml::table&& above) {
  for (auto&& [key, value] : above) {
    toml::node* old = below.get(key);
    if (old && old->is_table() && value.is_table()) {
      merge(*old->as_table(), std::move(*value.as_table()));
      continue;
    }
    below.erase(key);
    value.visit([&below, &key = key](auto& concrete) { below.insert(key, std::move(concrete)); });
  }
}

// The table of `path` on top of those it extends. `chain` holds the files on the way here.
Result<toml::table> load_chain(const std::string& path, std::vector<fs::path>& chain) {
  EBB_ASSIGN(const std::string text, read_text(path));
  EBB_ASSIGN(toml::table table, parse_toml(text, path));
  std::error_code error;
  chain.push_back(fs::weakly_canonical(path, error));
  const toml::node* extends = table.get("extends");
  if (!extends) return table;

  const std::string where =
      fmt::format("{}: extends = {}", position(extends->source()), show(*extends));
  const auto fail = [&where](Errc code, std::string_view why) {
    return Error{code, fmt::format("{}: {}", where, why)};
  };
  const auto name = extends->value_exact<std::string>();
  if (!name || name->empty() || name->find('\0') != name->npos) {
    return fail(Errc::invalid_argument, "want the path of a manifest");
  }
  const std::string base_path = (fs::path(path).parent_path() / *name).lexically_normal().string();
  const fs::path base_file = fs::weakly_canonical(base_path, error);
  if (std::find(chain.begin(), chain.end(), base_file) != chain.end()) {
    return fail(Errc::invalid_argument, "this file is already being extended: a cycle");
  }
  if (chain.size() >= kMaxChain) {
    return fail(Errc::invalid_argument, fmt::format("want at most {} files in a row", kMaxChain));
  }
  Result<toml::table> base = load_chain(base_path, chain);
  if (!base && base.error().code == Errc::not_found && chain.back() != base_file) {
    return fail(Errc::not_found, base.error().message);
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
    return Error{Errc::invalid_argument,
                 fmt::format("{}: want section.key=value on one line", printable(source))};
  }
  const std::string key = argument.substr(0, equals);
  std::string value = argument.substr(equals + 1);
  EBB_TRY(parse_toml(key + " = 0", source));  // so that a bad key is not blamed on the value
  const bool is_quoted = value.find_first_of("\"'[{") == value.find_first_not_of(' ');
  if (is_quoted || value.find('#') == value.npos) {
    Result<toml::table> literal = parse_toml(key + " = " + value, source);
    if (literal || (is_quoted && !value.empty())) return literal;
  }
  for (std::size_t at = 0; (at = value.find_first_of("\\\"", at)) != value.npos; at += 2) {
    value.insert(at, 1, '\\');
  }
  return parse_toml(key + " = \"" + value + '"', source);
}

}  // namespace

struct Manifest::Tables {
  toml::table root;
};

Result<Manifest> Manifest::load(const std::string& path,
                                const std::vector<std::string>& overrides) noexcept {
  try {
    return load_checked(path, overrides);
  } catch (const std::exception& thrown) {
    return Error{Errc::internal, printable(path) + ": " + printable(thrown.what())};
  }
}

Result<Manifest> Manifest::load_checked(const std::string& path,
                                        const std::vector<std::string>& overrides) {
  std::vector<fs::path> chain;
  Manifest manifest;
  manifest.path_ = path;
  manifest.tables_ = std::make_shared<Tables>();
  EBB_ASSIGN(manifest.tables_->root, load_chain(path, chain));
  for (const std::string& argument : overrides) {
    EBB_ASSIGN(toml::table above, parse_override(argument));
    merge(manifest.tables_->root, std::move(above));
  }
  EBB_TRY(manifest.read());
  return manifest;
}

Status Manifest::read() {
  std::vector<std::string> mistakes;
  const auto finish = [&mistakes](Options& options) {
    if (Status status = options.finish(); !status) mistakes.push_back(status.error().message);
  };
  for (const auto& [key, value] : tables_->root) {
    const bool known = std::any_of(kSections.begin(), kSections.end(),
                                   [&key = key](const Section& s) { return s.name == key.str(); });
    if (known && value.is_table()) continue;
    std::string want = "want a table";
    if (!known) {
      want = "unknown; known sections:";
      for (const Section& section : kSections) want.append(" ").append(section.name);
    }
    mistakes.push_back(fmt::format("{}: {}: {}", position(known ? value.source() : key.source()),
                                   printable(key.str(), 60), want));
  }
  for (const Section& section : kSections) {
    if (!section.is_module) continue;
    const toml::node* node = tables_->root.get(section.name);
    if (!node && section.required) {
      mistakes.push_back(fmt::format("{}: [{}] is missing: want module = \"NAME\" in it",
                                     printable(path_), section.name));
    }
    if (!node || !node->is_table()) continue;
    std::unique_ptr<Options> keys = options(section.name);
    ModuleChoice choice{std::string(section.name), keys->get_string("module", ""), "",
                        keys->where("module")};
    const toml::node* spelled = node->as_table()->get("module");
    if (!spelled || (spelled->is_string() && choice.name.empty())) {
      mistakes.push_back(choice.where + ": want the name of a module in quotes");
    } else if (!spelled->is_string()) {
      mistakes.push_back(fmt::format("{} = {}: want the name of a module in quotes", choice.where,
                                     show(*spelled)));
    } else if (const auto& file = spelled->source().path; !file->starts_with(kOverridePrefix)) {
      choice.folder = fs::path(*file).parent_path().string();
    }
    modules_.push_back(std::move(choice));
  }

  const auto engine = options("engine");
  engine_.name = engine->get_string("name", "ebb");
  engine_.seed = static_cast<std::uint64_t>(engine->get_int("seed", 0, 0, INT64_MAX));
  engine_.max_context = engine->get_int("max_context", 8192, 1, 1 << 24);
  engine_.max_sequences = static_cast<std::int32_t>(engine->get_int("max_sequences", 1, 1, 1024));
  engine_.prefill_chunk =
      static_cast<std::int32_t>(engine->get_int("prefill_chunk", 512, 1, 65536));
  finish(*engine);

  const auto modules = options("modules");
  modules_folder_ = modules->get_path("path");
  finish(*modules);

  const auto sampling = options("sampling");
  sampling_.temperature = sampling->get_float("temperature", 0, 0, 100);
  sampling_.top_p = sampling->get_float("top_p", 1, 0, 1);
  sampling_.top_k = static_cast<std::int32_t>(sampling->get_int("top_k", 0, 0, 1 << 24));
  sampling_.seed = static_cast<std::uint64_t>(
      sampling->get_int("seed", static_cast<std::int64_t>(engine_.seed), 0, INT64_MAX));
  finish(*sampling);

  if (mistakes.empty()) return ok_status();
  return Error{Errc::invalid_argument, fmt::format("{}", fmt::join(mistakes, "\n"))};
}

const ModuleChoice* Manifest::module(std::string_view kind) const {
  const auto found = std::find_if(modules_.begin(), modules_.end(),
                                  [kind](const ModuleChoice& c) { return c.kind == kind; });
  return found == modules_.end() ? nullptr : &*found;
}

std::unique_ptr<Options> Manifest::options(std::string_view kind) const {
  const toml::table* table = tables_->root[kind].as_table();
  std::shared_ptr<const toml::table> keys(tables_, table);  // keeps the whole tree alive
  if (!table) keys = std::make_shared<const toml::table>();
  std::unique_ptr<Options> made = make_options(std::string(kind), std::move(keys), path_);
  const bool is_module = std::any_of(kSections.begin(), kSections.end(), [kind](const Section& s) {
    return s.name == kind && s.is_module;
  });
  if (is_module && made->has("module")) (void)made->get_string("module", "");
  return made;
}

std::string Manifest::effective() const {
  std::ostringstream text;
  text << toml::toml_formatter(tables_->root, toml::format_flags::none) << '\n';
  return text.str();
}

std::string Manifest::hash() const {
  const std::string text = effective();
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

}  // namespace ebb
