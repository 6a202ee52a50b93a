// attention_csa, loaded from beside this module, with a copy of every layer's output.

#include <memory>

#include "core/api/host.h"
#include "core/api/loader.h"
#include "kernels/ops/ops.h"
#include "modules/deepseek4/config.h"
#include "tests/staging/attention_tap/attention_tap.h"
#include "tests/staging/tapped.h"

namespace ebb::test {
namespace {

class Tap final : public AttentionTap {
 public:
  static Result<std::unique_ptr<Tap>> create(Host& host, Options& options) {
    EBB_ASSIGN(Tapped<Attention> inner, make_tapped<Attention>(EBB_TAPPED, host, options));
    auto tap = std::make_unique<Tap>(std::move(inner));
    EBB_ASSIGN(const deepseek4::Config config, deepseek4::read_config(*host.loader()));
    tap->width = std::int64_t{config.n_heads} * config.d_head;
    tap->n_layers = config.n_layers;
    return tap;
  }
  explicit Tap(Tapped<Attention> inner) : inner_(std::move(inner)) {}

  void carve(Arena& arena, const SessionShape& shape) noexcept override {
    max_rows = shape.max_rows;
    outputs = copies_ = arena.take<float>(n_layers * max_rows * width, "tap");
    inner_->carve(arena, shape);
  }
  Status plan_layer(Ops& ops, const StepView& step, std::int32_t layer,
                    const AttentionIo& io) noexcept override {
    EBB_TRY(inner_->plan_layer(ops, step, layer, io));
    return ops.copy({copies_ + layer * max_rows * width, io.out,
                     static_cast<std::uint64_t>(step.max_rows * width) * sizeof(float)});
  }

  StagedShape staged(const SessionShape& shape) const noexcept override {
    return inner_->staged(shape);
  }
  Status keep(std::span<const std::int32_t> layers, bool queries) noexcept override {
    return inner_->keep(layers, queries);
  }
  Status scored_layer(std::int32_t layer, ScoredLayer& out) const noexcept override {
    return inner_->scored_layer(layer, out);
  }
  Status load(bool qat_simulation) noexcept override { return inner_->load(qat_simulation); }
  Status plan_step(Ops& ops, const StepView& step) noexcept override {
    return inner_->plan_step(ops, step);
  }
  std::int64_t bytes_read(std::int64_t pos) const noexcept override {
    return inner_->bytes_read(pos);
  }
  Status fill(std::int32_t sequence, std::int64_t n_tokens, std::uint64_t seed) noexcept override {
    return inner_->fill(sequence, n_tokens, seed);
  }
  Status copy(std::int32_t from, std::int32_t to, std::int64_t n_tokens) noexcept override {
    return inner_->copy(from, to, n_tokens);
  }

 private:
  const Tapped<Attention> inner_;
  float* copies_ = nullptr;
};

}  // namespace
}  // namespace ebb::test

EBB_MODULE(ebb::Attention, ebb::test::Tap, "attention_tap", EBB_VERSION);
