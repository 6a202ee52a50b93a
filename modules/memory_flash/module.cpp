// Forecasts from scorers. A sequence asks with the last token of its prompt, and with every
// interval-th token after it. The answer is computed beside the sequence's next step and takes
// effect with the one after that, late or not: what a sequence generates depends on its own tokens
// alone, whatever runs with it and wherever scores are computed.
//
//   step q      keeps the hidden vector of the asking row; the scorers' plan starts behind it
//   step q + 1  runs beside the scorers; meanwhile the host makes a forecast of their logits
//   step q + 2  begins with the forecast: the mask of selection is written, staging is told
//
// A query may be asked in every step: there are two sets of buffers and plans, taken in turns.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <new>
#include <optional>
#include <vector>

#include "core/api/compute.h"
#include "core/api/host.h"
#include "core/api/memory.h"
#include "core/api/options.h"
#include "kernels/ops/ops.h"
#include "modules/memory_flash/choice.h"

namespace ebb {
namespace {

enum class Mode : std::int32_t { off, exact, bounded, direct };

struct Settings {
  Mode mode = Mode::exact;
  std::int64_t interval = 64;
  Ensemble ensemble = Ensemble::max;
  ChoiceRules rules;
  std::int64_t recent_tokens = 0, sink_tokens = 0;
};

/// A query whose forecast has not taken effect.
struct Pending {
  bool open = false;
  std::int64_t pos = 0;       // of the asking token
  std::int64_t age = 0;       // steps of the sequence since then
  std::vector<float> scores;  // [n_chunks]
  std::vector<std::int32_t> kept;
  std::size_t n = 0;  // chunks that were scored
};

struct Sequence {
  std::int64_t n_outputs = 0;    // steps that gave logits
  std::uint32_t generation = 0;  // counts openings
  std::size_t turn = 0;
  std::array<Pending, 2> pending;
};

struct Query {
  std::int32_t sequence = 0;
  std::uint32_t generation = 0;
  std::size_t turn = 0;
};

/// What one run of the scorers reads and writes; host memory that the device reaches.
struct Run {
  std::int32_t* block = nullptr;  // n_rows, pos [max_open], seq [max_open]
  float* logits = nullptr;        // [n_scorers, max_open, n_chunks]
  PlanId plan;
  std::vector<Query> queries;  // of the run that was started, by row
  bool started = false;
};

class MemoryFlash final : public Memory {
 public:
  static Result<std::unique_ptr<MemoryFlash>> create(Host& host, Options& options) {
    Settings s;
    s.mode =
        static_cast<Mode>(options.get_choice("mode", 1, {"off", "exact", "bounded", "direct"}));
    s.interval = options.get_int("interval", 64, 1, 1 << 20);
    s.ensemble = static_cast<Ensemble>(options.get_choice("ensemble", 0, {"max", "mean"}));
    s.rules.by = static_cast<ChoiceRules::By>(
        options.get_choice("select", 0, {"top_k", "threshold", "pages"}));
    s.rules.threshold = options.get_float("threshold", 0.5, 0, 1);
    s.rules.budget = options.get_float("budget", 0.15, 0, 1);
    s.rules.page_chunks = options.get_int("page_chunks", 64, 1, 65536);
    s.recent_tokens = options.get_int("recent_tokens", 256, 0, 1 << 24);
    s.sink_tokens = options.get_int("sink_tokens", 64, 0, 1 << 24);
    EBB_TRY(options.finish());
    if (host.compute() == nullptr || host.attention() == nullptr) {
      return make_error(Errc::incompatible, "memory_flash needs compute and attention modules");
    }
    return std::make_unique<MemoryFlash>(host, s);
  }

  MemoryFlash(Host& host, const Settings& settings) : host_(host), settings_(settings) {}
  ~MemoryFlash() override {
    for (const Run& run : runs_) {
      if (run.started) (void)host_.compute()->wait_beside(run.plan);
    }
  }

  Result<bool> plan(const SessionShape& shape, std::span<Scorer* const> scorers) noexcept override {
    if (settings_.mode == Mode::off) return false;
    if (scorers.empty()) {
      return make_error(Errc::invalid_argument,
                        "[memory] mode wants one or more [[memory.scorer]]; \"off\" wants none");
    }
    const StagedShape staged = host_.attention()->staged(shape);
    shape_ = shape;
    ratio_ = staged.ratio;
    n_chunks_ = (shape.max_context + ratio_ - 1) / ratio_;
    ChoiceRules& rules = settings_.rules;
    rules.sink_chunks = chunks(settings_.sink_tokens);
    rules.recent_chunks = chunks(settings_.recent_tokens);
    if (settings_.mode == Mode::direct) {
      // Chunks that end before the next forecast takes effect are selected too.
      rules.max_chunks = staged.top_k - chunks(settings_.interval + 2);
      const std::int64_t least = least_kept(rules);
      if (rules.max_chunks < least) {
        return make_error(Errc::invalid_argument,
                          "[memory] mode = direct: a row selects %d chunks (top_k); %lld are for "
                          "the tokens of an "
                          "interval of %lld, and %lld are wanted for sinks, recent tokens or pages",
                          staged.top_k, static_cast<long long>(chunks(settings_.interval + 2)),
                          static_cast<long long>(settings_.interval),
                          static_cast<long long>(least));
      }
    }
    try {
      scorers_.assign(scorers.begin(), scorers.end());
      chooser_.emplace(rules, n_chunks_);
      sequences_.resize(static_cast<std::size_t>(shape.max_open));
      for (Sequence& sequence : sequences_) {
        if (host_.is_rehearsal()) break;
        for (Pending& pending : sequence.pending) {
          pending.scores.resize(static_cast<std::size_t>(n_chunks_));
          pending.kept.reserve(static_cast<std::size_t>(n_chunks_));
        }
      }
      mask_.resize(static_cast<std::size_t>(n_chunks_));
      for (Run& run : runs_) run.queries.reserve(sequences_.size());
      forecasts_.reserve(sequences_.size());
      rows_.resize(scorers_.size());
    } catch (const std::bad_alloc&) {
      return make_error(Errc::out_of_memory,
                        "memory_flash: no host memory for forecasts of %lld chunks",
                        static_cast<long long>(n_chunks_));
    }
    return true;
  }

  void carve(Arena& arena) noexcept override {
    if (masks()) {
      allowed_ = arena.take<std::uint8_t>(shape_.max_open * n_chunks_, "selection mask");
    }
    for (Scorer* const scorer : scorers_) scorer->carve(arena, shape_);
  }

  Status open() noexcept override {
    for (Scorer* const scorer : scorers_) EBB_TRY(scorer->load());
    for (std::size_t i = 0; i < runs_.size(); ++i) EBB_TRY(record(i));
    return ok_status();
  }

  const std::uint8_t* allowed() const noexcept override { return allowed_; }

  Status open_sequence(std::int32_t index) noexcept override {
    Sequence& sequence = sequences_[static_cast<std::size_t>(index)];
    sequence.n_outputs = 0;
    ++sequence.generation;
    for (Pending& pending : sequence.pending) pending.open = false;
    if (!masks()) return ok_status();
    std::fill(mask_.begin(), mask_.end(), std::uint8_t{1});
    return write_mask(index, n_chunks_);
  }
  Status close_sequence(std::int32_t index) noexcept override {
    ++sequences_[static_cast<std::size_t>(index)].generation;
    return ok_status();
  }

  Result<std::span<const Forecast>> begin_step(const StepRows& rows,
                                               std::int32_t* keep) noexcept override {
    forecasts_.clear();
    turn_ ^= 1;
    Run& run = runs_[turn_];
    run.queries.clear();
    std::int32_t next_out = 0;
    for (std::int32_t row = 0; row < rows.n_rows; ++row) {
      if (row + 1 < rows.n_rows && rows.seq[row + 1] == rows.seq[row]) continue;
      while (next_out < rows.n_out && rows.out_row[next_out] < row) ++next_out;
      const bool gives = next_out < rows.n_out && rows.out_row[next_out] == row;
      EBB_TRY(advance(rows.seq[row]));
      if (gives) ask(rows.seq[row], rows.pos[row], run, keep[row]);
    }
    return std::span<const Forecast>(forecasts_);
  }

  Status step_started() noexcept override {
    Run& now = runs_[turn_];
    now.started = !now.queries.empty();
    if (now.started) EBB_TRY(host_.compute()->start_beside(now.plan));
    Run& before = runs_[turn_ ^ 1];
    if (!before.started) return ok_status();
    const auto begin = Clock::now();
    EBB_TRY(host_.compute()->wait_beside(before.plan));
    counters_.wait_us +=
        static_cast<std::uint64_t>((Clock::now() - begin) / std::chrono::microseconds(1));
    before.started = false;
    for (std::size_t row = 0; row < before.queries.size(); ++row) forecast(before, row);
    return ok_status();
  }

  MemoryCounters counters() const noexcept override { return counters_; }

 private:
  using Clock = std::chrono::steady_clock;

  /// The most chunks that are kept whatever the budget is. Whole pages of them, where the recent
  /// chunks may begin with the last of a page and end with the first of another.
  static std::int64_t least_kept(const ChoiceRules& rules) {
    const std::int64_t sinks = rules.sink_chunks, recent = rules.recent_chunks;
    if (rules.by != ChoiceRules::By::pages) return std::max<std::int64_t>(1, sinks + recent);
    const std::int64_t size = rules.page_chunks;
    const std::int64_t of_sinks = (sinks + size - 1) / size;
    const std::int64_t of_recent = recent > 0 ? (recent + size - 2) / size + 1 : 0;
    return size * std::max<std::int64_t>(1, of_sinks + of_recent);
  }

  bool masks() const { return settings_.mode == Mode::bounded || settings_.mode == Mode::direct; }
  std::int64_t chunks(std::int64_t tokens) const { return (tokens + ratio_ - 1) / ratio_; }
  std::int64_t visible(std::int64_t pos) const { return (pos + 1) / ratio_; }

  Status record(std::size_t index) {
    Run& run = runs_[index];
    Compute& compute = *host_.compute();
    const std::int64_t n = shape_.max_open;
    EBB_ASSIGN(std::byte* const block,
               compute.allocate_host(static_cast<std::uint64_t>(1 + 2 * n) * sizeof(std::int32_t),
                                     "the scorers' queries"));
    run.block = reinterpret_cast<std::int32_t*>(block);
    const auto n_logits = static_cast<std::uint64_t>(std::ssize(scorers_) * n * n_chunks_);
    EBB_ASSIGN(std::byte* const logits,
               compute.allocate_host(n_logits * sizeof(float), "the scorers' logits"));
    run.logits = reinterpret_cast<float*>(logits);
    StepView queries;
    queries.n_rows = run.block;
    queries.pos = run.block + 1;
    queries.seq = run.block + 1 + n;
    queries.max_rows = shape_.max_open;
    EBB_ASSIGN(Ops* const ops, compute.begin_plan());
    for (std::size_t i = 0; i < scorers_.size(); ++i) {
      EBB_TRY(scorers_[i]->plan(*ops, queries, static_cast<std::int32_t>(index) * shape_.max_open,
                                run.logits + static_cast<std::int64_t>(i) * n * n_chunks_,
                                n_chunks_));
    }
    EBB_ASSIGN(run.plan, compute.end_plan());
    return ok_status();
  }

  /// One more step of a sequence: a forecast that is due takes effect.
  Status advance(std::int32_t index) {
    for (Pending& pending : sequences_[static_cast<std::size_t>(index)].pending) {
      if (!pending.open || ++pending.age < 2) continue;
      pending.open = false;
      forecasts_.push_back({index, std::span(pending.scores).first(pending.n), pending.kept});
      ++counters_.refreshes;
      counters_.scored += pending.n;
      counters_.kept += pending.kept.size();
      if (!masks()) continue;
      std::fill_n(mask_.begin(), pending.n, std::uint8_t{0});
      for (const std::int32_t chunk : pending.kept) mask_[static_cast<std::size_t>(chunk)] = 1;
      EBB_TRY(write_mask(index, static_cast<std::int64_t>(pending.n)));
    }
    return ok_status();
  }

  Status write_mask(std::int32_t index, std::int64_t n) {
    if (n == 0) return ok_status();
    return host_.compute()->write(allowed_ + index * n_chunks_, mask_.data(),
                                  static_cast<std::uint64_t>(n));
  }

  /// A row whose logits are wanted: every interval-th of a sequence is a query.
  void ask(std::int32_t index, std::int32_t pos, Run& run, std::int32_t& keep) {
    Sequence& sequence = sequences_[static_cast<std::size_t>(index)];
    if (sequence.n_outputs++ % settings_.interval != 0) return;
    const auto row = static_cast<std::int32_t>(run.queries.size());
    keep = static_cast<std::int32_t>(turn_) * shape_.max_open + row;
    run.block[0] = row + 1;
    run.block[1 + row] = pos;
    run.block[1 + shape_.max_open + row] = index;
    sequence.turn ^= 1;
    Pending& pending = sequence.pending[sequence.turn];
    pending.open = true;
    pending.age = 0;
    pending.pos = pos;
    run.queries.push_back({index, sequence.generation, sequence.turn});
  }

  /// What the scorers say to the query in `row` of a run.
  void forecast(const Run& run, std::size_t row) {
    const Query& query = run.queries[row];
    Sequence& sequence = sequences_[static_cast<std::size_t>(query.sequence)];
    if (sequence.generation != query.generation) return;
    Pending& pending = sequence.pending[query.turn];
    pending.n = static_cast<std::size_t>(visible(pending.pos));
    for (std::size_t i = 0; i < scorers_.size(); ++i) {
      const auto at =
          static_cast<std::int64_t>(i) * shape_.max_open + static_cast<std::int64_t>(row);
      float* const logits = run.logits + at * n_chunks_;
      scorers_[i]->finish(query.sequence, pending.pos, {logits, pending.n});
      rows_[i] = logits;
    }
    const std::span scores = std::span(pending.scores).first(pending.n);
    const std::int64_t n_nan = combine(settings_.ensemble, rows_, scores);
    if (n_nan > 0 && counters_.nan == 0) {
      host_.log(LogLevel::warning, "a scorer gave NaN; it counts as the lowest score");
    }
    counters_.nan += static_cast<std::uint64_t>(n_nan);
    const std::span<const std::int32_t> kept = chooser_->choose(scores);
    pending.kept.assign(kept.begin(), kept.end());
  }

  Host& host_;
  Settings settings_;
  SessionShape shape_;
  std::int64_t ratio_ = 1;
  std::int64_t n_chunks_ = 0;
  std::vector<Scorer*> scorers_;
  std::optional<Chooser> chooser_;
  std::vector<Sequence> sequences_;
  std::array<Run, 2> runs_;
  std::size_t turn_ = 0;             // of runs_, in the step at hand
  std::uint8_t* allowed_ = nullptr;  // compute memory
  std::vector<std::uint8_t> mask_;
  std::vector<const float*> rows_;  // logits of one query, by scorer
  std::vector<Forecast> forecasts_;
  MemoryCounters counters_;
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Memory, ebb::MemoryFlash, "memory_flash", EBB_VERSION);
