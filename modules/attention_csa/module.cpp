// Compressed sparse attention. Per layer the module keeps a ring of the window's rows and, if the
// layer compresses, one row per complete chunk, one index key per chunk (ratio 4) and the
// compressor's state (layer.h). Every row of a step goes through the same ops in the same order
// whatever the step's size, so prefill in any chunking and decode leave the same state.
//
// Where the host stages chunk rows, those of the ratio-4 layers are in its pool, and in slots as
// far as its tables say; whichever of the two a row is read from, its bytes are the same.
// Selections of a decode step go to its log (selections.h).

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/api/attention.h"
#include "core/api/host.h"
#include "core/api/loader.h"
#include "core/api/memory.h"
#include "core/api/staging.h"
#include "kernels/ops/ops.h"
#include "kernels/row_format.h"
#include "modules/attention_csa/angles.h"
#include "modules/attention_csa/layer.h"
#include "modules/attention_csa/random_state.h"
#include "modules/attention_csa/recorded.h"
#include "modules/attention_csa/selections.h"
#include "modules/deepseek4/config.h"

namespace ebb {
namespace {

using deepseek4::Config;

class AttentionCsa final : public Attention {
 public:
  static Result<std::unique_ptr<AttentionCsa>> create(Host& host, Options& options) {
    const std::size_t kv = options.get_choice("kv_format", 0, {"f32", "f16", "fp8"});
    const std::size_t index = options.get_choice("index_format", 0, {"f32", "fp8", "fp4"});
    const std::string selections = options.get_path("selections");
    EBB_TRY(options.finish());
    if (host.loader() == nullptr || host.compute() == nullptr) {
      return make_error(Errc::incompatible, "attention_csa needs a loader and a compute module");
    }
    EBB_ASSIGN(Config config, deepseek4::read_config(*host.loader()));
    EBB_TRY(deepseek4::check_tensors(*host.loader(), config));
    constexpr RowFormat kKvFormats[] = {RowFormat::f32, RowFormat::f16, RowFormat::fp8};
    constexpr RowFormat kIndexFormats[] = {RowFormat::f32, RowFormat::fp8, RowFormat::fp4};
    RecordedSelections recorded;
    if (!selections.empty()) {
      EBB_ASSIGN(recorded, RecordedSelections::read(selections, config.top_k));
    }
    return std::make_unique<AttentionCsa>(host, std::move(config),
                                          RowFormats{kKvFormats[kv], kIndexFormats[index]},
                                          std::move(recorded));
  }

  AttentionCsa(Host& host, Config config, RowFormats formats, RecordedSelections recorded)
      : host_(host),
        loader_(*host.loader()),
        compute_(*host.compute()),
        config_(std::move(config)),
        formats_(formats),
        recorded_(std::move(recorded)),
        angles_(config_) {
    layers_.resize(static_cast<std::size_t>(config_.n_layers));
    std::int32_t n_csa = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      layers_[i].ratio = config_.ratio[i];
      if (layers_[i].ratio == 4) layers_[i].ordinal = n_csa++;
    }
  }

  Status keep(std::span<const std::int32_t> layers, bool queries) noexcept override {
    for (const std::int32_t layer : layers) {
      if (layer >= 0) EBB_TRY(check_scored(layer));
      for (std::size_t i = 0; i < layers_.size(); ++i) {
        const bool is_meant = layer < 0 || static_cast<std::size_t>(layer) == i;
        if (is_meant && layers_[i].ratio == 4) layers_[i].is_kept = true;
      }
    }
    keeps_queries_ = queries;
    return ok_status();
  }

  Status scored_layer(std::int32_t index, ScoredLayer& out) const noexcept override {
    EBB_TRY(check_scored(index));
    const Layer& layer = layers_[static_cast<std::size_t>(index)];
    out.d_model = config_.d_model;
    out.hidden = layer.kept.hidden;
    out.keys = layer.index.rows;
    out.d = config_.d_index;
    out.n_pairs = config_.n_rot / 2;
    out.ratio = layer.ratio;
    out.transformed = transforms(index_rounding_);
    out.frequency = angles_.of_rows(layer.ratio).frequency;
    out.index_q = layer.kept.index_q;
    out.index_weight = layer.kept.index_weight;
    out.n_heads = config_.n_index_heads;
    out.weight_scale = index_weight_scale();
    return ok_status();
  }

  Status load(bool qat_simulation) noexcept override {
    kv_rounding_ = qat_simulation ? Rounding::fp8_nope : Rounding::none;
    // A quantised key keeps more of a vector whose outliers the transform has spread; a plain f32
    // key needs no transform, since it cancels in the dot product.
    index_rounding_ = qat_simulation                     ? Rounding::hadamard_fp4
                      : formats_.index == RowFormat::f32 ? Rounding::none
                                                         : Rounding::hadamard;
    for (std::int32_t i = 0; i < config_.n_layers; ++i) {
      EBB_TRY(layers_[static_cast<std::size_t>(i)].load(compute_, loader_, i));
    }
    return ok_status();
  }

  StagedShape staged(const SessionShape& shape) const noexcept override {
    const auto n = std::count(config_.ratio.begin(), config_.ratio.end(), 4);
    return {static_cast<std::int32_t>(n), 4, top_k(shape),
            row_bytes(formats_.kv, config_.d_head, config_.n_rot)};
  }

  void carve(Arena& arena, const SessionShape& shape) noexcept override {
    const std::int64_t rows = shape.max_rows;
    top_k_ = top_k(shape);
    max_decode_ = shape.max_decode;
    recorded_.carve(arena);
    staging_ = host_.staging();
    allowed_ = host_.memory() != nullptr ? host_.memory()->allowed() : nullptr;
    n_staged_ = 0;
    for (Layer& layer : layers_) {
      layer.staged = layer.ratio == 4 && staging_ != nullptr ? n_staged_++ : -1;
      layer.carve(arena, shape, config_, formats_, staging_, keeps_queries_);
      if (layer.ratio == 4) n_chunks_ = layer.index.rows.n_rows;
    }
    angles_.carve(arena, rows);
    scratch_kv_ = arena.take<float>(rows * 2 * config_.d_head, "attention scratch");
    scratch_gate_ = arena.take<float>(rows * 2 * config_.d_head, "attention scratch");
    scratch_index_kv_ = arena.take<float>(rows * 2 * config_.d_index, "attention scratch");
    scratch_index_gate_ = arena.take<float>(rows * 2 * config_.d_index, "attention scratch");
    index_q_ =
        arena.take<float>(rows * config_.n_index_heads * config_.d_index, "attention scratch");
    index_weight_ = arena.take<float>(rows * config_.n_index_heads, "attention scratch");
    selections_.carve(arena, rows, top_k_, staging_, n_staged_);
  }

  Status plan_step(Ops& ops, const StepView& step) noexcept override {
    EBB_TRY(angles_.upload(compute_));
    EBB_TRY(recorded_.upload(compute_, n_chunks_));
    if (n_staged_ > 0) EBB_TRY(ops.move_rows({staging_->step_moves()}));
    return angles_.plan(ops, step);
  }

  Status plan_layer(Ops& ops, const StepView& step, std::int32_t index,
                    const AttentionIo& io) noexcept override {
    const Layer& layer = layers_[static_cast<std::size_t>(index)];
    const float* const cos_sin = angles_.of_rows(layer.ratio).cos_sin;
    const std::int32_t n_pairs = config_.n_rot / 2;
    EBB_TRY(ops.heads({step, io.q, config_.n_heads, config_.d_head, true, config_.rms_eps, cos_sin,
                       n_pairs, Rounding::none}));
    EBB_TRY(ops.append({step, io.kv, layer.kv_norm, config_.rms_eps, cos_sin, n_pairs,
                        config_.d_head, kv_rounding_, layer.ring}));
    if (layer.ratio > 0) EBB_TRY(plan_chunks(ops, step, layer, io));

    AttendArgs attend{};
    attend.step = step;
    attend.q = io.q;
    attend.ring = layer.ring;
    attend.window = config_.window;
    if (layer.ratio > 0) {
      attend.chunks = layer.chunks.rows;
      attend.ratio = layer.ratio;
    }
    if (layer.ratio == 4) {
      const SelectionLog chosen = selections_.of(layer.staged, step);
      attend.slots = layer.slots;
      attend.ids = chosen.ids;
      attend.count = chosen.count;
      attend.top_k = top_k_;
    }
    attend.sink = layer.sink;
    attend.scale = 1.0F / std::sqrt(static_cast<float>(config_.d_head));
    attend.cos_sin = cos_sin;
    attend.n_pairs = n_pairs;
    attend.n_heads = config_.n_heads;
    attend.d = config_.d_head;
    attend.out = io.out;
    return ops.attend(attend);
  }

  std::int64_t bytes_read(std::int64_t pos) const noexcept override {
    std::int64_t bytes = 0;
    for (const Layer& layer : layers_) bytes += layer.bytes_read(pos, config_.window, top_k_);
    return bytes;
  }

  Status fill(std::int32_t sequence, std::int64_t n_tokens, std::uint64_t seed) noexcept override {
    try {
      RandomState random(compute_, seed);
      for (const Layer& layer : layers_) {
        EBB_TRY(layer.fill(random, config_, sequence, n_tokens));
      }
      return ok_status();
    } catch (const std::bad_alloc&) {
      return make_error(Errc::out_of_memory, "attention_csa: no memory for random rows");
    }
  }

  Status copy(std::int32_t from, std::int32_t to, std::int64_t n_tokens) noexcept override {
    for (const Layer& layer : layers_) {
      EBB_TRY(layer.copy(compute_, from, to, n_tokens));
    }
    return ok_status();
  }

 private:
  /// Whoever may choose more chunks than there can be takes all of them.
  std::int32_t top_k(const SessionShape& shape) const {
    return static_cast<std::int32_t>(
        std::min<std::int64_t>(config_.top_k, (shape.max_context + 3) / 4));
  }

  Status check_scored(std::int32_t layer) const {
    if (layer >= 0 && layer < config_.n_layers &&
        config_.ratio[static_cast<std::size_t>(layer)] == 4) {
      return ok_status();
    }
    std::string all;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].ratio == 4) all += (all.empty() ? "" : ", ") + std::to_string(i);
    }
    return make_error(Errc::invalid_argument, "layer %d has no index keys: want one of %s", layer,
                      all.c_str());
  }

  float index_weight_scale() const {
    return 1.0F / std::sqrt(static_cast<float>(config_.d_index) *
                            static_cast<float>(config_.n_index_heads));
  }

  Status plan_kept(Ops& ops, const StepView& step, const Layer& layer,
                   const AttentionIo& io) const {
    EBB_TRY(ops.keep_rows({step, io.x, config_.d_model, layer.kept.hidden}));
    if (!keeps_queries_) return ok_status();
    const std::int64_t heads = config_.n_index_heads;
    EBB_TRY(ops.keep_rows({step, index_q_, heads * config_.d_index, layer.kept.index_q}));
    return ops.keep_rows({step, index_weight_, heads, layer.kept.index_weight});
  }

  Status plan_chunks(Ops& ops, const StepView& step, const Layer& layer, const AttentionIo& io) {
    const bool is_csa = layer.ratio == 4;
    MatmulArgs project{};
    project.n_rows = step.n_rows;
    project.max_rows = step.max_rows;
    project.x = io.x;
    project.parts[0] = {layer.chunks.kv, scratch_kv_};
    project.parts[1] = {layer.chunks.gate, scratch_gate_};
    project.n_parts = 2;
    if (is_csa) {
      project.parts[2] = {layer.index.kv, scratch_index_kv_};
      project.parts[3] = {layer.index.gate, scratch_index_gate_};
      project.parts[4] = {layer.index_weight, index_weight_};
      project.n_parts = 5;
    }
    EBB_TRY(ops.matmul(project));
    const Angles& angles = angles_.of_chunks(layer.ratio);
    CompressArgs chunks =
        layer.chunks.args(step, config_, scratch_kv_, scratch_gate_, angles, kv_rounding_);
    chunks.slots = layer.slots;
    EBB_TRY(ops.compress(chunks));
    if (!is_csa) return ok_status();
    EBB_TRY(ops.compress(layer.index.args(step, config_, scratch_index_kv_, scratch_index_gate_,
                                          angles, index_rounding_)));
    MatmulArgs query{};
    query.n_rows = step.n_rows;
    query.max_rows = step.max_rows;
    query.x = io.q_latent;
    query.parts[0] = {layer.index_query, index_q_};
    query.n_parts = 1;
    EBB_TRY(ops.matmul(query));
    EBB_TRY(ops.heads({step, index_q_, config_.n_index_heads, config_.d_index, false, 0,
                       angles_.of_rows(layer.ratio).cos_sin, config_.n_rot / 2, index_rounding_}));
    if (layer.is_kept) EBB_TRY(plan_kept(ops, step, layer, io));
    SelectArgs select{};
    select.step = step;
    select.q = index_q_;
    select.weight = index_weight_;
    select.weight_scale = index_weight_scale();
    select.keys = layer.index.rows;
    select.n_heads = config_.n_index_heads;
    select.d = config_.d_index;
    select.ratio = layer.ratio;
    select.top_k = top_k_;
    select.allowed = allowed_;
    const SelectionLog chosen = selections_.of(layer.staged, step);
    select.ids = chosen.ids;
    select.count = chosen.count;
    EBB_TRY(ops.select(select));
    if (!recorded_.empty() && step.max_rows <= max_decode_) {
      EBB_TRY(recorded_.plan(ops, step, layer.ordinal, chosen.ids, chosen.count));
    }
    return selections_.plan_log(ops, step, layer.staged);
  }

  Host& host_;
  const Loader& loader_;
  Compute& compute_;
  const Config config_;
  const RowFormats formats_;
  RecordedSelections recorded_;
  AngleTables angles_;
  Rounding kv_rounding_ = Rounding::none;
  Rounding index_rounding_ = Rounding::none;
  std::vector<Layer> layers_;
  std::int32_t top_k_ = 0;      // of the session
  Staging* staging_ = nullptr;  // of the session; nullptr: no layer is staged
  std::int32_t n_staged_ = 0;
  std::int32_t max_decode_ = 0;  // of the session
  std::int64_t n_chunks_ = 0;    // of ratio 4, in max_context
  bool keeps_queries_ = false;
  const std::uint8_t* allowed_ = nullptr;  // of the session

  // Compute memory, carved per session; scratch is shared by all layers.
  float* scratch_kv_ = nullptr;          // [rows, 2 * d_head]
  float* scratch_gate_ = nullptr;        // [rows, 2 * d_head]
  float* scratch_index_kv_ = nullptr;    // [rows, 2 * d_index]
  float* scratch_index_gate_ = nullptr;  // [rows, 2 * d_index]
  float* index_q_ = nullptr;             // [rows, n_index_heads, d_index]
  float* index_weight_ = nullptr;        // [rows, n_index_heads]
  Selections selections_;
};

}  // namespace
}  // namespace ebb

EBB_MODULE(ebb::Attention, ebb::AttentionCsa, "attention_csa", EBB_VERSION);
