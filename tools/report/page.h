#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/result.h"

namespace ebb::report {

/// Values of a template's names.
using Values = std::map<std::string, std::string, std::less<>>;

/// Fills a template: {{name}} is the value as text, {{&name}} as it is; what stands between
/// {{#name}} and {{/name}} stays if the value is not empty, between {{^name}} and {{/name}} if it
/// is. Errors: internal for a name without a value, or a section that is not closed.
Result<std::string> fill(std::string_view text, const Values& values);

/// The page of `ebb ab`: tools/report/ab.html says which values it wants, beside `title`.
Result<std::string> ab_page(Values values);

/// A page of charts: drawn SVG, one below the other, and a note in words.
Result<std::string> plot_page(std::string_view title, std::string_view note,
                              const std::vector<std::string>& charts);

/// The same charts as one SVG that carries its style. A viewer that knows of dark screens shows it
/// dark there.
std::string plot_svg(const std::vector<std::string>& charts);

}  // namespace ebb::report
