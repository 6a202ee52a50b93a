#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

namespace ebb::cli {

/// As CLI::Range, which lets NaN through.
inline CLI::Validator number_within(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return "";
        return fmt::format("{}: want a number of {} to {}", text, low, high);
      },
      fmt::format("in [{} - {}]", low, high));
}

/// For ranges up to the largest number there is: CLI11 reads what is larger still as that one.
inline CLI::Validator whole_within(std::int64_t low, std::int64_t high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        std::int64_t value = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, fault] = std::from_chars(text.data(), end, value);
        if (fault == std::errc() && stop == end && value >= low && value <= high) return "";
        return fmt::format("{}: want a whole number of {} to {}", text, low, high);
      },
      fmt::format("in [{} - {}]", low, high));
}

/// The number of a size, before its unit is looked at: CLI::AsSizeValue takes -1 for 2^64 - 1, and
/// what has too many digits for as much.
inline CLI::Validator size_number() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        std::int64_t value = 0;
        const auto [stop, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (fault == std::errc() && value >= 1) return "";
        return fmt::format("{}: want a whole number of 1 to {}, perhaps with a unit", text,
                           INT64_MAX);
      },
      "");
}

/// For values that an empty text, say of a variable that is not set, must not leave out.
inline CLI::Validator some_text(const char* otherwise) {
  return CLI::Validator(
      [otherwise](std::string& text) -> std::string { return text.empty() ? otherwise : ""; }, "");
}

inline CLI::Validator file_name() { return some_text("the name of the file is empty"); }

/// Results go to files and folders: some are written in place and locked, the others replaced as a
/// whole.
inline CLI::Validator output_file() {
  return file_name() & CLI::Validator(
                           [](std::string& text) -> std::string {
                             return text == "-" ? "want a name; ./- if it is to be called so" : "";
                           },
                           "");
}

}  // namespace ebb::cli
