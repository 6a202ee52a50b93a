#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/api/options.h"

namespace ebb {

/// Options over one table given as TOML text without a header, for tests and tools that have no
/// manifest. `section` and `source` (a file name) appear in messages; relative paths resolve
/// against the folder of `source`.   Errors: invalid_argument with the position of a syntax error.
Result<std::unique_ptr<Options>> parse_options(std::string_view text, std::string section,
                                               const std::string& source);

}  // namespace ebb
