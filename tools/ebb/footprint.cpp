#include "tools/ebb/footprint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

namespace ebb::cli {
namespace {

constexpr std::int64_t kContextUnit = 128;  // a longest context is given to this many tokens

std::uint64_t sum(const NamedBytes& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::uint64_t{0},
                         [](std::uint64_t all, const auto& part) { return all + part.second; });
}

std::uint64_t memory_of_this_machine() {
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

std::uint64_t Footprint::host_bytes() const { return sum(host); }

std::uint64_t Footprint::rows_kept_out() const {
  if (!swap) return 0;
  return static_cast<std::uint64_t>(swap->n_layers * (swap->n_chunks - swap->n_slots)) *
         static_cast<std::uint64_t>(staged.row_bytes);
}

std::uint64_t Room::taken(const Footprint& footprint) const {
  const bool by_limit = device_memory == 0 && footprint.compute.bytes_limit > 0;
  return footprint.device_bytes() + (by_limit ? 0 : footprint.compute.bytes_borrowed);
}

std::string Room::complaint(const Footprint& footprint) const {
  const auto compare = [](const char* what, std::uint64_t want, std::uint64_t have) {
    return want <= have ? std::string()
                        : fmt::format("{}: {} bytes ({}) of {} ({})", what, want,
                                      format_bytes(want), have, format_bytes(have));
  };
  const ComputeInfo& compute = footprint.compute;
  const std::uint64_t allocated = footprint.device_bytes();
  if (device_memory > 0) return compare("--device-memory", taken(footprint), device_memory);
  std::string text;
  if (compute.bytes_limit > 0) {
    text = compare("[compute] memory_limit", allocated, compute.bytes_limit);
  }
  const bool is_own = compute.bytes_present > 0;
  if (text.empty() && is_own) text = compare("the device", allocated, compute.bytes_present);
  if (text.empty()) {
    const std::uint64_t shared = is_own ? 0 : allocated + compute.bytes_borrowed;
    text = compare("this machine", footprint.host_bytes() + shared, memory_of_this_machine());
  }
  return text;
}

Result<Footprint> Rehearsal::count(const std::vector<std::string>& more) const {
  SessionArgs args = args_;
  args.set.insert(args.set.end(), more.begin(), more.end());
  EBB_ASSIGN(const Manifest manifest, load_manifest(args));
  EngineOptions options;
  options.modules_folder = modules_folder();
  options.log = LogGate(args.verbose).sink();  // many are opened: what they warn of is held back
  options.rehearsal = true;
  const Result<std::unique_ptr<Engine>> opened = Engine::open(manifest, options);
  if (!opened) return with_advice(manifest, opened.error());
  const Engine* const engine = opened->get();

  Footprint found;
  found.session = engine->session();
  found.model = engine->model();
  found.source = engine->loader().source();
  found.n_tensors = engine->loader().tensors().size();
  found.data_bytes = engine->loader().data_bytes();
  found.compute = engine->compute_info();
  found.compute_module = manifest.module("compute")->name;
  if (const ModuleChoice* swap = manifest.module("swap")) found.swap_module = swap->name;
  found.device = engine->parts();
  found.staged = engine->staged();
  std::uint64_t rest = found.compute.bytes_host;
  if (engine->swap() != nullptr) {
    found.swap = engine->swap()->layout();
    found.host.emplace_back("chunk pool", found.swap->pool_bytes);
    rest -= std::min(rest, found.swap->pool_bytes);
    found.host.emplace_back("slot maps", found.swap->map_bytes);
  }
  if (rest > 0) found.host.emplace_back("moves, logs, logits", rest);
  return found;
}

bool Rehearsal::fits(const std::vector<std::string>& more) const {
  const Result<Footprint> found = count(more);
  return found && room_.complaint(*found).empty();
}

std::string setting(std::string_view key, std::int64_t value) {
  return fmt::format("{}={}", key, value);
}

std::int64_t largest_that_fits(std::int64_t low, std::int64_t high, std::int64_t unit,
                               const std::function<bool(std::int64_t)>& fits) {
  if (high < low || !fits(low)) return low - 1;
  if (high > low && fits(high)) return high;
  if (unit > low && high > low && !fits(std::min(unit, high))) {
    high = std::min(unit, high);
    unit = 1;
  }
  // In units: `yes` fits, `no` does not.
  std::int64_t yes = low / unit, no = (high + unit - 1) / unit;
  while (no - yes > 1) {
    const std::int64_t middle = yes + (no - yes) / 2;
    (fits(middle * unit) ? yes : no) = middle;
  }
  return std::max(low, yes * unit);
}

std::vector<Suggestion> suggest(const Rehearsal& rehearsal, const Manifest& manifest) {
  std::vector<Suggestion> found;
  const auto add = [&](std::vector<std::string> set) {
    const Result<Footprint> footprint = rehearsal.count(set);
    if (!footprint || !rehearsal.room().complaint(*footprint).empty()) return false;
    found.push_back({std::move(set), rehearsal.room().taken(*footprint)});
    return true;
  };
  // The largest value below `end` that fits with `others`.
  const auto add_largest = [&](const char* key, std::int64_t low, std::int64_t end,
                               std::int64_t unit, std::vector<std::string> others = {}) {
    const auto with = [&](std::int64_t value) {
      std::vector<std::string> set = others;
      set.push_back(setting(key, value));
      return set;
    };
    const std::int64_t most = largest_that_fits(
        low, end - 1, unit, [&](std::int64_t value) { return rehearsal.fits(with(value)); });
    return most >= low && add(with(most));
  };

  const EngineSettings& engine = manifest.engine();
  add_largest("engine.max_context", 1, engine.max_context, kContextUnit);
  add_largest("engine.max_sequences", 1, engine.max_sequences, 1);
  add_largest("engine.prefix_sequences", 0, engine.prefix_sequences, 1);
  for (std::int64_t chunk = 1 << 16; chunk >= 1; chunk /= 2) {
    if (chunk < engine.prefill_chunk && add({setting("engine.prefill_chunk", chunk)})) break;
  }
  if (!add({"attention.kv_format=f16"})) add({"attention.kv_format=fp8"});
  if (!add({"attention.index_format=fp8"})) add({"attention.index_format=fp4"});
  const ModuleChoice* const swap = manifest.module("swap");
  const std::vector<std::string> swapping{"swap.module=" + (swap ? swap->name : "swap_lru"),
                                          "swap.staging=zero_copy"};
  add(swapping);
  if (swap != nullptr) {
    // Slots and pool as they are wished for, whatever room there is.
    const std::string any_pool = "swap.host_limit=1024TiB";
    const Result<Footprint> wished = rehearsal.count({any_pool});
    const Result<Footprint> automatic = rehearsal.count({any_pool, "swap.slots=auto"});
    if (wished && wished->swap && automatic && automatic->swap) {
      // "auto" is what a row selects on top of the fewest slots that are allowed.
      add_largest("swap.slots", automatic->swap->n_slots - automatic->staged.top_k,
                  wished->swap->n_slots, 1);
    }
    if (wished && wished->swap) {
      add({setting("swap.host_limit", static_cast<std::int64_t>(wished->swap->pool_bytes))});
      add({"swap.staging=resident"});
    }
  }
  const Result<Footprint> now = rehearsal.count();
  if (now && now->compute.bytes_limit > 0) {
    add({setting("compute.memory_limit", static_cast<std::int64_t>(now->device_bytes()))});
  }
  const bool keeps_context = std::any_of(found.begin(), found.end(), [](const Suggestion& one) {
    return !one.set.front().starts_with("engine.max_context");
  });
  if (keeps_context) return found;

  // No change by itself, or only a shorter context: all that make it smaller, then what is left of
  // sequences, then of context.
  std::vector<std::string> small{
      setting("engine.prefill_chunk", std::min(engine.prefill_chunk, 64)),
      "attention.kv_format=fp8", "attention.index_format=fp4"};
  if (!rehearsal.count(small)) small.resize(1);  // an attention module with other keys
  std::vector<std::string> swapped = small;
  swapped.insert(swapped.end(), swapping.begin(), swapping.end());
  swapped.emplace_back("swap.slots=auto");
  if (engine.prefix_sequences > 0) swapped.emplace_back("engine.prefix_sequences=0");
  std::vector<std::string> alone = swapped;
  alone.emplace_back("engine.max_sequences=1");
  if (!add(small) && !add(swapped) &&
      !add_largest("engine.max_sequences", 1, engine.max_sequences, 1, swapped)) {
    add_largest("engine.max_context", 1, engine.max_context, kContextUnit, alone);
  }
  return found;
}

}  // namespace ebb::cli
