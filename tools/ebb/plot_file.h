#pragma once

#include <string>
#include <vector>

#include "core/api/result.h"

namespace ebb::cli {

/// Whether --plot names a file that can be written: FILE.svg or FILE.html. An empty name can.
Status probe_plot(const std::string& path);

/// Writes drawn charts: as one picture, or as a page with a title and a note in words.
Status write_plot(const std::string& path, const std::string& title, const std::string& note,
                  const std::vector<std::string>& charts);

}  // namespace ebb::cli
