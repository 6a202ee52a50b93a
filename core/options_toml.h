#pragma once

// Internal to the core: the only header that includes toml++, for manifest.cpp and
// options_toml.cpp.

#include <toml++/toml.h>

#include <memory>
#include <string>
#include <string_view>

#include "core/api/options.h"

namespace ebb {

/// Marks the source of a value as an argument of --set instead of a file.
inline constexpr std::string_view kOverridePrefix = "--set ";

/// The table of a TOML document whose values remember `source`. Never throws for bad text.
Result<toml::table> parse_toml(std::string_view text, const std::string& source);

/// "engine.toml:14:11" for a value of a file, "--set swap.slots=0" for one of the command line.
std::string position(const toml::source_region& source);
/// The folder that relative paths of a value start from: of its file, or "" (current) for --set.
std::string folder_of(const toml::source_region& source);
/// A value as TOML spells it, on one line and shortened.
std::string show(const toml::node& value);

/// Options over `table`, which is [section] of a manifest.
std::unique_ptr<Options> make_options(std::string section,
                                      std::shared_ptr<const toml::table> table);

}  // namespace ebb
