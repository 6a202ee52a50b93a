#include "kernels/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/cpu/check.h"
#include "kernels/cpu/expert_groups.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/quantised_rows.h"

// prepare   sorts (row, slot) pairs by expert and rounds x
// gate_up   per piece of one expert's rows and block of f: hidden = gated(gate x, up x)
// quantise  rounds hidden
// down      per piece and block of d: partial = down hidden
// sum       per row: y = sum over slots of weight * partial, in the order of ids, then shared
//
// A step of one row does down and sum in one phase, by blocks of d over all slots: no barrier, and
// tasks of a useful size. The arithmetic is the same, so the bits are.

namespace ebb::cpu {
namespace {

struct ExpertProducts {
  ExpertProducts(const ExpertWeights& weights, Precision precision)
      : gate(weights.gate, precision),
        up(weights.up, precision),
        down(weights.down, precision),
        clamp(weights.clamp) {}

  ProductWeight gate;
  ProductWeight up;
  ProductWeight down;
  float clamp;
};

/// What the phases of one op share.
struct Shared {
  Shared(const ExpertsArgs& a, Precision precision, std::shared_ptr<ActRoom> room)
      : args(a),
        routed(a.routed, precision),
        shared(a.shared, precision),
        n_experts(static_cast<std::int32_t>(a.routed.gate.n_mats)),
        n_slots(a.n_used + 1),
        d(routed.gate.n_in),
        f(routed.gate.n_out),
        groups(a.step.max_rows, a.n_used, n_experts) {
    if (room == nullptr) room = std::make_shared<ActRoom>();
    if (routed.gate.integer || routed.up.integer || shared.gate.integer || shared.up.integer) {
      x = std::make_unique<QuantisedRows>(room, 0, a.step.max_rows, d);
    }
    if (routed.down.integer || shared.down.integer) {
      hidden = std::make_unique<QuantisedRows>(room, x ? x->end() : 0,
                                               std::int64_t{a.step.max_rows} * n_slots, f);
    }
  }

  const ExpertProducts& products(std::int32_t expert) const {
    return expert == n_experts ? shared : routed;
  }
  std::int64_t matrix(std::int32_t expert) const { return expert == n_experts ? 0 : expert; }
  std::int32_t n_rows() const { return *args.step.n_rows; }
  /// The expert of a slot; -1 for an id that names none.
  std::int32_t expert_of(std::int64_t row, std::int32_t slot) const {
    if (slot == args.n_used) return n_experts;
    const std::int32_t id = args.ids[row * args.n_used + slot];
    return id >= 0 && id < n_experts ? id : -1;
  }

  ExpertsArgs args;
  ExpertProducts routed;
  ExpertProducts shared;
  std::int32_t n_experts;
  std::int32_t n_slots;
  std::int64_t d;
  std::int64_t f;
  ExpertGroups groups;
  std::unique_ptr<QuantisedRows> x;       ///< nullptr if no gate or up multiplies integers
  std::unique_ptr<QuantisedRows> hidden;  ///< nullptr if no down does
};

class ExpertsPhase : public Phase {
 public:
  explicit ExpertsPhase(std::shared_ptr<Shared> shared) : s_(std::move(shared)) {}

 protected:
  std::shared_ptr<Shared> s_;
};

class PreparePhase final : public ExpertsPhase {
 public:
  using ExpertsPhase::ExpertsPhase;

  std::int64_t n_tasks() const noexcept override {
    const std::int64_t n_rows = s_->n_rows();
    if (n_rows == 0 || s_->x == nullptr) return 1;
    return (n_rows + rows_per_task() - 1) / rows_per_task();
  }

  void run(std::int64_t task, std::byte*) const noexcept override {
    if (task == 0) s_->groups.fill(s_->n_rows(), s_->args.ids, s_->d, s_->f);
    if (s_->x == nullptr) return;
    const std::int64_t end = std::min<std::int64_t>(s_->n_rows(), (task + 1) * rows_per_task());
    for (std::int64_t row = task * rows_per_task(); row < end; ++row) {
      quantise(s_->args.x + row * s_->d, s_->d, s_->x->row(row));
    }
  }

  const char* name() const noexcept override { return "experts.prepare"; }

 private:
  std::int64_t rows_per_task() const { return std::max<std::int64_t>(1, 8192 / s_->d); }
};

class GateUpPhase final : public ExpertsPhase {
 public:
  explicit GateUpPhase(std::shared_ptr<Shared> shared) : ExpertsPhase(std::move(shared)) {
    const std::int32_t most = std::min(s_->args.step.max_rows * s_->n_slots, kMaxActRows);
    for (std::int32_t n = 1; n <= most; ++n) {
      up_values_ = std::max(up_values_, std::min(rows_per_task(s_->d, n), s_->f) * n);
    }
  }

  std::int64_t n_tasks() const noexcept override {
    const auto pieces = s_->groups.pieces();
    return pieces.empty() ? 0 : pieces.back().gate_tasks_end;
  }

  void run(std::int64_t task, std::byte* scratch) const noexcept override {
    const auto pieces = s_->groups.pieces();
    const auto piece =
        std::upper_bound(pieces.begin(), pieces.end(), task,
                         [](std::int64_t t, const ExpertPiece& p) { return t < p.gate_tasks_end; });
    const std::int64_t before = piece == pieces.begin() ? 0 : (piece - 1)->gate_tasks_end;
    const std::int64_t first = (task - before) * piece->gate_block;
    const std::int64_t n = std::min(piece->gate_block, s_->f - first);
    const ExpertProducts& products = s_->products(piece->expert);
    const std::int64_t matrix = s_->matrix(piece->expert);

    float* const up_values = reinterpret_cast<float*>(scratch + product_scratch_bytes());
    ActRows acts;
    acts.n = piece->n;
    float* gate[kMaxActRows];
    float* up[kMaxActRows];
    for (std::int32_t a = 0; a < acts.n; ++a) {
      const std::int64_t entry = s_->groups.entries()[static_cast<std::size_t>(piece->first + a)];
      const std::int64_t row = entry / s_->n_slots;
      acts.x[a] = s_->args.x + row * s_->d;
      if (s_->x != nullptr) acts.tiles[a] = s_->x->row(row);
      gate[a] = s_->args.hidden + entry * s_->f + first;
      up[a] = up_values + a * n;
    }
    product(products.gate, matrix, first, n, acts, gate, scratch);
    product(products.up, matrix, first, n, acts, up, scratch);
    for (std::int32_t a = 0; a < acts.n; ++a) gated(gate[a], up[a], products.clamp, n, gate[a]);
  }

  std::size_t scratch_bytes() const noexcept override {
    return product_scratch_bytes() + static_cast<std::size_t>(up_values_) * sizeof(float);
  }
  const char* name() const noexcept override { return "experts.gate_up"; }

 private:
  std::int64_t up_values_ = 0;  ///< most values of `up` that one task makes
};

class QuantiseHiddenPhase final : public ExpertsPhase {
 public:
  using ExpertsPhase::ExpertsPhase;

  std::int64_t n_tasks() const noexcept override {
    return (n_entries() + entries_per_task() - 1) / entries_per_task();
  }

  void run(std::int64_t task, std::byte*) const noexcept override {
    const std::int64_t end = std::min(n_entries(), (task + 1) * entries_per_task());
    for (std::int64_t i = task * entries_per_task(); i < end; ++i) {
      const std::int64_t entry = s_->groups.entries()[static_cast<std::size_t>(i)];
      quantise(s_->args.hidden + entry * s_->f, s_->f, s_->hidden->row(entry));
    }
  }

  const char* name() const noexcept override { return "experts.quantise"; }

 private:
  std::int64_t n_entries() const { return static_cast<std::int64_t>(s_->groups.entries().size()); }
  std::int64_t entries_per_task() const { return std::max<std::int64_t>(1, 8192 / s_->f); }
};

/// y[0..n) = sum over slots of one row, from column `first` on.
void sum_slots(const Shared& s, std::int64_t row, std::int64_t first, std::int64_t n) {
  float* const y = s.args.y + row * s.d + first;
  const float* const partial = s.args.partial + row * s.n_slots * s.d + first;
  const float* const weights = s.args.weights + row * s.args.n_used;
  std::fill_n(y, n, 0.0f);
  for (std::int32_t slot = 0; slot < s.n_slots; ++slot) {
    if (s.expert_of(row, slot) < 0) {
      std::fill_n(y, n, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    const float weight = slot == s.args.n_used ? 1.0f : weights[slot];
    const float* const p = partial + slot * s.d;
    for (std::int64_t i = 0; i < n; ++i) y[i] += weight * p[i];
  }
}

class DownPhase final : public ExpertsPhase {
 public:
  using ExpertsPhase::ExpertsPhase;

  std::int64_t n_tasks() const noexcept override {
    if (s_->n_rows() == 1) return (s_->d + single_block() - 1) / single_block();
    const auto pieces = s_->groups.pieces();
    return pieces.empty() ? 0 : pieces.back().down_tasks_end;
  }

  void run(std::int64_t task, std::byte* scratch) const noexcept override {
    if (s_->n_rows() == 1) return run_single(task, scratch);
    const auto pieces = s_->groups.pieces();
    const auto piece =
        std::upper_bound(pieces.begin(), pieces.end(), task,
                         [](std::int64_t t, const ExpertPiece& p) { return t < p.down_tasks_end; });
    const std::int64_t before = piece == pieces.begin() ? 0 : (piece - 1)->down_tasks_end;
    const std::int64_t first = (task - before) * piece->down_block;
    const std::int64_t n = std::min(piece->down_block, s_->d - first);
    ActRows acts;
    acts.n = piece->n;
    float* y[kMaxActRows];
    for (std::int32_t a = 0; a < acts.n; ++a) {
      add_entry(s_->groups.entries()[static_cast<std::size_t>(piece->first + a)], first, a, acts,
                y);
    }
    product(s_->products(piece->expert).down, s_->matrix(piece->expert), first, n, acts, y,
            scratch);
  }

  std::size_t scratch_bytes() const noexcept override { return product_scratch_bytes(); }
  const char* name() const noexcept override { return "experts.down"; }

 private:
  /// Rows of d per task when all slots of the only row are done together.
  std::int64_t single_block() const {
    const std::int64_t rows = rows_per_task(s_->f, 1) / s_->n_slots;
    return std::max<std::int64_t>(16, rows / 16 * 16);
  }

  void add_entry(std::int64_t entry, std::int64_t first, std::int32_t a, ActRows& acts,
                 float** y) const {
    acts.x[a] = s_->args.hidden + entry * s_->f;
    if (s_->hidden != nullptr) acts.tiles[a] = s_->hidden->row(entry);
    y[a] = s_->args.partial + entry * s_->d + first;
  }

  void run_single(std::int64_t task, std::byte* scratch) const {
    const std::int64_t first = task * single_block();
    const std::int64_t n = std::min(single_block(), s_->d - first);
    for (std::int32_t slot = 0; slot < s_->n_slots; ++slot) {
      const std::int32_t expert = s_->expert_of(0, slot);
      if (expert < 0) continue;
      ActRows acts;
      acts.n = 1;
      float* y[1];
      add_entry(slot, first, 0, acts, y);
      product(s_->products(expert).down, s_->matrix(expert), first, n, acts, y, scratch);
    }
    sum_slots(*s_, 0, first, n);
  }
};

class SumPhase final : public ExpertsPhase {
 public:
  using ExpertsPhase::ExpertsPhase;

  std::int64_t n_tasks() const noexcept override {
    const std::int32_t n_rows = s_->n_rows();
    return n_rows == 1 ? 0 : n_rows;
  }
  void run(std::int64_t task, std::byte*) const noexcept override {
    sum_slots(*s_, task, 0, s_->d);
  }
  const char* name() const noexcept override { return "experts.sum"; }
};

Status check(const char* what, const ExpertWeights& weights, std::int64_t d, std::int64_t f,
             std::int64_t n_mats) {
  EBB_TRY(check_weight("experts", what, weights.gate));
  EBB_TRY(check_weight("experts", what, weights.up));
  EBB_TRY(check_weight("experts", what, weights.down));
  return check_expert_shapes(what, weights, d, f, n_mats);
}

Status check(const ExpertsArgs& args) {
  const std::int64_t d = args.routed.gate.n_in;
  const std::int64_t f = args.routed.gate.n_out;
  EBB_TRY(check("routed weights", args.routed, d, f, args.routed.gate.n_mats));
  EBB_TRY(check("shared weights", args.shared, d, f, 1));
  if (args.n_used < 1 || args.step.max_rows < 1 || args.step.n_rows == nullptr) {
    return make_error(Errc::invalid_argument,
                      "experts: want n_rows, and at least one row and used expert (%d, %d)",
                      args.step.max_rows, args.n_used);
  }
  if (args.x == nullptr || args.ids == nullptr || args.weights == nullptr ||
      args.hidden == nullptr || args.partial == nullptr || args.y == nullptr) {
    return make_error(Errc::invalid_argument,
                      "experts: x, ids, weights, hidden, partial and y must not be null");
  }
  return ok_status();
}

}  // namespace

Status add_experts(PhaseList& phases, const ExpertsArgs& args, Precision precision,
                   std::shared_ptr<ActRoom> room) {
  EBB_TRY(check(args));
  const auto shared = std::make_shared<Shared>(args, precision, std::move(room));
  phases.push_back(std::make_unique<PreparePhase>(shared));
  phases.push_back(std::make_unique<GateUpPhase>(shared));
  if (shared->hidden != nullptr) {
    phases.push_back(std::make_unique<QuantiseHiddenPhase>(shared));
  }
  phases.push_back(std::make_unique<DownPhase>(shared));
  phases.push_back(std::make_unique<SumPhase>(shared));
  return ok_status();
}

}  // namespace ebb::cpu
