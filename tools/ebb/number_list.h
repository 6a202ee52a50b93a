#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace ebb::cli {

/// Whole numbers of `low` to `high` with commas between, in their order; none if anything else is
/// there. (A list of CLI11 leaves out what is empty, so that an empty one is no list at all.)
std::vector<std::int64_t> read_numbers(std::string_view text, std::int64_t low, std::int64_t high);

/// Adds an option that takes such a list, at least one number.
void add_number_list(CLI::App& app, const char* flag, std::vector<std::int64_t>& numbers,
                     const char* says, std::int64_t low, std::int64_t high);

}  // namespace ebb::cli
