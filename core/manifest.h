#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/options.h"

namespace ebb {

/// [engine]
struct EngineSettings {
  std::string name;  ///< of the experiment, for results
  std::uint64_t seed = 0;
  std::int64_t max_context = 0;       ///< tokens per sequence
  std::int32_t max_sequences = 0;     ///< decoded together
  std::int32_t prefix_sequences = 0;  ///< beside them, to be copied from
  std::int32_t prefill_chunk = 0;     ///< tokens per prefill step
};

/// Which module a section names, and where that was said.
struct ModuleChoice {
  std::string kind;    ///< the section, which is the kind of module as well
  std::string name;    ///< as spelled: a bare name, or a path with '/'
  std::string folder;  ///< of the manifest that spells it; "" is the current one (--set)
  std::string where;   ///< how a message about it begins: "x.toml:3:10: [comm] module"
};

/// A manifest file with the files it extends and the overrides of the command line, merged and
/// checked, except for the keys of modules and of [sampling]: who takes those reads them from
/// options() and checks them.
/// Merging goes table by table, key by key; lists are replaced, and a section that names another
/// module starts afresh. Every value remembers the file that spells it: messages name that file,
/// and relative paths start from its folder (those of --set from the current one). Thread:
/// [startup]
class Manifest {
 public:
  /// `overrides` are the arguments of --set: "swap.slots=1024". A value that is no TOML value is
  /// taken as text, so that words and paths need no quotes. All of them are one layer: their order
  /// matters for equal keys alone. Errors: not_found if the file or one it
  /// extends is absent; else invalid_argument with all mistakes found, one per line. Never throws,
  /// whatever the file holds.
  static Result<Manifest> load(const std::string& path,
                               const std::vector<std::string>& overrides = {}) noexcept;

  const EngineSettings& engine() const { return engine_; }
  /// [modules] path, or "" if the manifest leaves it to the program.
  const std::string& modules_folder() const { return modules_folder_; }

  /// The choice of section `kind`, or nullptr: [tokenizer], [swap] and [memory] may be absent. The
  /// i-th one of kind "scorer" is that of [[memory.scorer]].
  const ModuleChoice* module(std::string_view kind, std::size_t i = 0) const;
  /// The keys of a section that is present, without `module`. Fresh at every call; outlives
  /// this.
  std::unique_ptr<Options> options(std::string_view kind, std::size_t i = 0) const;

  /// The merged manifest as TOML, keys in order: what to write beside results. Relative paths stand
  /// as they were spelled.
  std::string effective() const;
  /// 16 hex digits: XXH3 of effective().
  std::string hash() const;
  const std::string& path() const { return path_; }

 private:
  struct Tree;  // the merged toml::table
  Status read();

  std::string path_;
  std::shared_ptr<Tree> tree_;
  EngineSettings engine_;
  std::string modules_folder_;
  std::vector<ModuleChoice> modules_;
};

}  // namespace ebb
