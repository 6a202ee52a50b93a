#include "tools/ebb/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/text.h"
#include "tools/ebb/fields.h"

namespace ebb::cli {
namespace {

using nlohmann::ordered_json;

std::uint64_t bytes_of(const NamedBytes& parts, std::string_view name) {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [name](const auto& part) { return part.first == name; });
  return found == parts.end() ? 0 : found->second;
}

std::uint64_t sum(const NamedBytes& parts) {
  std::uint64_t all = 0;
  for (const auto& [name, bytes] : parts) all += bytes;
  return all;
}

NamedBytes subtract(const NamedBytes& more, const NamedBytes& less) {
  NamedBytes rest;
  for (const auto& [name, bytes] : more) {
    const std::uint64_t other = bytes_of(less, name);
    if (bytes > other) rest.emplace_back(name, bytes - other);
  }
  return rest;
}

std::string line(std::string_view name, std::uint64_t one, std::uint64_t all) {
  return fmt::format("  {:<34} {:>18} {:>18} {:>12}\n", name, one > 0 ? fmt::format("{}", one) : "",
                     all, format_bytes(all));
}

std::string format_parts(const NamedBytes& parts, const NamedBytes& per_sequence) {
  std::string text;
  for (const auto& [name, bytes] : parts) text += line(name, bytes_of(per_sequence, name), bytes);
  return text + line("in all", sum(per_sequence), sum(parts));
}

std::string describe(const Footprint& found) {
  return fmt::format(
      "model    {}: {} in {} tensors, made for {} tokens\n"
      "session  {} tokens a sequence, {}, up to {} rows a step\n"
      "compute  {}: {}\n",
      printable(found.source), format_bytes(found.data_bytes), found.n_tensors,
      found.model.context_length, found.session.max_context, describe_sequences(found.session),
      found.session.max_rows, printable(found.compute_module), printable(found.compute.device));
}

std::string describe_swapping(const Footprint& found) {
  if (!found.swap) return "swapping off: every chunk row stays in compute memory\n";
  return fmt::format(
      "swapping {}: slots for {} of the {} chunks of each of {} layers; {} bytes of rows a "
      "sequence ({}) stay out of compute memory\n",
      printable(found.swap_module), found.swap->n_slots, found.swap->n_chunks, found.swap->n_layers,
      found.rows_kept_out(), format_bytes(found.rows_kept_out()));
}

std::string mebibytes(std::uint64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / (1 << 20));
}

// The parts of all of them, each name once, in order.
std::vector<std::string> names_of(const std::vector<const NamedBytes*>& lists) {
  std::vector<std::string> names;
  for (const NamedBytes* list : lists) {
    for (const auto& [name, bytes] : *list) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

// One way of keeping rows: a column for each context.
std::string format_contexts(const std::vector<ContextRow>& rows,
                            const std::function<const PlannedContext*(const ContextRow&)>& of) {
  using Cell = std::function<std::string(const PlannedContext&)>;
  std::string text;
  const auto add = [&](const std::string& name, const Cell& cell) {
    text += fmt::format("  {:<28}", name);
    for (const ContextRow& row : rows) {
      const PlannedContext* const planned = of(row);
      text += fmt::format(" {:>13}", planned == nullptr ? "-" : cell(*planned));
    }
    text += '\n';
  };
  const auto add_parts = [&](NamedBytes Footprint::*parts) {
    std::vector<const NamedBytes*> lists;
    for (const ContextRow& row : rows) {
      if (const PlannedContext* planned = of(row)) lists.push_back(&(planned->per_sequence.*parts));
    }
    for (const std::string& name : names_of(lists)) {
      add(name, [&name, parts](const PlannedContext& planned) {
        return mebibytes(bytes_of(planned.per_sequence.*parts, name));
      });
    }
  };
  add_parts(&Footprint::device);
  add("device, in all",
      [](const PlannedContext& planned) { return mebibytes(sum(planned.per_sequence.device)); });
  add_parts(&Footprint::host);
  const bool swaps = std::any_of(rows.begin(), rows.end(), [&of](const ContextRow& row) {
    return of(row) != nullptr && of(row)->one.swap;
  });
  if (swaps) {
    add("rows kept out of the device",
        [](const PlannedContext& planned) { return mebibytes(planned.one.rows_kept_out()); });
    add("slots, per layer", [](const PlannedContext& planned) {
      return fmt::format("{}", planned.one.swap ? planned.one.swap->n_slots : 0);
    });
  }
  add("sequences that fit", [](const PlannedContext& planned) {
    return fmt::format("{}{}", planned.n_sequences, planned.by_host_limit ? "*" : "");
  });
  return text;
}

const PlannedContext* resident(const ContextRow& row) { return &row.resident; }
const PlannedContext* swapped(const ContextRow& row) {
  return row.swapped ? &*row.swapped : nullptr;
}

ordered_json parts_json(const NamedBytes& parts, const NamedBytes& per_sequence) {
  ordered_json list = ordered_json::array();
  for (const auto& [name, bytes] : parts) {
    list.push_back(
        {{"part", name}, {"bytes", bytes}, {"bytes_per_sequence", bytes_of(per_sequence, name)}});
  }
  return list;
}

ordered_json bytes_json(const NamedBytes& parts) {
  ordered_json object = ordered_json::object();
  for (const auto& [name, bytes] : parts) object[name] = bytes;
  return object;
}

ordered_json swap_json(const Footprint& found) {
  if (!found.swap) return nullptr;
  return {{"module", found.swap_module},
          {"slots", found.swap->n_slots},
          {"chunks", found.swap->n_chunks},
          {"layers", found.swap->n_layers},
          {"row_bytes", found.staged.row_bytes},
          {"pool_bytes", found.swap->pool_bytes},
          {"row_bytes_kept_out_per_sequence", found.rows_kept_out()}};
}

ordered_json context_json(const PlannedContext& planned) {
  return {{"device_bytes_per_sequence", bytes_json(planned.per_sequence.device)},
          {"host_bytes_per_sequence", bytes_json(planned.per_sequence.host)},
          {"device_bytes_of_one", planned.one.device_bytes()},
          {"swap", swap_json(planned.one)},
          {"sequences_that_fit", planned.n_sequences},
          {"limited_by_host_limit", planned.by_host_limit}};
}

}  // namespace

Footprint difference(const Footprint& more, const Footprint& less) {
  Footprint rest;
  rest.device = subtract(more.device, less.device);
  rest.host = subtract(more.host, less.host);
  return rest;
}

std::string as_options(const std::vector<std::string>& set) {
  std::string text;
  for (const std::string& one : set) text += (text.empty() ? "--set " : " --set ") + one;
  return text;
}

std::string format_text(const PlanReport& report) {
  std::string text;
  if (report.footprint) {
    const Footprint& found = *report.footprint;
    text += describe(found);
    text += fmt::format("\n{:<36} {:>18} {:>18}\n", "", "bytes a sequence", "bytes");
    text += "device\n" + format_parts(found.device, report.per_sequence.device);
    if (found.compute.bytes_borrowed > 0) {
      text += line("weights, where the loader has them", 0, found.compute.bytes_borrowed);
    }
    if (!found.host.empty()) text += "host\n" + format_parts(found.host, report.per_sequence.host);
    text += '\n' + describe_swapping(found);
    text += report.longest_context > 0
                ? fmt::format("longest context that fits: {} tokens\n", report.longest_context)
                : "no context fits\n";
  }
  if (!report.contexts.empty()) {
    text += fmt::format("\n{:<30}", "MiB of a sequence, by context");
    for (const ContextRow& row : report.contexts) text += fmt::format(" {:>13}", row.tokens);
    text += "\nwithout swapping\n" + format_contexts(report.contexts, resident);
    text += "with swapping (- where slots would hold all chunks)\n" +
            format_contexts(report.contexts, swapped);
    if (std::any_of(report.contexts.begin(), report.contexts.end(), [](const ContextRow& row) {
          return row.swapped && row.swapped->by_host_limit;
        })) {
      text += "  * as many as [swap] host_limit has room for\n";
    }
  }
  if (report.complaint.empty()) text += "fits\n";
  return text;
}

std::string format_json(const PlanReport& report) {
  ordered_json object;
  if (report.footprint) {
    const Footprint& found = *report.footprint;
    object["model"] = {{"source", found.source},
                       {"tensors", found.n_tensors},
                       {"bytes", found.data_bytes},
                       {"context_length", found.model.context_length}};
    object["session"] = {{"max_context", found.session.max_context},
                         {"max_sequences", found.session.max_decode},
                         {"prefix_sequences", found.session.max_open - found.session.max_decode},
                         {"max_rows", found.session.max_rows}};
    object["compute"] = {{"module", found.compute_module}, {"device", found.compute.device}};
    object["device"] = {{"bytes", found.device_bytes()},
                        {"parts", parts_json(found.device, report.per_sequence.device)},
                        {"borrowed_weight_bytes", found.compute.bytes_borrowed}};
    object["host"] = {{"bytes", found.host_bytes()},
                      {"parts", parts_json(found.host, report.per_sequence.host)}};
    object["swap"] = swap_json(found);
    object["longest_context"] = report.longest_context;
  }
  object["fits"] = report.complaint.empty();
  object["complaint"] =
      report.complaint.empty() ? ordered_json(nullptr) : ordered_json(report.complaint);
  object["suggestions"] = ordered_json::array();
  for (const Suggestion& suggestion : report.suggestions) {
    object["suggestions"].push_back({{"set", suggestion.set}, {"bytes", suggestion.bytes}});
  }
  object["contexts"] = ordered_json::array();
  for (const ContextRow& row : report.contexts) {
    object["contexts"].push_back(
        {{"tokens", row.tokens},
         {"resident", context_json(row.resident)},
         {"swapped", row.swapped ? context_json(*row.swapped) : ordered_json(nullptr)}});
  }
  return to_line(object);
}

}  // namespace ebb::cli
