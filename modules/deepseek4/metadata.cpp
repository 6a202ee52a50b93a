#include "modules/deepseek4/metadata.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

namespace ebb::deepseek4 {
namespace {

std::string full_name(std::string_view name) { return "deepseek4." + std::string(name); }

/// In the order of MetaValue's alternatives.
constexpr std::array<const char*, std::variant_size_v<MetaValue>> kKinds{"an integer",
                                                                         "an integer above 2^63-1",
                                                                         "a number",
                                                                         "a bool",
                                                                         "a string",
                                                                         "an array of integers",
                                                                         "an array of numbers",
                                                                         "an array of bools",
                                                                         "an array of strings"};

std::string out_of_range(double value, double low, double high) {
  return fmt::format("{:g} is out of range, want a number in {:g}..{:g}", value, low, high);
}

}  // namespace

bool Metadata::has(std::string_view name) const { return loader_.meta(full_name(name)) != nullptr; }

Error Metadata::error(std::string_view name, std::string_view text, Errc code) const {
  return Error{code, fmt::format("{}: {}", loader_.where_key(full_name(name)), text)};
}

Error Metadata::wrong_type(std::string_view name, const MetaValue& value, const char* want) const {
  return error(name, fmt::format("wrong type: {}, want {}", kKinds[value.index()], want));
}

Result<const MetaValue*> Metadata::require(std::string_view name) const {
  const MetaValue* value = loader_.meta(full_name(name));
  if (value == nullptr) return error(name, "missing, the model needs it", Errc::not_found);
  return value;
}

Result<std::int64_t> Metadata::integer(std::string_view name, std::int64_t low,
                                       std::int64_t high) const {
  const MetaValue* value = nullptr;
  EBB_ASSIGN(value, require(name));
  if (const auto* large = std::get_if<std::uint64_t>(value)) {
    return error(name, fmt::format("{} is out of range {}..{}", *large, low, high));
  }
  const auto* number = std::get_if<std::int64_t>(value);
  if (number == nullptr) return wrong_type(name, *value, "an integer");
  if (*number < low || *number > high) {
    if (low == high) return error(name, fmt::format("{} is not supported, want {}", *number, low));
    return error(name, fmt::format("{} is out of range {}..{}", *number, low, high));
  }
  return *number;
}

Result<std::int64_t> Metadata::integer_or(std::string_view name, std::int64_t fallback,
                                          std::int64_t low, std::int64_t high) const {
  if (!has(name)) return fallback;
  return integer(name, low, high);
}

Status Metadata::read(std::string_view name, std::int32_t low, std::int32_t high,
                      std::int32_t& target) const {
  std::int64_t value = 0;
  EBB_ASSIGN(value, integer(name, low, high));
  target = static_cast<std::int32_t>(value);
  return ok_status();
}

Result<double> Metadata::number(std::string_view name, double low, double high) const {
  const MetaValue* value = nullptr;
  EBB_ASSIGN(value, require(name));
  const auto* number = std::get_if<double>(value);
  if (number == nullptr) return wrong_type(name, *value, "a number");
  // Written so that NaN fails.
  if (!(*number >= low && *number <= high)) return error(name, out_of_range(*number, low, high));
  return *number;
}

Result<bool> Metadata::boolean(std::string_view name) const {
  const MetaValue* value = nullptr;
  EBB_ASSIGN(value, require(name));
  const auto* flag = std::get_if<bool>(value);
  if (flag == nullptr) return wrong_type(name, *value, "a bool");
  return *flag;
}

Result<std::string> Metadata::text(std::string_view name) const {
  const MetaValue* value = nullptr;
  EBB_ASSIGN(value, require(name));
  const auto* text = std::get_if<std::string>(value);
  if (text == nullptr) return wrong_type(name, *value, "a string");
  return *text;
}

Result<std::vector<std::int64_t>> Metadata::integers(std::string_view name, std::size_t n) const {
  const MetaValue* value = nullptr;
  EBB_ASSIGN(value, require(name));
  const auto* values = std::get_if<std::vector<std::int64_t>>(value);
  if (values == nullptr) return wrong_type(name, *value, "an array of integers");
  if (values->size() < n) {
    return error(name, fmt::format("{} elements are too short, want at least {}: one per layer",
                                   values->size(), n));
  }
  return std::vector<std::int64_t>(values->begin(),
                                   values->begin() + static_cast<std::ptrdiff_t>(n));
}

Result<std::vector<float>> Metadata::numbers(std::string_view name, std::size_t n, double low,
                                             double high) const {
  const MetaValue* value = nullptr;
  EBB_ASSIGN(value, require(name));
  if (std::holds_alternative<double>(*value)) {
    double number_for_all = 0;
    EBB_ASSIGN(number_for_all, number(name, low, high));
    return std::vector<float>(n, static_cast<float>(number_for_all));
  }
  const auto* values = std::get_if<std::vector<double>>(value);
  if (values == nullptr) return wrong_type(name, *value, "a number or an array of numbers");
  if (values->size() < n) {
    return error(name, fmt::format("{} elements are too short, want at least {}: one per layer",
                                   values->size(), n));
  }
  std::vector<float> result;
  result.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double element = (*values)[i];
    if (!(element >= low && element <= high)) {
      return error(name, fmt::format("element {}: {}", i, out_of_range(element, low, high)));
    }
    result.push_back(static_cast<float>(element));
  }
  return result;
}

}  // namespace ebb::deepseek4
