// The step loop. A step's changing values (rows, tokens, positions) are gathered in one block of
// host memory, sent to its twin in compute memory, and the smallest plan that takes the rows is
// run.

#include "core/engine.h"

#include <algorithm>

namespace ebb {

namespace {

Error in_manifest(const Manifest& manifest, const Error& error) {
  return {error.code, manifest.path() + ": " + error.message};
}

}  // namespace

Engine::Engine(const Manifest& manifest, const EngineOptions& options)
    : host_(options.log, manifest.engine().seed, options.rehearsal) {
  const EngineSettings& settings = manifest.engine();
  shape_.max_context = settings.max_context;
  shape_.max_open = settings.max_sequences + settings.prefix_sequences;
  shape_.max_decode = settings.max_sequences;
  shape_.max_rows = std::max(settings.prefill_chunk, shape_.max_decode);
  shape_.max_out = options.all_logits ? shape_.max_rows : shape_.max_decode;
  kept_layers_ = options.kept_layers;
  length_.assign(static_cast<std::size_t>(shape_.max_open), -1);
}

Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::open(const Manifest& manifest,
                                             const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine(manifest, options));
  const ModuleLoader modules(manifest.modules_folder().empty() ? options.modules_folder
                                                               : manifest.modules_folder());
  EBB_TRY(engine->wire(manifest, modules));
  EBB_TRY(engine->plan());
  return engine;
}

template <class Interface>
Status Engine::load(ModulePtr<Interface>& part, const Manifest& manifest,
                    const ModuleLoader& modules, std::size_t i) {
  const ModuleChoice* choice = manifest.module(Interface::kKind, i);
  if (choice == nullptr) return ok_status();
  const std::unique_ptr<Options> options = manifest.options(Interface::kKind, i);
  EBB_ASSIGN(part, modules.load<Interface>(*choice, host_.host_for(choice->name), *options));
  return ok_status();
}

Status Engine::wire(const Manifest& manifest, const ModuleLoader& modules) {
  EBB_TRY(load(loader_, manifest, modules));
  host_.parts().loader = loader_.get();
  EBB_TRY(load(tokenizer_, manifest, modules));
  EBB_TRY(load(compute_, manifest, modules));
  host_.parts().compute = compute_.get();
  EBB_TRY(load(comm_, manifest, modules));
  host_.parts().comm = comm_.get();
  EBB_TRY(load(swap_, manifest, modules));
  EBB_TRY(load(attention_, manifest, modules));
  host_.parts().attention = attention_.get();
  EBB_TRY(load(decoder_, manifest, modules));
  model_ = decoder_->shape();
  if (shape_.max_context > model_.context_length) {
    return make_error(Errc::invalid_argument,
                      "%s: [engine] max_context = %lld: the model was made for at most %lld tokens",
                      manifest.path().c_str(), static_cast<long long>(shape_.max_context),
                      static_cast<long long>(model_.context_length));
  }
  // More rows than positions cannot be fed to one sequence.
  shape_.max_rows = static_cast<std::int32_t>(std::min<std::int64_t>(
      shape_.max_rows, std::max<std::int64_t>(shape_.max_context, shape_.max_decode)));
  shape_.max_out = std::min(shape_.max_out, shape_.max_rows);
  EBB_TRY(wire_memory(manifest, modules));
  if (!swap_) return ok_status();
  Result<bool> swaps = swap_->plan(shape_, attention_->staged(shape_));
  if (!swaps) return in_manifest(manifest, swaps.error());
  if (*swaps) host_.parts().staging = swapping_ = swap_.get();
  return ok_status();
}

Status Engine::wire_memory(const Manifest& manifest, const ModuleLoader& modules) {
  std::vector<Scorer*> scorers;
  std::vector<std::int32_t> layers;
  for (std::size_t i = 0; manifest.module(Scorer::kKind, i); ++i) {
    EBB_TRY(load(scorers_.emplace_back(), manifest, modules, i));
    scorers.push_back(scorers_.back().get());
    if (scorers.back()->layer() >= 0) layers.push_back(scorers.back()->layer());
  }
  EBB_TRY(load(memory_, manifest, modules));
  if (!kept_layers_.empty()) {
    shape_.max_kept = shape_.max_rows;
    return attention_->keep(kept_layers_, true);
  }
  if (!memory_) return ok_status();
  Result<bool> remembers = memory_->plan(shape_, scorers);
  if (!remembers) return in_manifest(manifest, remembers.error());
  if (!*remembers) return ok_status();
  host_.parts().memory = remembering_ = memory_.get();
  shape_.max_kept = 2 * shape_.max_open;
  return attention_->keep(layers, false);
}

StepView Engine::carve_step(Arena& arena) const {
  const std::int64_t rows = shape_.max_rows;
  const auto* const block = arena.take<std::int32_t>(2 + 5 * rows + shape_.max_out, "step");
  return {block,
          block + 1,
          block + 2,
          block + 2 + rows,
          block + 2 + 2 * rows,
          block + 2 + 3 * rows,
          block + 2 + 5 * rows,
          block + 2 + 4 * rows,
          shape_.max_rows,
          shape_.max_out};
}

Status Engine::plan() {
  const auto carve = [this](Arena& arena) {
    step_ = carve_step(arena);
    if (remembering_) remembering_->carve(arena);
    decoder_->carve(arena, shape_);
  };
  Arena counting;
  carve(counting);
  EBB_ASSIGN(std::byte* const memory,
             compute_->allocate(counting.bytes(), "the session's buffers"));
  if (swapping_) EBB_TRY(swapping_->open());
  Arena arena(memory);
  carve(arena);
  EBB_ASSERT(arena.bytes() == counting.bytes());
  parts_ = arena.parts();
  std::uint64_t noted = arena.bytes();
  const auto note = [this, &noted](const char* part) {
    const std::uint64_t all = compute_->info().bytes_allocated;
    if (all > noted) parts_.emplace_back(part, all - std::exchange(noted, all));
  };
  EBB_TRY(decoder_->load());
  note("weights");

  step_host_.assign(static_cast<std::size_t>(2 + 5 * shape_.max_rows + shape_.max_out), 0);
  logits_.resize(static_cast<std::size_t>(model_.vocab_size));
  // Decode has a plan of its own: a backend may tune it for few rows.
  std::vector<std::int32_t> capacities{shape_.max_decode};
  if (shape_.max_rows > shape_.max_decode) capacities.push_back(shape_.max_rows);
  for (const std::int32_t capacity : capacities) {
    StepView step = step_;
    step.max_rows = capacity;
    step.max_out = std::min(capacity, shape_.max_out);
    EBB_ASSIGN(Ops* const ops, compute_->begin_plan());
    EBB_TRY(decoder_->plan(*ops, step));
    EBB_ASSIGN(const PlanId id, compute_->end_plan());
    plans_.push_back({id, capacity});
  }
  note("plans");
  if (remembering_) EBB_TRY(remembering_->open());
  note("scorers");
  return ok_status();
}

Result<std::int32_t> Engine::open_sequence() {
  const auto free = std::find(length_.begin(), length_.end(), -1);
  if (free == length_.end()) {
    return make_error(Errc::out_of_memory,
                      "all %d sequences are in use ([engine] max_sequences and prefix_sequences)",
                      shape_.max_open);
  }
  const auto sequence = static_cast<std::int32_t>(free - length_.begin());
  if (swapping_) EBB_TRY(swapping_->open_sequence(sequence));
  if (remembering_) EBB_TRY(remembering_->open_sequence(sequence));
  *free = 0;
  return sequence;
}

void Engine::close_sequence(std::int32_t sequence) {
  if (swapping_) {
    (void)swap_counters();  // a fault of the device is reported by the next step
    swapping_->close_sequence(sequence);
  }
  if (remembering_) (void)remembering_->close_sequence(sequence);
  length_[static_cast<std::size_t>(sequence)] = -1;
}

std::int64_t Engine::length(std::int32_t sequence) const {
  return length_[static_cast<std::size_t>(sequence)];
}

Status Engine::step(std::span<const StepRow> rows) {
  EBB_ASSERT(!host_.is_rehearsal());
  const auto max_rows = static_cast<std::size_t>(shape_.max_rows);
  if (rows.empty() || rows.size() > max_rows) {
    return make_error(Errc::invalid_argument, "a step of %zu rows: want 1..%zu", rows.size(),
                      max_rows);
  }
  std::int32_t* const token = step_host_.data() + 2;
  std::int32_t* const pos = token + max_rows;
  std::int32_t* const seq = pos + max_rows;
  std::int32_t* const run_start = seq + max_rows;
  std::int32_t* const keep = run_start + max_rows;
  std::int32_t* const out_row = keep + max_rows;
  std::int32_t n_out = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [sequence, id, wants_logits] = rows[i];
    const auto row = static_cast<std::int32_t>(i);
    if (sequence < 0 || sequence >= shape_.max_open || length(sequence) < 0) {
      return make_error(Errc::invalid_argument, "sequence %d is not open", sequence);
    }
    const bool continues = i > 0 && rows[i - 1].sequence == sequence;
    for (std::size_t j = 0; !continues && j < i; ++j) {
      if (run_start[j] == static_cast<std::int32_t>(j) && rows[j].sequence == sequence) {
        return make_error(Errc::invalid_argument, "rows of sequence %d do not stand together",
                          sequence);
      }
    }
    if (id < 0 || id >= model_.vocab_size) {
      return make_error(Errc::invalid_argument, "token id %d: want 0..%d", id,
                        model_.vocab_size - 1);
    }
    token[i] = id;
    pos[i] = continues ? pos[i - 1] + 1 : static_cast<std::int32_t>(length(sequence));
    seq[i] = sequence;
    run_start[i] = continues ? run_start[i - 1] : row;
    keep[i] = kept_layers_.empty() ? -1 : row;
    if (pos[i] >= shape_.max_context) {
      return make_error(Errc::invalid_argument,
                        "sequence %d is full: [engine] max_context allows %lld tokens", sequence,
                        static_cast<long long>(shape_.max_context));
    }
    if (!wants_logits) continue;
    if (n_out == shape_.max_out) {
      return make_error(Errc::invalid_argument, "logits of more than %d rows wanted",
                        shape_.max_out);
    }
    out_row[n_out++] = row;
  }
  step_host_[0] = static_cast<std::int32_t>(rows.size());
  step_host_[1] = n_out;
  // Rank 0 decides what all ranks feed.
  EBB_TRY(comm_->broadcast(std::as_writable_bytes(std::span(step_host_)), 0));
  const std::int32_t n_rows = step_host_[0];
  n_out_ = step_host_[1];
  if (swapping_) EBB_TRY(compute_->wait());  // the last step reads its moves and writes its log
  std::span<const Forecast> forecasts;
  if (remembering_) {
    EBB_ASSIGN(forecasts, remembering_->begin_step({pos, seq, out_row, n_rows, n_out_}, keep));
  }
  if (swapping_) {
    for (const Forecast& forecast : forecasts) swapping_->scored(forecast);
    swapping_->begin_step(pos, seq, n_rows);
  }
  EBB_TRY(compute_->write(const_cast<std::int32_t*>(step_.n_rows), step_host_.data(),
                          step_host_.size() * sizeof(std::int32_t)));
  EBB_TRY(compute_->start(plan_for(std::max(n_rows, n_out_))));
  if (remembering_) EBB_TRY(remembering_->step_started());
  if (swapping_) swapping_->digest();
  for (std::int32_t i = 0; i < n_rows; ++i) {
    length_[static_cast<std::size_t>(seq[i])] = pos[i] + 1;
  }
  return ok_status();
}

PlanId Engine::plan_for(std::int32_t n_rows) const {
  return (n_rows <= plans_.front().max_rows ? plans_.front() : plans_.back()).id;
}

Status Engine::check_empty(std::int32_t sequence) const {
  if (sequence >= 0 && sequence < shape_.max_open && length(sequence) == 0) {
    return ok_status();
  }
  return make_error(Errc::invalid_argument, "sequence %d is not open and empty", sequence);
}

Status Engine::fill(std::int32_t sequence, std::int64_t n_tokens, std::uint64_t seed) {
  EBB_TRY(check_empty(sequence));
  if (n_tokens < 0 || n_tokens > shape_.max_context) {
    return make_error(Errc::invalid_argument, "%lld tokens to fill in: want 0..%lld",
                      static_cast<long long>(n_tokens), static_cast<long long>(shape_.max_context));
  }
  EBB_TRY(attention_->fill(sequence, n_tokens, seed));
  if (swapping_) swapping_->fill(sequence, n_tokens);
  length_[static_cast<std::size_t>(sequence)] = n_tokens;
  return ok_status();
}

Status Engine::copy(std::int32_t from, std::int32_t to) {
  EBB_TRY(check_empty(to));
  if (from == to || from < 0 || from >= shape_.max_open || length(from) < 0) {
    return make_error(Errc::invalid_argument, "sequence %d: want another that is open", from);
  }
  EBB_TRY(compute_->wait());  // what lies in host memory may be copied by the host
  EBB_TRY(attention_->copy(from, to, length(from)));
  if (swapping_) swapping_->fill(to, length(from));
  length_[static_cast<std::size_t>(to)] = length(from);
  return ok_status();
}

Result<std::span<const float>> Engine::logits(std::int32_t i) {
  if (i < 0 || i >= n_out_) {
    return make_error(Errc::invalid_argument, "logits row %d: the step gave %d", i, n_out_);
  }
  EBB_TRY(compute_->read(logits_.data(),
                         decoder_->results().logits + std::int64_t{i} * model_.vocab_size,
                         logits_.size() * sizeof(float)));
  return std::span<const float>(logits_);
}

Result<std::int32_t> Engine::argmax(std::int32_t i) {
  if (i < 0 || i >= n_out_) {
    return make_error(Errc::invalid_argument, "logits row %d: the step gave %d", i, n_out_);
  }
  std::int32_t id = -1;
  EBB_TRY(compute_->read(&id, decoder_->results().argmax + i, sizeof(id)));
  return id;
}

Result<std::span<const SwapCounters>> Engine::swap_counters() {
  if (!swapping_) return std::span<const SwapCounters>();
  EBB_TRY(compute_->wait());
  swapping_->settle();
  return swapping_->counters();
}

std::vector<std::pair<const ModuleDescriptor*, std::string>> Engine::modules() const {
  std::vector<std::pair<const ModuleDescriptor*, std::string>> all;
  const auto add = [&all](const auto& part) {
    if (part) all.emplace_back(&part.descriptor(), part.file());
  };
  add(loader_);
  add(tokenizer_);
  add(compute_);
  add(comm_);
  add(swap_);
  add(attention_);
  add(decoder_);
  for (const auto& scorer : scorers_) add(scorer);
  add(memory_);
  return all;
}

}  // namespace ebb
