#include "tools/ebb/needles.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/text.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/lines.h"

namespace ebb::cli {

Result<std::vector<Needle>> parse_needles(std::string_view text, const std::string& name,
                                          std::int64_t limit) {
  std::vector<Needle> needles;
  std::unordered_map<std::string, int> line_of_id;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (is_blank(line)) continue;
    if (limit > 0 && static_cast<std::int64_t>(needles.size()) == limit) break;
    const auto fail = [&name, number](std::string_view why) {
      return Error{Errc::invalid_argument, fmt::format("{}:{}: {}", printable(name), number, why)};
    };
    const Result<nlohmann::json> parsed = parse_json(line);
    if (!parsed) return fail(parsed.error().message);
    const auto field = [&parsed](const char* key) -> std::string {
      const auto found = parsed->find(key);
      return found != parsed->end() && found->is_string() ? found->get<std::string>() : "";
    };
    if (!parsed->is_object()) return fail("want a JSON object");
    Needle needle{field("id"), field("prompt"), field("task"), field("answer"), {}};
    if (const auto list = parsed->find("answers"); list != parsed->end() && list->is_array()) {
      for (const nlohmann::json& one : *list) {
        needle.answers.push_back(one.is_string() ? one.get<std::string>() : "");
      }
    }
    const bool has_all = std::none_of(needle.answers.begin(), needle.answers.end(),
                                      [](const std::string& one) { return one.empty(); });
    if (needle.id.empty() || needle.prompt.empty() || !has_all ||
        needle.answer.empty() == needle.answers.empty()) {
      return fail("want id, prompt and answer, all text; or instead of answer, answers, a list");
    }
    if (const auto [first, is_new] = line_of_id.emplace(needle.id, number); !is_new) {
      return fail(
          fmt::format("id {} stands in line {} already", printable(needle.id, 60), first->second));
    }
    needles.push_back(std::move(needle));
  }
  if (needles.empty()) {
    return Error{Errc::invalid_argument, printable(name) + ": no needle in it"};
  }
  return needles;
}

std::string NeedleBucket::name() const {
  const std::string shown = printable(task, 40);
  return fmt::format("{}{}<={}", shown, shown.empty() ? "" : " ", limit);
}

}  // namespace ebb::cli
