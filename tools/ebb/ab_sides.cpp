#include "tools/ebb/ab_sides.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "core/options_toml.h"
#include "core/text.h"
#include "tools/ebb/bench_report.h"
#include "tools/ebb/session.h"

namespace ebb::cli {
namespace {

constexpr std::size_t kLabel = 32;  // bytes of a value in a label

using Flat = std::map<std::string, std::string>;

// Whole, as TOML spells it, but for numbers: the shortest that mean the same.
std::string spelled(const toml::node& value) {
  const toml::value<double>* const number = value.as_floating_point();
  if (number != nullptr) return fmt::format("{}", number->get());
  std::ostringstream text;
  text << toml::toml_formatter(value, toml::format_flags::allow_unicode_strings);
  return text.str();
}

void flatten(const std::string& name, const toml::node& node, Flat& out) {
  const toml::array* const array = node.as_array();
  if (const toml::table* const table = node.as_table()) {
    for (const auto& [key, value] : *table) {
      flatten(name + (name.empty() ? "" : ".") + std::string(key.str()), value, out);
    }
  } else if (array != nullptr && array->is_array_of_tables()) {
    for (std::size_t i = 0; i < array->size(); ++i) {
      flatten(fmt::format("{}[{}]", name, i), (*array)[i], out);
    }
  } else {
    out[name] = spelled(node);
  }
}

Flat flat(const Manifest& manifest) {
  Flat out;
  const Result<toml::table> table = parse_toml(manifest.effective(), manifest.path());
  if (table) flatten("", *table, out);
  return out;
}

std::string unquoted(const std::string& value) {
  const bool is_quoted = value.size() > 1 && (value.front() == '"' || value.front() == '\'') &&
                         value.back() == value.front();
  return is_quoted ? value.substr(1, value.size() - 2) : value;
}

// A module by its path is known by its file.
std::string short_name(const std::string& value) {
  const std::string text = unquoted(value);
  return text.substr(text.rfind('/') + 1);
}

Result<std::vector<std::int32_t>> encode(const Request& request, const Engine& engine) {
  if (!request.refusal.empty()) return Error{Errc::invalid_argument, request.refusal};
  EBB_ASSIGN(std::vector<std::int32_t> prompt, encode_prompt(request, engine.tokenizer()));
  EBB_TRY(check_prompt(engine, prompt));
  return prompt;
}

}  // namespace

std::vector<AbDifference> differences_of(const Manifest& a, const Manifest& b) {
  const Flat in_a = flat(a), in_b = flat(b);
  std::map<std::string, AbDifference> all;
  for (const auto& [key, value] : in_a) all[key] = {key, value, ""};
  for (const auto& [key, value] : in_b) {
    all[key].key = key;
    all[key].b = value;
  }
  std::vector<AbDifference> differences;
  for (const auto& [key, difference] : all) {
    if (difference.a != difference.b) differences.push_back(difference);
  }
  return differences;
}

void label_sides(AbSides& sides, const std::vector<AbDifference>& differences) {
  const auto stem = [](const AbSide& side) {
    return std::filesystem::path(side.path).stem().string();
  };
  // The module is what a difference in its section is about.
  std::vector<AbDifference> heads;
  for (const AbDifference& difference : differences) {
    if (difference.key.ends_with(".module")) heads.push_back(difference);
  }
  if (heads.empty()) heads = differences;
  for (AbSide& side : sides) {
    side.label = std::string(1, side.name);
    if (heads.size() == 1) {
      const std::string& value = side.name == 'A' ? heads[0].a : heads[0].b;
      const std::string& key = heads[0].key;
      const std::string last = key.substr(key.rfind('.') + 1);
      const std::string shown = value.empty() ? last + " not set" : short_name(value);
      side.label +=
          ": " + printable(last == "module" || value.empty() ? shown : last + ' ' + shown, kLabel);
    } else if (stem(sides[0]) != stem(sides[1])) {
      side.label += ": " + printable(stem(side), kLabel);
    }
  }
}

Result<AbFacts> facts_of(Engine& engine, double open_seconds) {
  AbFacts facts;
  const ComputeInfo compute = engine.compute_info();
  facts.device = compute.device;
  facts.precision = compute.precision;
  facts.device_bytes = compute.bytes_allocated;
  facts.device_taken = compute.bytes_taken;
  facts.model = engine.loader().digest();
  facts.source = engine.loader().source();
  facts.open_seconds = open_seconds;
  facts.parts = engine.parts();
  facts.max_sequences = engine.session().max_decode;
  facts.swaps = engine.swap() != nullptr;
  if (facts.swaps) facts.swap = engine.swap()->layout();
  for (const auto& [descriptor, file] : engine.modules()) {
    facts.modules.push_back({descriptor->kind, descriptor->name, descriptor->version, file});
  }
  EBB_ASSIGN(facts.build, build_id(engine));
  return facts;
}

std::vector<Job> make_jobs(const AbSide& side, const Engine& engine, const Batch& batch,
                           std::int64_t max_tokens, std::vector<AbRefusal>& refusals) {
  GenerationSettings defaults;
  defaults.max_tokens = max_tokens;
  defaults.sampling = side.sampling;
  std::vector<Job> jobs;
  for (const Batch::Line& line : batch.lines()) {
    Result<Request> request = parse_request(line.text, defaults);
    Result<std::vector<std::int32_t>> prompt =
        request ? encode(*request, engine) : Result<std::vector<std::int32_t>>(request.error());
    if (prompt) {
      jobs.push_back({line.id, *std::move(prompt), std::move(request->settings), 0});
    } else {
      refusals.push_back({line.id, side.name, prompt.error().message});
      jobs.push_back({line.id, {}, {}, 0});
    }
  }
  return jobs;
}

Status keep_common_jobs(AbSides& sides, const std::vector<AbRefusal>& refusals) {
  std::set<std::string> refused;
  for (const AbRefusal& refusal : refusals) refused.insert(refusal.id);
  for (AbSide& side : sides) {
    std::erase_if(side.jobs, [&](const Job& job) { return refused.contains(job.id); });
  }
  if (!sides[0].jobs.empty()) return ok_status();
  const AbRefusal& first = refusals.front();
  return make_error(Errc::invalid_argument, "no prompt is served by both sides; %s on side %c: %s",
                    printable(first.id, 60).c_str(), first.side, first.why.c_str());
}

}  // namespace ebb::cli
