#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/api/comm.h"
#include "core/api/decoder.h"
#include "core/api/loader.h"
#include "core/api/memory.h"
#include "core/api/swap.h"
#include "core/api/tokenizer.h"
#include "core/host.h"
#include "core/manifest.h"
#include "core/module_loader.h"

namespace ebb {

struct EngineOptions {
  std::string modules_folder;  ///< where bare names resolve, unless [modules] path says otherwise
  LogSink log;
  bool all_logits = false;  ///< keep the logits of every row of a step, not of each sequence's last
  /// Keep what scorers read in these layers, queries too, of every row; -1: see Attention::keep.
  std::vector<std::int32_t> kept_layers;
  bool rehearsal = false;  ///< count memory and take none: nothing may be run then
};

/// One row of a step: the next token of a sequence.
struct StepRow {
  std::int32_t sequence = 0;
  std::int32_t token = 0;
  bool wants_logits = false;
};

/// A manifest's modules, wired, with memory for the sequences of [engine] max_sequences and
/// prefix_sequences. A step feeds one token to each of its rows and is planned once: then it runs
/// without allocation. Several engines may live in one process. Thread: the constructing thread is
/// [startup] and [decode]; every member is called from it.
class Engine {
 public:
  /// Loads, wires, checks and plans; the first weight is touched after every check has passed.
  static Result<std::unique_ptr<Engine>> open(const Manifest& manifest,
                                              const EngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// An empty sequence, or out_of_memory if session().max_open are open.
  Result<std::int32_t> open_sequence();
  void close_sequence(std::int32_t sequence);
  /// Tokens fed so far.
  std::int64_t length(std::int32_t sequence) const;

  /// Feeds rows; those of one sequence stand together and follow each other in position.
  /// Errors: invalid_argument for more than max_rows() rows, a closed sequence, a token outside the
  /// vocabulary, more wanted logits than max_out(), or a sequence beyond max_context; nothing has
  /// run then. device: the engine is of no use any more.
  Status step(std::span<const StepRow> rows);
  /// Of the last step's i-th row that wanted logits; borrowed until the next call.
  Result<std::span<const float>> logits(std::int32_t i);
  Result<std::int32_t> argmax(std::int32_t i);

  /// Makes an empty sequence hold n_tokens whose state is random: see Attention::fill.
  Status fill(std::int32_t sequence, std::int64_t n_tokens, std::uint64_t seed);
  /// Makes an empty sequence hold what `from` holds, as if the same tokens had been fed to it.
  /// Errors: invalid_argument; device.
  Status copy(std::int32_t from, std::int32_t to);

  const SessionShape& session() const { return shape_; }
  ModelShape model() const { return model_; }
  std::int32_t max_rows() const { return shape_.max_rows; }
  std::int32_t max_out() const { return shape_.max_out; }
  const Loader& loader() const { return *loader_.get(); }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }  ///< nullptr without [tokenizer]
  ComputeInfo compute_info() const { return compute_->info(); }
  Result<double> measure_read_rate() { return compute_->measure_read_rate(); }
  /// Of a step that wants logits of all its `n_rows` rows.
  std::int64_t launches(std::int32_t n_rows) const { return compute_->launches(plan_for(n_rows)); }
  double weight_bytes(std::int64_t n_rows) const { return decoder_->weight_bytes(n_rows); }
  std::int64_t bytes_read(std::int64_t pos) const { return attention_->bytes_read(pos); }
  /// nullptr when every chunk row stays in compute memory.
  const Swap* swap() const { return swapping_; }
  StagedShape staged() const { return attention_->staged(shape_); }
  /// nullptr when no scorer is asked.
  const Memory* memory() const { return remembering_; }
  const Attention& attention() const { return *attention_.get(); }
  /// From compute memory, after the last step.
  Status read(void* target, const void* source, std::uint64_t bytes) {
    return compute_->read(target, source, bytes);
  }
  /// From now on the engine tells `swap` what it told its swap module, or whoever was put before
  /// it: that one is returned, to hand everything on to. Not owned; where nothing is swapped, of no
  /// effect.
  Swap* put_before_swap(Swap* swap) { return swapping_ ? std::exchange(swapping_, swap) : nullptr; }
  /// What swapping did so far, by layer; empty without. Waits for the last step.
  Result<std::span<const SwapCounters>> swap_counters();
  /// Bytes of compute memory by part: of the session's one allocation, then of what else was taken.
  const std::vector<std::pair<std::string, std::uint64_t>>& parts() const { return parts_; }
  /// The modules in the order of wiring, with the files they came from.
  std::vector<std::pair<const ModuleDescriptor*, std::string>> modules() const;

 private:
  struct Plan {
    PlanId id;
    std::int32_t max_rows = 0;
  };
  Engine(const Manifest& manifest, const EngineOptions& options);
  Status wire(const Manifest& manifest, const ModuleLoader& modules);
  Status plan();
  StepView carve_step(Arena& arena) const;
  /// The smallest plan for so many rows, or so many rows whose logits are wanted.
  PlanId plan_for(std::int32_t n_rows) const;
  Status check_empty(std::int32_t sequence) const;
  template <class Interface>
  Status load(ModulePtr<Interface>& part, const Manifest& manifest, const ModuleLoader& modules,
              std::size_t i = 0);
  Status wire_memory(const Manifest& manifest, const ModuleLoader& modules);

  // Declared in the order of wiring; C++ destroys backwards, so a part outlives those that use it.
  HostServices host_;
  ModulePtr<Loader> loader_;
  ModulePtr<Tokenizer> tokenizer_;
  ModulePtr<Compute> compute_;
  ModulePtr<Comm> comm_;
  ModulePtr<Swap> swap_;
  ModulePtr<Attention> attention_;
  ModulePtr<Decoder> decoder_;
  std::vector<ModulePtr<Scorer>> scorers_;
  ModulePtr<Memory> memory_;

  Swap* swapping_ = nullptr;       // swap_, if it has anything to do, or who stands before it
  Memory* remembering_ = nullptr;  // memory_, likewise
  std::vector<std::int32_t> kept_layers_;
  SessionShape shape_;
  ModelShape model_;
  std::vector<std::pair<std::string, std::uint64_t>> parts_;
  StepView step_;                        // compute memory
  std::vector<std::int32_t> step_host_;  // the same layout, filled before each step
  std::vector<Plan> plans_;              // ascending by rows
  std::vector<std::int64_t> length_;     // by sequence; -1 closed
  std::vector<float> logits_;            // read-back of one row
  std::int32_t n_out_ = 0;               // of the last step
};

}  // namespace ebb
