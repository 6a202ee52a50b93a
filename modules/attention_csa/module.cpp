// Compressed sparse attention. Per layer the module keeps a ring of the window's rows and, if the
// layer compresses, one row per complete chunk, one index key per chunk (ratio 4) and the
// compressor's state. Every row of a step goes through the same ops in the same order whatever the
// step's size, so prefill in any chunking and decode leave the same state.
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
#include "kernels/rope.h"
#include "kernels/row_format.h"
#include "modules/attention_csa/compressor.h"
#include "modules/attention_csa/random_state.h"
#include "modules/attention_csa/recorded.h"
#include "modules/attention_csa/selections.h"
#include "modules/deepseek4/config.h"

namespace ebb {
namespace {

using deepseek4::Config;

struct Layer {
  std::int32_t ratio = 0;
  const float* kv_norm = nullptr;  // [d_head]
  const float* sink = nullptr;     // [n_heads]
  RowStore ring;
  Compressor chunks;
  // Ratio 4 only.
  std::int32_t ordinal = -1;  // among the layers of ratio 4
  std::int32_t staged = -1;   // number among the staged layers
  SlotStore slots;            // of chunks.rows
  Compressor index;
  Weight index_query;                  // [n_index_heads * d_index, q_rank]
  Weight index_weight;                 // [n_index_heads, d_model]
  bool is_kept = false;                // for scorers
  float* kept_hidden = nullptr;        // [max_kept, d_model]
  float* kept_index_q = nullptr;       // [max_kept, n_index_heads, d_index]
  float* kept_index_weight = nullptr;  // [max_kept, n_index_heads]
};

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
    return std::make_unique<AttentionCsa>(host, std::move(config), kKvFormats[kv],
                                          kIndexFormats[index], std::move(recorded));
  }

  AttentionCsa(Host& host, Config config, RowFormat kv_format, RowFormat index_format,
               RecordedSelections recorded)
      : host_(host),
        loader_(*host.loader()),
        compute_(*host.compute()),
        config_(std::move(config)),
        kv_format_(kv_format),
        index_format_(index_format),
        recorded_(std::move(recorded)),
        window_frequency_(frequencies({.base = config_.rope_base})),
        chunk_frequency_(frequencies({config_.compress_rope_base, config_.yarn_factor,
                                      config_.yarn_original_context, config_.yarn_beta_fast,
                                      config_.yarn_beta_slow})) {
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
    out.hidden = layer.kept_hidden;
    out.keys = layer.index.rows;
    out.d = config_.d_index;
    out.n_pairs = config_.n_rot / 2;
    out.ratio = layer.ratio;
    out.transformed = transforms(index_rounding_);
    out.frequency = chunk_frequency_memory_;
    out.index_q = layer.kept_index_q;
    out.index_weight = layer.kept_index_weight;
    out.n_heads = config_.n_index_heads;
    out.weight_scale = index_weight_scale();
    return ok_status();
  }

  Status load(bool qat_simulation) noexcept override {
    kv_rounding_ = qat_simulation ? Rounding::fp8_nope : Rounding::none;
    // A quantised key keeps more of a vector whose outliers the transform has spread; a plain f32
    // key needs no transform, since it cancels in the dot product.
    index_rounding_ = qat_simulation                    ? Rounding::hadamard_fp4
                      : index_format_ == RowFormat::f32 ? Rounding::none
                                                        : Rounding::hadamard;
    for (std::int32_t i = 0; i < config_.n_layers; ++i) {
      Layer& layer = layers_[static_cast<std::size_t>(i)];
      EBB_ASSIGN(layer.kv_norm, floats(i, "attn_kv_a_norm.weight"));
      EBB_ASSIGN(layer.sink, floats(i, "attn_sinks.weight"));
      if (layer.ratio == 0) continue;
      EBB_TRY(layer.chunks.load(compute_, loader_, i, "attn_compressor_"));
      if (layer.ratio != 4) continue;
      EBB_TRY(layer.index.load(compute_, loader_, i, "indexer_compressor_"));
      EBB_ASSIGN(layer.index_query, matrix(i, "indexer.attn_q_b.weight"));
      EBB_ASSIGN(layer.index_weight, matrix(i, "indexer.proj.weight"));
    }
    return ok_status();
  }

  StagedShape staged(const SessionShape& shape) const noexcept override {
    const auto n = std::count(config_.ratio.begin(), config_.ratio.end(), 4);
    return {static_cast<std::int32_t>(n), 4, top_k(shape),
            row_bytes(kv_format_, config_.d_head, config_.n_rot)};
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
      layer.ring = row_store(arena, shape, config_.window - 1 + rows, config_.d_head, config_.n_rot,
                             kv_format_, "window rows");
      if (layer.ratio == 0) continue;
      layer.chunks.carve(arena, shape, layer.ratio, config_.d_head);
      const std::int64_t n_chunks = (shape.max_context + layer.ratio - 1) / layer.ratio;
      if (layer.ratio == 4) n_chunks_ = n_chunks;
      layer.staged = layer.ratio == 4 && staging_ != nullptr ? n_staged_++ : -1;
      layer.slots = {};
      if (layer.staged >= 0) {
        carve_staged(layer, arena);
      } else {
        layer.chunks.rows = row_store(arena, shape, n_chunks, config_.d_head, config_.n_rot,
                                      kv_format_, layer.ratio == 4 ? "csa rows" : "hca rows");
      }
      if (layer.ratio != 4) continue;
      layer.index.carve(arena, shape, layer.ratio, config_.d_index);
      layer.index.rows =
          row_store(arena, shape, n_chunks, config_.d_index, 0, index_format_, "index keys");
      if (layer.is_kept) carve_kept(layer, arena, shape.max_kept);
    }
    const std::int64_t n_pairs = config_.n_rot / 2;
    window_frequency_memory_ = arena.take<double>(n_pairs, "rope tables");
    chunk_frequency_memory_ = arena.take<double>(n_pairs, "rope tables");
    for (Angles* angles : {&window_angles_, &query_angles_, &csa_angles_, &hca_angles_}) {
      angles->cos_sin = arena.take<float>(rows * n_pairs * 2, "rope tables");
    }
    window_angles_.frequency = window_frequency_memory_;
    query_angles_.frequency = chunk_frequency_memory_;
    // A chunk's row stands at the chunk's first token; it is made by the row of its last.
    csa_angles_.frequency = chunk_frequency_memory_;
    csa_angles_.offset = -3;
    hca_angles_.frequency = chunk_frequency_memory_;
    hca_angles_.offset = -127;

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
    const std::uint64_t bytes = window_frequency_.size() * sizeof(double);
    EBB_TRY(compute_.write(window_frequency_memory_, window_frequency_.data(), bytes));
    EBB_TRY(compute_.write(chunk_frequency_memory_, chunk_frequency_.data(), bytes));
    EBB_TRY(recorded_.upload(compute_, n_chunks_));
    if (n_staged_ > 0) EBB_TRY(ops.move_rows({staging_->step_moves()}));
    for (const Angles* angles : {&window_angles_, &query_angles_, &csa_angles_, &hca_angles_}) {
      EBB_TRY(ops.rope_table(
          {step, angles->frequency, config_.n_rot / 2, angles->offset, angles->cos_sin}));
    }
    return ok_status();
  }

  Status plan_layer(Ops& ops, const StepView& step, std::int32_t index,
                    const AttentionIo& io) noexcept override {
    const Layer& layer = layers_[static_cast<std::size_t>(index)];
    const float* const cos_sin = layer.ratio == 0 ? window_angles_.cos_sin : query_angles_.cos_sin;
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
    for (const Layer& layer : layers_) {
      bytes += std::min<std::int64_t>(pos + 1, config_.window) * layer.ring.row_bytes;
      if (layer.ratio == 0) continue;
      const std::int64_t visible = (pos + 1) / layer.ratio;
      // Keys are not scored where all chunks fit into the selection.
      const bool chooses = layer.ratio == 4 && visible > top_k_;
      bytes += (chooses ? top_k_ : visible) * layer.chunks.rows.row_bytes;
      if (chooses) bytes += visible * layer.index.rows.row_bytes;
    }
    return bytes;
  }

  Status fill(std::int32_t sequence, std::int64_t n_tokens, std::uint64_t seed) noexcept override {
    try {
      RandomState random(compute_, seed);
      for (const Layer& layer : layers_) {
        EBB_TRY(
            random.fill(layer.ring, sequence, layer.ring.n_rows, config_.d_head, config_.n_rot));
        if (layer.ratio == 0) continue;
        const std::int64_t n_chunks = n_tokens / layer.ratio;
        EBB_TRY(random.fill(layer.chunks.rows, sequence, n_chunks, config_.d_head, config_.n_rot));
        EBB_TRY(layer.chunks.fill(random, sequence));
        if (layer.ratio != 4) continue;
        EBB_TRY(random.fill(layer.index.rows, sequence, n_chunks, config_.d_index, 0));
        EBB_TRY(layer.index.fill(random, sequence));
      }
      return ok_status();
    } catch (const std::bad_alloc&) {
      return make_error(Errc::out_of_memory, "attention_csa: no memory for random rows");
    }
  }

  // Rows stand where their positions say, in every sequence alike; slots are staging's own.
  Status copy(std::int32_t from, std::int32_t to, std::int64_t n_tokens) noexcept override {
    for (const Layer& layer : layers_) {
      const std::int64_t n_rows = std::min(n_tokens, layer.ring.n_rows);
      EBB_TRY(compute_.copy(row_at(layer.ring, to, 0), row_at(layer.ring, from, 0),
                            static_cast<std::uint64_t>(n_rows * layer.ring.row_bytes)));
      if (layer.ratio > 0) EBB_TRY(layer.chunks.copy(compute_, from, to, n_tokens));
      if (layer.ratio == 4) EBB_TRY(layer.index.copy(compute_, from, to, n_tokens));
    }
    return ok_status();
  }

 private:
  /// Radians per token of every rotated pair.
  std::vector<double> frequencies(const RopeScaling& scaling) const {
    std::vector<double> values(static_cast<std::size_t>(config_.n_rot / 2));
    rope_frequencies(scaling, config_.n_rot / 2, values.data());
    return values;
  }
  Result<Weight> matrix(std::int32_t layer, const char* suffix) {
    return compute_.import_matrix(*loader_.tensor(deepseek4::layer_tensor(layer, suffix)));
  }
  Result<const float*> floats(std::int32_t layer, const std::string& suffix) {
    return compute_.import_floats(*loader_.tensor(deepseek4::layer_tensor(layer, suffix)));
  }

  RowStore row_store(Arena& arena, const SessionShape& shape, std::int64_t n_rows, std::int32_t d,
                     std::int32_t n_rot, RowFormat format, const char* part) const {
    RowStore store;
    store.format = format;
    store.n_rows = n_rows;
    store.row_bytes = row_bytes(format, d, n_rot);
    store.sequence_bytes = n_rows * store.row_bytes;
    store.data = arena.take<std::byte>(store.sequence_bytes * shape.max_open, part);
    return store;
  }

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

  void carve_kept(Layer& layer, Arena& arena, std::int64_t n) const {
    const std::int64_t heads = config_.n_index_heads;
    layer.kept_hidden = arena.take<float>(n * config_.d_model, "kept vectors");
    if (!keeps_queries_) return;
    layer.kept_index_q = arena.take<float>(n * heads * config_.d_index, "kept vectors");
    layer.kept_index_weight = arena.take<float>(n * heads, "kept vectors");
  }
  Status plan_kept(Ops& ops, const StepView& step, const Layer& layer,
                   const AttentionIo& io) const {
    EBB_TRY(ops.keep_rows({step, io.x, config_.d_model, layer.kept_hidden}));
    if (!keeps_queries_) return ok_status();
    const std::int64_t heads = config_.n_index_heads;
    EBB_TRY(ops.keep_rows({step, index_q_, heads * config_.d_index, layer.kept_index_q}));
    return ops.keep_rows({step, index_weight_, heads, layer.kept_index_weight});
  }

  void carve_staged(Layer& layer, Arena& arena) const {
    RowStore& rows = layer.chunks.rows;
    const StagedRows staged = staging_->carve_layer(arena, layer.staged);
    rows.format = kv_format_;
    rows.row_bytes = staged.row_bytes;
    rows.data = staged.pool;
    rows.n_rows = staged.n_chunks;
    rows.sequence_bytes = staged.n_chunks * rows.row_bytes;
    layer.slots = {staged.slot_of, staged.slots, staged.n_slots * rows.row_bytes};
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
    const Angles& angles = is_csa ? csa_angles_ : hca_angles_;
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
                       query_angles_.cos_sin, config_.n_rot / 2, index_rounding_}));
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
  const RowFormat kv_format_;
  const RowFormat index_format_;
  RecordedSelections recorded_;
  const std::vector<double> window_frequency_;  // [n_rot / 2]
  const std::vector<double> chunk_frequency_;   // [n_rot / 2]
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
  double* window_frequency_memory_ = nullptr;
  double* chunk_frequency_memory_ = nullptr;
  Angles window_angles_;  // ratio-0 layers
  Angles query_angles_;   // layers with chunks, at the row's own position
  Angles csa_angles_;
  Angles hca_angles_;
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
