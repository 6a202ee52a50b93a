#include "tools/trace/recorder.h"

#include <algorithm>
#include <sstream>

#include "core/options_toml.h"
#include "tools/ebb/swap_counters.h"
#include "tools/trace/replay.h"

// A step's selections are in the log of the swap module until the next step begins, so they are
// taken at whatever the engine says next.

namespace ebb::trace {
namespace {

// The keys of [swap] but for the module's name.
std::string swap_keys(const Manifest& manifest) {
  Result<toml::table> whole = parse_toml(manifest.effective(), manifest.path());
  toml::table* const swap = whole ? (*whole)[Swap::kKind].as_table() : nullptr;
  if (swap == nullptr) return "";
  swap->erase("module");
  std::ostringstream text;
  text << toml::toml_formatter(*swap, toml::format_flags::none) << '\n';
  return text.str();
}

}  // namespace

Result<std::unique_ptr<Recorder>> Recorder::create(const std::string& path, Engine& engine,
                                                   const Manifest& manifest) {
  if (engine.swap() == nullptr) {
    return make_error(Errc::invalid_argument,
                      "%s: nothing to trace, since nothing is swapped: want a [swap] section with "
                      "fewer slots than chunks",
                      manifest.path().c_str());
  }
  const StagedShape staged = engine.staged();
  const SwapLayout layout = engine.swap()->layout();
  Header header;
  header.n_layers = static_cast<std::uint32_t>(staged.n_layers);
  header.max_open = static_cast<std::uint32_t>(engine.session().max_open);
  header.max_decode = static_cast<std::uint32_t>(engine.session().max_decode);
  header.max_rows = static_cast<std::uint32_t>(engine.session().max_rows);
  header.top_k = static_cast<std::uint32_t>(staged.top_k);
  header.ratio = static_cast<std::uint32_t>(staged.ratio);
  header.max_context = static_cast<std::uint64_t>(engine.session().max_context);
  header.row_bytes = static_cast<std::uint32_t>(staged.row_bytes);
  header.slots = static_cast<std::uint32_t>(layout.n_slots);
  header.staging = static_cast<std::uint32_t>(layout.mode);
  header.policy = manifest.module(Swap::kKind)->name;
  header.keys = swap_keys(manifest);
  header.model = engine.loader().digest();
  header.manifest = manifest.hash();
  EBB_ASSIGN(Writer writer, Writer::create(path, header));
  return std::make_unique<Recorder>(engine, std::move(writer));
}

Status Recorder::finish() {
  EBB_ASSIGN(const auto layers, engine_.swap_counters());
  EBB_TRY(std::exchange(status_, ok_status()));
  return writer_.end(counters_of(cli::total(layers)));
}

Status Recorder::open_sequence(std::int32_t sequence) noexcept {
  take_log();
  keep(writer_.open(sequence));
  return SwapTap::open_sequence(sequence);
}

void Recorder::close_sequence(std::int32_t sequence) noexcept {
  keep(writer_.close(sequence));
  SwapTap::close_sequence(sequence);
}

void Recorder::begin_step(const std::int32_t* pos, const std::int32_t* seq,
                          std::int32_t n_rows) noexcept {
  take_log();
  const auto n = static_cast<std::size_t>(n_rows);
  keep(writer_.step({pos, n}, {seq, n}));
  if (n_rows <= max_log_rows()) {
    for (const std::int32_t at : std::span(pos, n)) {
      n_visible_.push_back((at + 1) / engine_.staged().ratio);
    }
  }
  SwapTap::begin_step(pos, seq, n_rows);
}

void Recorder::fill(std::int32_t sequence, std::int64_t n_tokens) noexcept {
  take_log();
  keep(writer_.filled(sequence, n_tokens));
  SwapTap::fill(sequence, n_tokens);
}

void Recorder::scored(const Forecast& forecast) noexcept {
  take_log();
  keep(writer_.scored(forecast.sequence, forecast.scores, forecast.kept));
  SwapTap::scored(forecast);
}

void Recorder::settle() noexcept {
  take_log();
  keep(writer_.settled());
  SwapTap::settle();
}

void Recorder::take_log() {
  const std::int32_t n_layers = layout().n_layers;
  const std::int64_t top_k = engine_.staged().top_k;
  for (std::size_t row = 0; row < n_visible_.size(); ++row) {
    for (std::int32_t layer = 0; layer < n_layers; ++layer) {
      const SelectionLog selected = log(layer);
      const std::int32_t* const ids = selected.ids + static_cast<std::int64_t>(row) * top_k;
      const std::int64_t n = std::clamp<std::int64_t>(selected.count[row], 0, top_k);
      chunks_.clear();
      std::copy_if(ids, ids + n, std::back_inserter(chunks_),
                   [&](std::int32_t id) { return id >= 0 && id < n_visible_[row]; });
      keep(writer_.selected(layer, static_cast<std::int32_t>(row), chunks_));
    }
  }
  n_visible_.clear();
}

}  // namespace ebb::trace
