#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/api/attention.h"
#include "core/api/compute.h"
#include "core/api/memory.h"
#include "core/host.h"
#include "core/module_loader.h"
#include "kernels/ops/ops.h"
#include "kernels/row_format.h"
#include "tests/core/support.h"
#include "tests/engine/harness.h"
#include "tests/scorers/retriever.h"

// What it takes to ask a scorer: weights in a file, keys and hidden vectors behind an attention,
// queries in a step.

namespace ebb::test {

/// An attention that has index keys in some layers and does nothing else.
class MadeUpAttention final : public Attention {
 public:
  ScoredLayer scored;
  std::vector<std::int32_t> layers{2};

  Status scored_layer(std::int32_t layer, ScoredLayer& out) const noexcept override {
    if (std::find(layers.begin(), layers.end(), layer) == layers.end()) {
      return make_error(Errc::invalid_argument, "layer %d has no index keys", layer);
    }
    out = scored;
    return ok_status();
  }
  Status keep(std::span<const std::int32_t>, bool) noexcept override { return ok_status(); }
  StagedShape staged(const SessionShape&) const noexcept override { return {}; }
  Status load(bool) noexcept override { return ok_status(); }
  void carve(Arena&, const SessionShape&) noexcept override {}
  Status plan_step(Ops&, const StepView&) noexcept override { return ok_status(); }
  Status plan_layer(Ops&, const StepView&, std::int32_t, const AttentionIo&) noexcept override {
    return ok_status();
  }
  std::int64_t bytes_read(std::int64_t) const noexcept override { return 0; }
  Status fill(std::int32_t, std::int64_t, std::uint64_t) noexcept override { return ok_status(); }
  Status copy(std::int32_t, std::int32_t, std::int64_t) noexcept override { return ok_status(); }
};

/// A host with a CPU and an attention.
class Bench {
 public:
  Bench() : services_([](LogLevel, std::string_view) {}, 5) {
    const std::unique_ptr<Options> options = options_of("threads = 2\npin = false", "compute");
    compute_ = require(modules_.load<Compute>({"compute", "compute_cpu", "", "test"},
                                              services_.host_for("compute_cpu"), *options));
    services_.parts().compute = compute_.get();
  }

  HostServices& services() { return services_; }
  Compute& compute() { return *compute_.get(); }

  /// A module made from the text of a [[memory.scorer]] table.
  Result<ModulePtr<Scorer>> scorer(const std::string& name, const std::string& table) {
    const std::unique_ptr<Options> options = options_of(table, "memory.scorer", "m.toml");
    return modules_.load<Scorer>({"scorer", name, "", "test"}, services_.host_for(name), *options);
  }

 private:
  ModuleLoader modules_{EBB_MODULES_DIR};
  HostServices services_;
  ModulePtr<Compute> compute_;
};

/// A query: a sequence at a position.
struct Query {
  std::int32_t seq, pos;
};

/// Runs a loaded scorer once: logits [queries, stride], NaN where it wrote nothing. It carves from
/// memory full of NaNs.
inline std::vector<float> ask(Compute& compute, Scorer& scorer, const std::vector<Query>& queries,
                              std::int32_t first_kept, std::int64_t stride) {
  const auto n = static_cast<std::int32_t>(queries.size());
  std::vector<std::int32_t> pos, seq;
  for (const Query& query : queries) {
    pos.push_back(query.pos);
    seq.push_back(query.seq);
  }
  StepView step;
  step.n_rows = &n;
  step.pos = pos.data();
  step.seq = seq.data();
  step.max_rows = n;
  SessionShape shape;
  shape.max_open = (first_kept + n + 1) / 2;  // twice as many rows are kept
  Arena counting;
  scorer.carve(counting, shape);
  std::vector<std::byte> memory(counting.bytes() + Arena::kAlign, std::byte{0xff});
  const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  Arena arena(memory.data() + (Arena::kAlign - at % Arena::kAlign) % Arena::kAlign);
  scorer.carve(arena, shape);
  std::vector<float> logits(static_cast<std::size_t>(n * stride), std::nanf(""));
  Ops* const ops = require(compute.begin_plan());
  require(scorer.plan(*ops, step, first_kept, logits.data(), stride));
  const PlanId plan = require(compute.end_plan());
  require(compute.start(plan));
  require(compute.wait());
  return logits;
}

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace ebb::test
