#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/api/result.h"
#include "core/api/session.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/scoring.h"

// Checks of op arguments, done once when a plan is recorded.

namespace ebb::cpu {

struct NamedPointer {
  const char* name;
  const void* value;
};

/// invalid_argument naming the first pointer that is null.
inline Status check_pointers(const char* op, std::initializer_list<NamedPointer> pointers) {
  for (const NamedPointer& pointer : pointers) {
    if (pointer.value == nullptr) {
      return make_error(Errc::invalid_argument, "%s: %s is null", op, pointer.name);
    }
  }
  return ok_status();
}

/// invalid_argument unless low <= value <= high.
inline Status check_range(const char* op, const char* name, std::int64_t value, std::int64_t low,
                          std::int64_t high) {
  if (value >= low && value <= high) return ok_status();
  return make_error(Errc::invalid_argument, "%s: %s = %lld, want %lld..%lld", op, name,
                    static_cast<long long>(value), static_cast<long long>(low),
                    static_cast<long long>(high));
}

/// The parts of a step that every op on rows reads.
inline Status check_step(const char* op, const StepView& step) {
  EBB_TRY(check_pointers(op, {{"step.n_rows", step.n_rows},
                              {"step.pos", step.pos},
                              {"step.seq", step.seq},
                              {"step.run_start", step.run_start}}));
  return check_range(op, "step.max_rows", step.max_rows, 1, INT32_MAX);
}

/// Rotating dims of the rows of a store of vectors [d] with n_pairs rotating pairs, in the sense of
/// row_format.h: 0 if the store holds index keys. Only the two fp8 layouts differ, and their sizes
/// tell them apart. Errors: a format, width or row size that does not fit.
Result<std::int32_t> check_store(const char* op, const char* name, const RowStore& store,
                                 std::int32_t d, std::int32_t n_pairs, Rounding rounding);

/// Slots, if there are any, hold rows of `store`.
Status check_slots(const char* op, const RowStore& store, const SlotStore& slots);

/// Rounding must suit the width: a Hadamard transform wants a power of two.
Status check_rounding(const char* op, Rounding rounding, std::int32_t d, std::int32_t n_pairs);

/// What both backends want of the ops of attention.h. max_d: the widest vectors that the backend
/// takes; of ops without it a backend may take less than is allowed here. Results are check_store's
/// n_rot of the stores.
Status check_rope_table(const RopeTableArgs& args);
Status check_heads(const HeadsArgs& args, std::int64_t max_d);
Result<std::int32_t> check_append(const AppendArgs& args, std::int64_t max_d);
Result<std::int32_t> check_compress(const CompressArgs& args, std::int64_t max_d);
Result<std::int32_t> check_select(const SelectArgs& args);

struct AttendStores {
  std::int32_t ring_rot = 0;
  std::int32_t chunk_rot = 0;  ///< 0 without chunks
};
Result<AttendStores> check_attend(const AttendArgs& args);

/// What both backends want of the ops of scoring.h; check_score gives check_store's n_rot of the
/// keys.
Status check_keep_rows(const KeepRowsArgs& args);
Status check_pick_rows(const PickRowsArgs& args);
Result<std::int32_t> check_score(const ScoreArgs& args);

/// gate and up are n_mats matrices [f, d], down [d, f], and the clamp is positive. `what` names
/// them.
Status check_expert_shapes(const char* what, const ExpertWeights& weights, std::int64_t d,
                           std::int64_t f, std::int64_t n_mats);

}  // namespace ebb::cpu
