#pragma once

// Internal: the only header of the core that includes toml++, for manifest.cpp and
// options_toml.cpp.

#include <toml++/toml.h>

#include <memory>
#include <string>
#include <string_view>

#include "core/api/options.h"

namespace ebb {

/// How the text of a --set argument is marked as the source of a value; see position().
inline constexpr std::string_view kOverridePrefix = "--set ";

/// The table of a TOML document whose values remember `source`. Never throws for bad text.
Result<toml::table> parse_toml(std::string_view text, const std::string& source);

/// "engine.toml:14:11" for a value of a file, "--set swap.slots=0" for one of the command line.
std::string position(const toml::source_region& source);

/// A value as TOML spells it, on one line and shortened.
std::string show(const toml::node& value);

/// Options over `table`, which is [section] of a manifest; `origin` stands in for the position of a
/// section that nobody wrote.
std::unique_ptr<Options> make_options(std::string section, std::shared_ptr<const toml::table> table,
                                      std::string origin);

}  // namespace ebb
