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
#include "tests/scorers/reference.h"
#include "tests/scorers/safetensors_bytes.h"

// What it takes to ask a scorer: weights in a file, keys and hidden vectors behind an attention,
// queries in a step.

namespace ebb::test {

inline void require(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message);
}
template <class T>
T require(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

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
  shape.max_sequences = n;
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

/// Values of a tensor, and their bytes as a stored type has them.
struct Stored {
  std::vector<double> values;
  std::string bytes;
};

/// Spreads evenly between -size and size around mean, quickly: some tensors have 10^8 values.
inline Stored stored_values(std::uint64_t seed, std::int64_t n, const std::string& type,
                            double size, double mean = 0) {
  Stored out;
  out.values.resize(static_cast<std::size_t>(n));
  const std::size_t width = type == "F32" ? 4 : 2;
  out.bytes.resize(out.values.size() * width);
  std::uint64_t state = seed * 2654435761 + 12345;
  for (std::size_t i = 0; i < out.values.size(); ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const double value = mean + size * (static_cast<double>(state >> 40) / (1 << 23) - 1);
    if (type == "F32") {
      const auto single = static_cast<float>(value);
      std::memcpy(&out.bytes[4 * i], &single, 4);
      out.values[i] = single;
    } else {
      const bool is_f16 = type == "F16";
      const std::uint16_t half =
          is_f16 ? reference::double_to_f16(value) : reference::double_to_bf16(value);
      std::memcpy(&out.bytes[2 * i], &half, 2);
      out.values[i] = is_f16 ? reference::f16_to_double(half) : reference::bf16_to_double(half);
    }
  }
  return out;
}

struct RetrieverShape {
  std::int64_t d_model, rank;
  std::int32_t n_heads, d, n_pairs;
  std::string type = "F32";
};

/// Random weights, of sizes that keep the parts of a query about 1, added to a file.
inline reference::Retriever random_retriever(const RetrieverShape& shape, const std::string& prefix,
                                             std::uint64_t seed, SafetensorsFile& file) {
  reference::Retriever r{
      shape.d_model, shape.rank, shape.n_heads, shape.d, shape.n_pairs, {}, {}, {}, {}};
  const auto add = [&](const char* name, std::vector<std::int64_t> extents, double size,
                       double mean) {
    std::int64_t n = 1;
    for (const std::int64_t extent : extents) n *= extent;
    Stored stored = stored_values(++seed, n, shape.type, size, mean);
    file.add(prefix + name, shape.type, extents, stored.bytes);
    return std::move(stored.values);
  };
  // Evenly spread between -s and s has variance s^2 / 3.
  const double in = std::sqrt(3.0 / static_cast<double>(shape.d_model));
  const double rank = std::sqrt(3.0 / static_cast<double>(shape.rank));
  const std::int64_t width = std::int64_t{shape.n_heads} * shape.d;
  r.wq_a = add("wq_a.weight", {shape.rank, shape.d_model}, in, 0);
  r.q_norm = add("q_norm_weight", {shape.rank}, 0.5, 1);
  r.wq_b = add("wq_b.weight", {width, shape.rank}, rank, 0);
  r.weights = add("weights_proj.weight", {shape.n_heads, shape.d_model}, in, 0);
  return r;
}

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace ebb::test
