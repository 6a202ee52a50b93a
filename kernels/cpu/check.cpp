#include "kernels/cpu/check.h"

#include "kernels/row_format.h"

namespace ebb::cpu {

Result<std::int32_t> check_store(const char* op, const char* name, const RowStore& store,
                                 std::int32_t d, std::int32_t n_pairs, Rounding rounding) {
  EBB_TRY(check_pointers(op, {{name, store.data}}));
  EBB_TRY(check_range(op, "rows of a store", store.n_rows, 1, INT64_MAX));
  const bool hadamard = transforms(rounding);
  if (store.format == RowFormat::fp4 && d % 2 != 0) {
    return make_error(Errc::incompatible, "%s: %s holds fp4 rows of %d values, want an even number",
                      op, name, d);
  }
  std::int32_t n_rot = hadamard || store.format == RowFormat::fp4 ? 0 : 2 * n_pairs;
  if (store.format == RowFormat::fp8 && store.row_bytes != row_bytes(store.format, d, n_rot)) {
    n_rot = 0;
  }
  const std::int64_t expected = row_bytes(store.format, d, n_rot);
  if (store.row_bytes != expected) {
    return make_error(Errc::incompatible, "%s: %s has rows of %lld bytes, want %lld", op, name,
                      static_cast<long long>(store.row_bytes), static_cast<long long>(expected));
  }
  if (store.sequence_bytes < store.n_rows * store.row_bytes) {
    return make_error(Errc::invalid_argument,
                      "%s: %s has %lld bytes per sequence, want %lld or more", op, name,
                      static_cast<long long>(store.sequence_bytes),
                      static_cast<long long>(store.n_rows * store.row_bytes));
  }
  return n_rot;
}

Status check_slots(const char* op, const RowStore& store, const SlotStore& slots) {
  if (slots.slot_of == nullptr) return ok_status();
  EBB_TRY(check_pointers(op, {{"slots", slots.slots}}));
  return check_range(op, "bytes of a sequence's slots", slots.sequence_bytes, store.row_bytes,
                     INT64_MAX);
}

Status check_rounding(const char* op, Rounding rounding, std::int32_t d, std::int32_t n_pairs) {
  if (transforms(rounding) && (d & (d - 1)) != 0) {
    return make_error(Errc::incompatible,
                      "%s: a Hadamard transform of %d values, want a power of two", op, d);
  }
  return check_range(op, "n_pairs", n_pairs, 0, d / 2);
}

Status check_rope_table(const RopeTableArgs& args) {
  EBB_TRY(check_pointers("rope_table", {{"step.n_rows", args.step.n_rows},
                                        {"step.pos", args.step.pos},
                                        {"frequency", args.frequency},
                                        {"cos_sin", args.cos_sin}}));
  return check_range("rope_table", "n_pairs", args.n_pairs, 1, 1 << 16);
}

Status check_heads(const HeadsArgs& args, std::int64_t max_d) {
  EBB_TRY(check_pointers(
      "heads", {{"step.n_rows", args.step.n_rows}, {"x", args.x}, {"cos_sin", args.cos_sin}}));
  EBB_TRY(check_range("heads", "n_heads", args.n_heads, 1, 1 << 16));
  EBB_TRY(check_range("heads", "d", args.d, 1, max_d));
  return check_rounding("heads", args.rounding, args.d, args.n_pairs);
}

Result<std::int32_t> check_append(const AppendArgs& args, std::int64_t max_d) {
  EBB_TRY(check_step("append", args.step));
  EBB_TRY(check_pointers(
      "append", {{"kv", args.kv}, {"norm_weight", args.norm_weight}, {"cos_sin", args.cos_sin}}));
  EBB_TRY(check_range("append", "d", args.d, 1, max_d));
  EBB_TRY(check_rounding("append", args.rounding, args.d, args.n_pairs));
  EBB_TRY(
      check_range("append", "rows of the ring", args.ring.n_rows, args.step.max_rows, INT32_MAX));
  return check_store("append", "ring", args.ring, args.d, args.n_pairs, args.rounding);
}

Result<std::int32_t> check_compress(const CompressArgs& args, std::int64_t max_d) {
  EBB_TRY(check_step("compress", args.step));
  EBB_TRY(check_pointers("compress", {{"kv", args.kv},
                                      {"gate", args.gate},
                                      {"ape", args.ape},
                                      {"state_kv", args.state_kv},
                                      {"state_gate", args.state_gate},
                                      {"norm_weight", args.norm_weight},
                                      {"cos_sin", args.cos_sin}}));
  EBB_TRY(check_range("compress", "ratio", args.ratio, 1, 1 << 16));
  EBB_TRY(check_range("compress", "d", args.d, 1, max_d));
  EBB_TRY(check_range("compress", "overlap", args.overlap, 0, 1));
  EBB_TRY(check_rounding("compress", args.rounding, args.d, args.n_pairs));
  EBB_ASSIGN(const std::int32_t n_rot,
             check_store("compress", "rows", args.rows, args.d, args.n_pairs, args.rounding));
  EBB_TRY(check_slots("compress", args.rows, args.slots));
  return n_rot;
}

Result<std::int32_t> check_select(const SelectArgs& args) {
  EBB_TRY(check_step("select", args.step));
  EBB_TRY(check_pointers(
      "select",
      {{"q", args.q}, {"weight", args.weight}, {"ids", args.ids}, {"count", args.count}}));
  EBB_TRY(check_range("select", "d", args.d, 1, 1 << 16));
  EBB_TRY(check_range("select", "n_heads", args.n_heads, 1, 1 << 16));
  EBB_TRY(check_range("select", "ratio", args.ratio, 1, 1 << 16));
  EBB_TRY(check_range("select", "top_k", args.top_k, 1, 1 << 20));
  return check_store("select", "keys", args.keys, args.d, 0, Rounding::none);
}

Result<AttendStores> check_attend(const AttendArgs& args) {
  EBB_TRY(check_step("attend", args.step));
  EBB_TRY(check_pointers(
      "attend",
      {{"q", args.q}, {"sink", args.sink}, {"cos_sin", args.cos_sin}, {"out", args.out}}));
  EBB_TRY(check_range("attend", "d", args.d, 1, 1 << 16));
  EBB_TRY(check_range("attend", "n_heads", args.n_heads, 1, 1 << 16));
  EBB_TRY(check_range("attend", "n_pairs", args.n_pairs, 0, args.d / 2));
  EBB_TRY(check_range("attend", "window", args.window, 1, INT32_MAX));
  AttendStores stores;
  EBB_ASSIGN(stores.ring_rot,
             check_store("attend", "ring", args.ring, args.d, args.n_pairs, Rounding::none));
  EBB_TRY(check_range("attend", "rows of the ring", args.ring.n_rows,
                      static_cast<std::int64_t>(args.window) - 1 + args.step.max_rows, INT32_MAX));
  if (args.chunks.data == nullptr) return stores;
  EBB_ASSIGN(stores.chunk_rot,
             check_store("attend", "chunks", args.chunks, args.d, args.n_pairs, Rounding::none));
  EBB_TRY(check_slots("attend", args.chunks, args.slots));
  EBB_TRY(check_range("attend", "ratio", args.ratio, 1, 1 << 16));
  if (args.ids == nullptr) return stores;
  EBB_TRY(check_pointers("attend", {{"count", args.count}}));
  EBB_TRY(check_range("attend", "top_k", args.top_k, 1, INT32_MAX));
  return stores;
}

Status check_pick_rows(const PickRowsArgs& args) {
  EBB_TRY(check_pointers("pick_rows", {{"step.n_rows", args.step.n_rows},
                                       {"step.pos", args.step.pos},
                                       {"table", args.table},
                                       {"y", args.y}}));
  EBB_TRY(check_range("pick_rows", "n", args.n, 1, INT32_MAX));
  return check_range("pick_rows", "d", args.d, 1, INT32_MAX);
}

Status check_keep_rows(const KeepRowsArgs& args) {
  EBB_TRY(check_pointers("keep_rows", {{"step.n_rows", args.step.n_rows},
                                       {"step.keep", args.step.keep},
                                       {"x", args.x},
                                       {"y", args.y}}));
  return check_range("keep_rows", "d", args.d, 1, INT32_MAX);
}

Result<std::int32_t> check_score(const ScoreArgs& args) {
  EBB_TRY(check_pointers("score", {{"step.n_rows", args.step.n_rows},
                                   {"step.pos", args.step.pos},
                                   {"step.seq", args.step.seq},
                                   {"q", args.q},
                                   {"weight", args.weight},
                                   {"logits", args.logits}}));
  EBB_TRY(check_range("score", "d", args.d, 1, 1 << 16));
  EBB_TRY(check_range("score", "n_heads", args.n_heads, 1, 1 << 16));
  EBB_TRY(check_range("score", "ratio", args.ratio, 1, 1 << 16));
  EBB_TRY(check_range("score", "rows of the keys", args.keys.n_rows, 1, INT32_MAX));
  EBB_TRY(check_range("score", "stride", args.stride, args.keys.n_rows, INT32_MAX));
  return check_store("score", "keys", args.keys, args.d, 0, Rounding::none);
}

Status check_expert_shapes(const char* what, const ExpertWeights& weights, std::int64_t d,
                           std::int64_t f, std::int64_t n_mats) {
  const auto fits = [&](const Weight& weight, std::int64_t n_in, std::int64_t n_out) {
    return weight.n_in == n_in && weight.n_out == n_out && weight.n_mats == n_mats;
  };
  if (!fits(weights.gate, d, f) || !fits(weights.up, d, f) || !fits(weights.down, f, d)) {
    return make_error(Errc::invalid_argument,
                      "experts: %s are not %lld matrices of %lld x %lld (gate, up) and %lld x %lld",
                      what, static_cast<long long>(n_mats), static_cast<long long>(f),
                      static_cast<long long>(d), static_cast<long long>(d),
                      static_cast<long long>(f));
  }
  if (!(weights.clamp > 0)) {
    return make_error(Errc::invalid_argument, "experts: %s are clamped at %g; want more than 0",
                      what, static_cast<double>(weights.clamp));
  }
  return ok_status();
}

}  // namespace ebb::cpu
