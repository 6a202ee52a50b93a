#include "tools/ebb/inspect_trace.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "core/text.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/fields.h"
#include "tools/trace/replay.h"

namespace ebb::cli {

Result<int> inspect_trace(const std::string& path, bool is_json) {
  EBB_ASSIGN(trace::Reader reader, trace::Reader::open(path, true));
  EBB_ASSIGN(const trace::Contents contents, trace::read_contents(reader, false));
  const trace::Header& header = reader.header();
  nlohmann::ordered_json all;
  all["trace"] = path;
  all["version"] = header.version;
  all["policy"] = header.policy;
  all["model"] = header.model;
  all["manifest"] = header.manifest;
  all["staging"] = header.staging == 1 ? "demand" : "zero_copy";
  all["slots"] = header.slots;
  all["keys"] = header.keys;
  all["layers"] = header.n_layers;
  all["max_open"] = header.max_open;
  all["max_decode"] = header.max_decode;
  all["max_rows"] = header.max_rows;
  all["max_context"] = header.max_context;
  all["ratio"] = header.ratio;
  all["chunks"] = header.n_chunks();
  all["top_k"] = header.top_k;
  all["row_bytes"] = header.row_bytes;
  nlohmann::ordered_json totals;
  totals["blocks"] = reader.n_blocks();
  totals["sequences"] = contents.n_sequences;
  totals["copies"] = contents.n_copies;
  totals["copied_tokens"] = contents.n_copied_tokens;
  totals["steps"] = contents.n_steps;
  totals["tokens"] = contents.n_tokens;
  totals["steps_with_selections"] = contents.n_logged_steps;
  totals["selections"] = contents.n_selections;
  totals["scorings"] = contents.n_scorings;
  totals["kept"] = contents.n_kept;
  std::error_code unknown;
  totals["bytes"] = std::filesystem::file_size(path, unknown);
  trace::Overlap overlap;
  nlohmann::ordered_json by_layer = nlohmann::ordered_json::array();
  for (const trace::Overlap& layer : contents.overlap) {
    overlap.n_selected += layer.n_selected;
    overlap.n_again += layer.n_again;
    by_layer.push_back(std::round(1e4 * layer.share()) / 1e4);
  }
  totals["overlap"] = std::round(1e4 * overlap.share()) / 1e4;
  totals["overlap_by_layer"] = by_layer;
  nlohmann::ordered_json counters = nlohmann::ordered_json::object();
  for (const trace::Counter& counter : contents.counters) counters[counter.name] = counter.value;
  if (is_json) {
    all["totals"] = totals;
    all["counters"] = counters;
    all["torn"] = reader.torn();
    fmt::print("{}", to_line(all));
    return kDone;
  }
  const auto show = [](const nlohmann::ordered_json& object) {
    for (const auto& [key, value] : object.items()) {
      fmt::print("  {:<24} {}\n", printable(key),
                 value.is_string() ? printable(value.get<std::string>()) : value.dump());
    }
  };
  all.erase("trace");
  fmt::print("{}\n", printable(path));
  show(all);
  fmt::print("totals\n");
  show(totals);
  if (!counters.empty()) fmt::print("counters of the run\n");
  show(counters);
  if (!reader.torn().empty()) fmt::print("torn: {}\n", reader.torn());
  return kDone;
}

}  // namespace ebb::cli
