#include "tools/ebb/bench_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "core/text.h"

namespace ebb::cli {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

Error bad(std::string message) { return Error{Errc::invalid_argument, std::move(message)}; }

/// Numbers between commas, each `low`..`high`, sorted by `before`, equal ones once. K and M as
/// ends of a number stand for 2^10 and 2^20.
template <class Number, class Before>
Result<std::vector<Number>> parse_numbers(std::string_view text, Number low, Number high,
                                          Before before) {
  std::vector<Number> numbers;
  while (true) {
    const std::size_t end = std::min(text.find(','), text.size());
    std::string_view part = text.substr(0, end);
    const std::string_view whole = part;
    std::int64_t unit = 1;
    if (part.ends_with('K') || part.ends_with('k')) unit = std::int64_t{1} << 10;
    if (part.ends_with('M') || part.ends_with('m')) unit = std::int64_t{1} << 20;
    if (unit > 1) part.remove_suffix(1);
    std::int64_t value = 0;
    const auto [stop, fault] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (fault != std::errc() || stop != part.data() + part.size() || value < 0 ||
        value > high / unit || value * unit < low) {
      return bad(fmt::format("\"{}\": want numbers {}..{} with commas between",
                             printable(whole, 40), low, high));
    }
    numbers.push_back(static_cast<Number>(value * unit));
    if (end == text.size()) break;
    text.remove_prefix(end + 1);
  }
  std::sort(numbers.begin(), numbers.end(), before);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

}  // namespace

Result<std::vector<std::int64_t>> parse_lengths(std::string_view text) {
  return parse_numbers<std::int64_t>(text, 1, kMostTokens, std::less<>());
}

Result<std::vector<std::int32_t>> parse_batches(std::string_view text) {
  return parse_numbers<std::int32_t>(text, 1, 1024, std::greater<>());
}

Status fit_plan(BenchPlan& plan, const SessionShape& session) {
  const std::int64_t room = session.max_context - plan.decoded();
  if (room < 1) {
    return bad(fmt::format("{} decode steps at a frontier: [engine] max_context allows {} tokens",
                           plan.decoded(), session.max_context));
  }
  if (plan.batches.front() > session.max_decode) {
    return bad(fmt::format("--batch {}: [engine] max_sequences allows {}", plan.batches.front(),
                           session.max_decode));
  }
  if (plan.frontiers.empty()) {
    for (const std::int64_t length : {2048, 4096, 16384, 65536, 262144}) {
      if (length <= room) plan.frontiers.push_back(length);
    }
    if (plan.frontiers.empty()) plan.frontiers.push_back(room);
  }
  if (plan.frontiers.back() > room) {
    return bad(fmt::format(
        "--frontiers {}: with the {} tokens decoded there it takes [engine] max_context = {}, "
        "which is {}",
        plan.frontiers.back(), plan.decoded(), plan.frontiers.back() + plan.decoded(),
        session.max_context));
  }
  for (std::size_t i = 1; !plan.synthetic && i < plan.frontiers.size(); ++i) {
    if (plan.frontiers[i] > plan.frontiers[i - 1] + plan.decoded()) continue;
    return bad(
        fmt::format("--frontiers {},{}: the {} tokens decoded at the first leave nothing to "
                    "feed before the second",
                    plan.frontiers[i - 1], plan.frontiers[i], plan.decoded()));
  }
  return ok_status();
}

}  // namespace ebb::cli
