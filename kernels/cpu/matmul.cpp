#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <memory>

#include "kernels/cpu/product.h"
#include "kernels/cpu/quantised_rows.h"

// One phase rounds the activations, if any part wants integers; the next multiplies. A task of the
// second is a block of weight rows of one part and one group times up to kMaxActRows activation
// rows; tasks are numbered part by part, and within a part by activation rows last, so that
// neighbouring tasks read the same weights.

namespace ebb::cpu {
namespace {

/// Rounds row r, group g of x into tiles row r * n_groups + g.
class QuantisePhase final : public Phase {
 public:
  QuantisePhase(const MatmulArgs& args, std::int64_t n_in, std::shared_ptr<QuantisedRows> rows)
      : n_rows_(args.n_rows),
        x_(args.x),
        n_groups_(args.n_groups),
        n_in_(n_in),
        rows_(std::move(rows)) {}

  std::int64_t n_tasks() const noexcept override {
    return (units() + units_per_task() - 1) / units_per_task();
  }
  void run(std::int64_t task, std::byte*) const noexcept override {
    const std::int64_t end = std::min(units(), (task + 1) * units_per_task());
    for (std::int64_t unit = task * units_per_task(); unit < end; ++unit) {
      quantise(x_ + unit * n_in_, n_in_, rows_->row(unit));
    }
  }
  const char* name() const noexcept override { return "matmul.quantise"; }

 private:
  std::int64_t units() const { return std::int64_t{*n_rows_} * n_groups_; }
  std::int64_t units_per_task() const { return std::max<std::int64_t>(1, 8192 / n_in_); }

  const std::int32_t* n_rows_;
  const float* x_;
  std::int64_t n_groups_;
  std::int64_t n_in_;
  std::shared_ptr<QuantisedRows> rows_;
};

class MatmulPhase final : public Phase {
 public:
  MatmulPhase(const MatmulArgs& args, Precision precision, std::shared_ptr<QuantisedRows> rows)
      : args_(args), rows_(std::move(rows)) {
    for (std::int32_t p = 0; p < args.n_parts; ++p) {
      weights_[static_cast<std::size_t>(p)] =
          ProductWeight(args.parts[static_cast<std::size_t>(p)].weight, precision);
    }
  }

  std::int64_t n_tasks() const noexcept override {
    std::int64_t n = 0;
    for (std::int32_t p = 0; p < args_.n_parts; ++p) n += cut(p).n_tasks(args_.n_groups);
    return n;
  }

  void run(std::int64_t task, std::byte* scratch) const noexcept override {
    std::int32_t p = 0;
    Cut cut = this->cut(0);
    while (task >= cut.n_tasks(args_.n_groups)) {
      task -= cut.n_tasks(args_.n_groups);
      cut = this->cut(++p);
    }
    const std::int64_t block = task % cut.n_blocks;
    const std::int64_t group = task / cut.n_blocks % args_.n_groups;
    const std::int64_t acts_block = task / cut.n_blocks / args_.n_groups;
    multiply(p, cut, group, block, acts_block, scratch);
  }

  std::size_t scratch_bytes() const noexcept override { return product_scratch_bytes(); }
  const char* name() const noexcept override { return "matmul"; }

 private:
  /// How one part is cut into tasks for the current number of rows.
  struct Cut {
    std::int64_t group_rows = 0;  ///< weight rows per group
    std::int64_t block_rows = 0;  ///< weight rows per task
    std::int64_t n_blocks = 0;    ///< per group
    std::int64_t n_acts = 0;      ///< blocks of activation rows

    std::int64_t n_tasks(std::int64_t n_groups) const { return n_groups * n_blocks * n_acts; }
  };

  Cut cut(std::int32_t p) const {
    const ProductWeight& weight = weights_[static_cast<std::size_t>(p)];
    const std::int32_t n_rows = *args_.n_rows;
    Cut cut;
    cut.group_rows = weight.n_out / args_.n_groups;
    cut.block_rows = rows_per_task(weight.n_in, std::min(n_rows, kMaxActRows));
    cut.n_blocks = (cut.group_rows + cut.block_rows - 1) / cut.block_rows;
    cut.n_acts = (n_rows + kMaxActRows - 1) / kMaxActRows;
    return cut;
  }

  void multiply(std::int32_t p, const Cut& cut, std::int64_t group, std::int64_t block,
                std::int64_t acts_block, std::byte* scratch) const {
    const ProductWeight& weight = weights_[static_cast<std::size_t>(p)];
    float* const out = args_.parts[static_cast<std::size_t>(p)].y;
    const std::int64_t in_group = block * cut.block_rows;
    const std::int64_t n_rows = std::min(cut.block_rows, cut.group_rows - in_group);
    const std::int64_t first = group * cut.group_rows + in_group;
    const std::int64_t act = acts_block * kMaxActRows;
    ActRows acts;
    acts.n = static_cast<std::int32_t>(std::min<std::int64_t>(kMaxActRows, *args_.n_rows - act));
    float* y[kMaxActRows];
    for (std::int32_t a = 0; a < acts.n; ++a) {
      const std::int64_t unit = (act + a) * args_.n_groups + group;
      acts.x[a] = args_.x + unit * weight.n_in;
      if (weight.integer) acts.tiles[a] = rows_->row(unit);
      y[a] = out + (act + a) * weight.n_out + first;
    }
    product(weight, 0, first, n_rows, acts, y, scratch);
  }

  MatmulArgs args_;
  std::array<ProductWeight, std::tuple_size_v<decltype(MatmulArgs::parts)>> weights_;
  std::shared_ptr<QuantisedRows> rows_;  ///< nullptr if no part multiplies integers
};

Status check(const MatmulArgs& args) {
  const auto max_parts = static_cast<std::int32_t>(args.parts.size());
  if (args.n_parts < 1 || args.n_parts > max_parts) {
    return make_error(Errc::invalid_argument, "matmul: %d parts; want 1..%d", args.n_parts,
                      max_parts);
  }
  if (args.n_rows == nullptr || args.x == nullptr || args.max_rows < 1 || args.n_groups < 1) {
    return make_error(Errc::invalid_argument,
                      "matmul: want n_rows and x, and at least one row and group (%d, %d)",
                      args.max_rows, args.n_groups);
  }
  for (std::int32_t p = 0; p < args.n_parts; ++p) {
    const MatmulPart& part = args.parts[static_cast<std::size_t>(p)];
    EBB_TRY(check_weight("matmul", "a weight", part.weight));
    if (part.y == nullptr) return make_error(Errc::invalid_argument, "matmul: no place for y");
    if (part.weight.n_out % args.n_groups != 0 || part.weight.n_in != args.parts[0].weight.n_in) {
      return make_error(Errc::invalid_argument,
                        "matmul: a weight of %lld x %lld among parts of %lld inputs and %d groups",
                        static_cast<long long>(part.weight.n_out),
                        static_cast<long long>(part.weight.n_in),
                        static_cast<long long>(args.parts[0].weight.n_in), args.n_groups);
    }
  }
  return ok_status();
}

}  // namespace

Status add_matmul(PhaseList& phases, const MatmulArgs& args, Precision precision,
                  std::shared_ptr<ActRoom> room) {
  EBB_TRY(check(args));
  if (args.exact) precision = Precision::exact;
  const std::int64_t n_in = args.parts[0].weight.n_in;
  std::shared_ptr<QuantisedRows> rows;
  for (std::int32_t p = 0; p < args.n_parts && rows == nullptr; ++p) {
    if (ProductWeight(args.parts[static_cast<std::size_t>(p)].weight, precision).integer) {
      if (room == nullptr) room = std::make_shared<ActRoom>();
      rows = std::make_shared<QuantisedRows>(room, 0, std::int64_t{args.max_rows} * args.n_groups,
                                             n_in);
    }
  }
  if (rows != nullptr) phases.push_back(std::make_unique<QuantisePhase>(args, n_in, rows));
  phases.push_back(std::make_unique<MatmulPhase>(args, precision, std::move(rows)));
  return ok_status();
}

}  // namespace ebb::cpu
