// A trained scorer of one layer, in the order of the ops it records:
//   a = RMS(Wqa x) * g,  q = Wqb a,  rounded, rotated to the query's position, rounded again;
//   w = Wp x;  logit[c] = sum_h w[h] / sqrt(d * heads) * max(0, q[h] . key[c]).
// The transform of keys and queries is orthonormal and cancels in the product, so queries take it
// only where the stored keys have it. Scorers were trained with angles in single precision: near a
// million tokens those are off by hundredths of a radian, and the scorer expects it.
// Source: retriever reference 2.1, 2.2

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "core/api/host.h"
#include "core/api/memory.h"
#include "kernels/ops/ops.h"
#include "modules/scorer_flashmemory/weights.h"

namespace ebb {
namespace {

constexpr float kEps = 1e-6F;

struct Settings {
  std::int32_t layer = -1;
  bool rounds = true;
  float logit_offset = 0;
};

class ScorerFlashmemory final : public Scorer {
 public:
  static Result<std::unique_ptr<ScorerFlashmemory>> create(Host& host, Options& options) {
    Settings settings;
    settings.layer = static_cast<std::int32_t>(
        options.get_int("layer", -1, -1, std::numeric_limits<std::int32_t>::max()));
    const std::string path = options.get_path("weights");
    std::string prefix = options.get_string("tensor_prefix", "");
    settings.rounds = options.get_choice("rounding", 0, {"bf16", "none"}) == 0;
    settings.logit_offset = static_cast<float>(options.get_float("logit_offset", 0, -1000, 1000));
    EBB_TRY(options.finish());
    if (settings.layer < 0) {
      return Error{Errc::invalid_argument,
                   options.where("layer") + ": missing, want a layer that has index keys"};
    }
    if (path.empty()) {
      return Error{Errc::invalid_argument,
                   options.where("weights") + ": missing, want a .safetensors file"};
    }
    if (host.compute() == nullptr || host.attention() == nullptr) {
      return make_error(Errc::incompatible,
                        "scorer_flashmemory needs a compute and an attention module");
    }
    ScoredLayer scored;
    if (Status found = host.attention()->scored_layer(settings.layer, scored); !found) {
      return Error{found.error().code, options.where("layer") + ": " + found.error().message};
    }
    if (prefix.empty()) {
      prefix = "retrievers.l" + std::to_string(ordinal(*host.attention(), settings.layer)) + ".";
    }
    EBB_ASSIGN(safetensors::File file, safetensors::File::open(path));
    EBB_ASSIGN(const flashmemory::StoredWeights stored,
               flashmemory::find_weights(file, prefix, scored.d_model, scored.d));
    return std::make_unique<ScorerFlashmemory>(host, settings, std::move(file), stored);
  }

  ScorerFlashmemory(Host& host, const Settings& settings, safetensors::File file,
                    const flashmemory::StoredWeights& stored)
      : compute_(*host.compute()),
        attention_(*host.attention()),
        settings_(settings),
        file_(std::move(file)),
        stored_(stored) {}

  std::int32_t layer() const noexcept override { return settings_.layer; }

  Status load() noexcept override {
    EBB_ASSIGN(latent_, compute_.import_matrix(stored_.latent));
    EBB_ASSIGN(norm_, compute_.import_floats(stored_.norm));
    EBB_ASSIGN(query_, compute_.import_matrix(stored_.query));
    EBB_ASSIGN(weights_, compute_.import_matrix(stored_.weights));
    return ok_status();
  }

  void carve(Arena& arena, const SessionShape& shape) noexcept override {
    ScoredLayer scored;
    EBB_ASSERT(attention_.scored_layer(settings_.layer, scored).has_value());
    max_kept_ = 2 * shape.max_open;
    const std::int64_t n = max_kept_;  // many wide rows are more values than 32 bits count
    const char* const part = "scorer scratch";
    a_ = arena.take<float>(n * stored_.rank, part);
    q_ = arena.take<float>(n * stored_.n_heads * scored.d, part);
    w_ = arena.take<float>(n * stored_.n_heads, part);
    cos_sin_ = arena.take<float>(n * scored.n_pairs * 2, part);
  }

  Status plan(Ops& ops, const StepView& queries, std::int32_t first_kept, float* logits,
              std::int64_t n_chunks) noexcept override {
    if (queries.max_rows < 1 || first_kept < 0 || queries.max_rows > max_kept_ - first_kept) {
      return make_error(Errc::invalid_argument,
                        "scorer_flashmemory: %d queries from kept row %d on: there are %d",
                        queries.max_rows, first_kept, max_kept_);
    }
    ScoredLayer scored;
    EBB_TRY(attention_.scored_layer(settings_.layer, scored));
    const std::int32_t* const n_rows = queries.n_rows;
    float* const a = a_ + first_kept * stored_.rank;
    float* const q = q_ + std::int64_t{first_kept} * stored_.n_heads * scored.d;
    float* const w = w_ + std::int64_t{first_kept} * stored_.n_heads;
    float* const cos_sin = cos_sin_ + std::int64_t{first_kept} * scored.n_pairs * 2;

    // Exact: logits meet a fixed threshold, and the products are small beside a step's.
    MatmulArgs project{};
    project.n_rows = n_rows;
    project.max_rows = queries.max_rows;
    project.x = scored.hidden + first_kept * scored.d_model;
    project.exact = true;
    project.parts[0] = {latent_, a};
    project.parts[1] = {weights_, w};
    project.n_parts = 2;
    EBB_TRY(ops.matmul(project));
    EBB_TRY(ops.rms_norm({n_rows, queries.max_rows, a, norm_, a, stored_.rank, kEps}));
    MatmulArgs heads{};
    heads.n_rows = n_rows;
    heads.max_rows = queries.max_rows;
    heads.x = a;
    heads.exact = true;
    heads.parts[0] = {query_, q};
    heads.n_parts = 1;
    EBB_TRY(ops.matmul(heads));
    RopeTableArgs angles{queries, scored.frequency, scored.n_pairs, 0, cos_sin, true};
    EBB_TRY(ops.rope_table(angles));
    EBB_TRY(ops.heads({queries, q, stored_.n_heads, scored.d, false, 0, cos_sin, scored.n_pairs,
                       rounding(scored.transformed)}));

    ScoreArgs score{};
    score.step = queries;
    score.q = q;
    score.weight = w;
    score.weight_scale =
        1 / std::sqrt(static_cast<float>(scored.d) * static_cast<float>(stored_.n_heads));
    score.keys = scored.keys;
    score.n_heads = stored_.n_heads;
    score.d = scored.d;
    score.ratio = scored.ratio;
    score.logits = logits;
    score.stride = n_chunks;
    return ops.score(score);
  }

  void finish(std::int32_t, std::int64_t, std::span<float> logits) noexcept override {
    if (settings_.logit_offset == 0) return;
    for (float& logit : logits) logit += settings_.logit_offset;
  }

 private:
  /// How many layers with index keys come before this one.
  static std::int32_t ordinal(const Attention& attention, std::int32_t layer) {
    std::int32_t n = 0;
    ScoredLayer other;
    for (std::int32_t i = 0; i < layer; ++i) {
      if (attention.scored_layer(i, other)) ++n;
    }
    return n;
  }

  Rounding rounding(bool transformed) const {
    if (settings_.rounds) return transformed ? Rounding::bf16_hadamard : Rounding::bf16;
    return transformed ? Rounding::hadamard : Rounding::none;
  }

  Compute& compute_;
  const Attention& attention_;
  const Settings settings_;
  const safetensors::File file_;  // the CPU reads weights where it has them
  const flashmemory::StoredWeights stored_;
  Weight latent_, query_, weights_;
  const float* norm_ = nullptr;

  // Compute memory, carved per session. A query works in the row in which its vector is kept: so
  // plans that may run beside one another share nothing.
  std::int32_t max_kept_ = 0;
  float* a_ = nullptr;        // [max_kept, rank]
  float* q_ = nullptr;        // [max_kept, n_heads, d]
  float* w_ = nullptr;        // [max_kept, n_heads]
  float* cos_sin_ = nullptr;  // [max_kept, n_pairs, 2]
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Scorer, ebb::ScorerFlashmemory, "scorer_flashmemory", EBB_VERSION);
