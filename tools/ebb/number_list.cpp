#include "tools/ebb/number_list.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <string>

#include "core/text.h"

namespace ebb::cli {

std::vector<std::int64_t> read_numbers(std::string_view text, std::int64_t low, std::int64_t high) {
  std::vector<std::int64_t> numbers;
  for (;;) {
    const std::string_view part = text.substr(0, text.find(','));
    std::int64_t value = 0;
    const auto [stop, fault] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (fault != std::errc() || stop != part.data() + part.size() || value < low || value > high) {
      return {};
    }
    numbers.push_back(value);
    if (part.size() == text.size()) return numbers;
    text.remove_prefix(part.size() + 1);
  }
}

void add_number_list(CLI::App& app, const char* flag, std::vector<std::int64_t>& numbers,
                     const char* says, std::int64_t low, std::int64_t high) {
  app.add_option_function<std::string>(
         flag,
         [&numbers, low, high](const std::string& text) {
           numbers = read_numbers(text, low, high);
         },
         says)
      ->check(CLI::Validator(
          [low, high](std::string& text) -> std::string {
            if (!read_numbers(text, low, high).empty()) return "";
            return fmt::format("\"{}\": want whole numbers of {} to {} with commas between",
                               printable(text, 40), low, high);
          },
          fmt::format("in [{} - {}]", low, high)))
      ->type_name("N,N,...");
}

}  // namespace ebb::cli
