#include "modules/compute_cuda/recorder.h"

#include <algorithm>
#include <new>

#include "kernels/cpu/check.h"
#include "kernels/cuda/attend.h"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/experts_row.h"
#include "kernels/cuda/hyper.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/planes.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scoring.h"
#include "kernels/cuda/select.h"
#include "kernels/cuda/staging.h"
#include "kernels/hyper.h"

namespace ebb::cuda {
namespace {

using cpu::check_pointers;
using cpu::check_range;
using cpu::check_rounding;
using cpu::check_step;
using cpu::check_store;

template <class Record>
Status guarded(Record record) noexcept {
  try {
    return record();
  } catch (const std::bad_alloc&) {
    return make_error(Errc::out_of_memory, "compute_cuda: no host memory for a plan");
  }
}

constexpr std::int64_t kMaxGridRows = 65535;  // blocks along y and z
constexpr std::int32_t kFewRows = 16;

Status check_rows(const char* op, std::int64_t max_rows) {
  return check_range(op, "max_rows", max_rows, 1, kMaxGridRows);
}

Status check_hyper(const char* op, const HyperWeights& w, std::int32_t n_streams, std::int64_t d,
                   std::int64_t n_mix) {
  EBB_TRY(check_range(op, "n_streams", n_streams, 1, kMaxStreams));
  EBB_TRY(check_range(op, "d", d, 1, INT32_MAX / kMaxStreams));
  EBB_TRY(check_pointers(op, {{"fn", w.fn.data}, {"base", w.base}, {"scale", w.scale}}));
  EBB_TRY(check_weight(op, "fn", w.fn));
  if (w.fn.type != DType::f32 && w.fn.type != DType::f16 && w.fn.type != DType::bf16) {
    return make_error(Errc::incompatible, "compute_cuda: %s: fn is %s, want F32, F16 or BF16", op,
                      dtype_traits(w.fn.type)->name);
  }
  if (d % 8 != 0) {
    return make_error(Errc::incompatible, "compute_cuda: %s: d = %lld, want a multiple of 8", op,
                      static_cast<long long>(d));
  }
  EBB_TRY(check_range(op, "columns of fn", w.fn.n_in, n_streams * d, n_streams * d));
  return check_range(op, "rows of fn", w.fn.n_out, n_mix, n_mix);
}

Status check_experts(const char* what, const ExpertWeights& weights, std::int64_t d, std::int64_t f,
                     std::int64_t n_mats) {
  EBB_TRY(check_weight("experts", what, weights.gate));
  EBB_TRY(check_weight("experts", what, weights.up));
  EBB_TRY(check_weight("experts", what, weights.down));
  return cpu::check_expert_shapes(what, weights, d, f, n_mats);
}

bool same_streams(const HcPostArgs& post, const HcPreArgs& pre) {
  return post.streams == pre.streams && post.n_streams == pre.n_streams && post.d == pre.d &&
         post.step.n_rows == pre.step.n_rows && post.step.max_rows == pre.step.max_rows;
}

}  // namespace

Status check_weight(const char* op, const char* what, const Weight& weight) {
  const DTypeTraits* const traits = dtype_traits(weight.type);
  if (weight.data == nullptr || weight.n_in < 1 || weight.n_out < 1 || weight.n_mats < 1) {
    return make_error(Errc::invalid_argument, "%s: %s is empty", op, what);
  }
  if (traits == nullptr || block_fields(weight.type).n_fields == 0) {
    return make_error(Errc::incompatible, "compute_cuda: %s: %s is %s, want %s", op, what,
                      traits == nullptr ? "of an unknown type" : traits->name, kUsableTypes);
  }
  // 16 bytes are read at a time.
  const std::int64_t unit = std::max(traits->block_values, 16 / traits->block_bytes);
  if (weight.n_in % unit != 0 || weight.n_in > INT32_MAX || weight.n_out > INT32_MAX) {
    return make_error(
        Errc::incompatible, "compute_cuda: %s: %s is %s of %lld inputs, want a multiple of %lld",
        op, what, traits->name, static_cast<long long>(weight.n_in), static_cast<long long>(unit));
  }
  return ok_status();
}

Result<RecordedPlan> Recorder::take() noexcept {
  EBB_TRY(guarded([&] {
    flush();
    return ok_status();
  }));
  return std::move(plan_);
}

Status Recorder::embed(const EmbedArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(cuda::check_weight("embed", "the table", args.table));
    EBB_TRY(check_pointers("embed", {{"step.n_rows", args.step.n_rows},
                                     {"step.token", args.step.token},
                                     {"streams", args.streams}}));
    EBB_TRY(check_range("embed", "n_streams", args.n_streams, 1, 64));
    EBB_TRY(check_rows("embed", args.step.max_rows));
    return add("embed", 0, [args](const Launch& l) { return cuda::embed(l, args); });
  });
}

Status Recorder::matmul(const MatmulArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_range("matmul", "n_parts", args.n_parts, 1,
                        static_cast<std::int64_t>(args.parts.size())));
    EBB_TRY(check_pointers("matmul", {{"n_rows", args.n_rows}, {"x", args.x}}));
    EBB_TRY(check_range("matmul", "n_groups", args.n_groups, 1, 1 << 16));
    EBB_TRY(check_rows("matmul", args.max_rows));
    for (std::int32_t p = 0; p < args.n_parts; ++p) {
      const MatmulPart& part = args.parts[static_cast<std::size_t>(p)];
      EBB_TRY(cuda::check_weight("matmul", "a weight", part.weight));
      EBB_TRY(check_pointers("matmul", {{"y", part.y}}));
      if (part.weight.n_out % args.n_groups != 0 || part.weight.n_in != args.parts[0].weight.n_in) {
        return make_error(
            Errc::invalid_argument,
            "matmul: a weight of %lld x %lld among parts of %lld inputs and %d groups",
            static_cast<long long>(part.weight.n_out), static_cast<long long>(part.weight.n_in),
            static_cast<long long>(args.parts[0].weight.n_in), args.n_groups);
      }
    }
    std::vector<const void*> buffers{args.x};
    for (std::int32_t p = 0; p < args.n_parts; ++p) {
      buffers.push_back(args.parts[static_cast<std::size_t>(p)].y);
    }
    if (join(args, buffers)) return ok_status();
    const auto second = std::make_shared<std::optional<MatmulArgs>>();
    EBB_TRY(add_before_held("matmul", matmul_workspace(args, precision_), buffers,
                            [args, second, precision = precision_](const Launch& l) {
                              return *second ? cuda::matmul_pair(l, args, **second, precision)
                                             : cuda::matmul(l, args, precision);
                            }));
    products_.push_back({args, second, {}});
    return ok_status();
  });
}

Status Recorder::rms_norm(const RmsNormArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_pointers(
        "rms_norm",
        {{"n_rows", args.n_rows}, {"x", args.x}, {"weight", args.weight}, {"y", args.y}}));
    EBB_TRY(check_range("rms_norm", "d", args.d, 1, INT32_MAX));
    EBB_TRY(check_rows("rms_norm", args.max_rows));
    return add_before_held("rms_norm", 0, {args.x, args.weight, args.y},
                           [args](const Launch& l) { return cuda::rms_norm(l, args); });
  });
}

Status Recorder::hc_pre(const HcPreArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_hyper("hc_pre", args.hyper, args.n_streams, args.d,
                        (2 + args.n_streams) * args.n_streams));
    EBB_TRY(check_range("hc_pre", "sinkhorn_iterations", args.hyper.sinkhorn_iterations, 1, 1000));
    EBB_TRY(check_pointers("hc_pre", {{"step.n_rows", args.step.n_rows},
                                      {"streams", args.streams},
                                      {"norm_weight", args.norm_weight},
                                      {"y", args.y},
                                      {"post", args.post},
                                      {"comb", args.comb}}));
    EBB_TRY(check_rows("hc_pre", args.step.max_rows));
    std::optional<HcPostArgs> post;
    if (post_ && same_streams(*post_, args)) std::swap(post, post_);
    const char* const name = post ? "hc_post+hc_pre" : "hc_pre";
    if (!clusters_ || !hc_fits_clusters(args)) {
      return add(
          name, hyper_workspace(args.step.max_rows, args.n_streams, args.d),
          [args, post](const Launch& l) { return cuda::hc_pre(l, args, post ? &*post : nullptr); });
    }
    std::optional<ExpertsArgs> sum;
    // With many rows the sum is better done apart.
    if (post && experts_ && experts_->args.y == post->o && args.step.max_rows <= kFewRows &&
        !experts_row_suits(experts_->args, largest_shared_) &&
        experts_->args.routed.gate.n_in == post->d &&
        experts_->args.step.n_rows == post->step.n_rows &&
        experts_->args.step.max_rows == post->step.max_rows) {
      *experts_->with_sum = false;
      sum = experts_->args;
    }
    return add(name, 0, [args, post, sum](const Launch& l) {
      return cuda::hc_pre_clusters(l, args, post ? &*post : nullptr, sum ? &*sum : nullptr);
    });
  });
}

Status Recorder::hc_post(const HcPostArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_range("hc_post", "n_streams", args.n_streams, 1, kMaxStreams));
    EBB_TRY(check_range("hc_post", "d", args.d, 1, INT32_MAX / kMaxStreams));
    EBB_TRY(check_pointers("hc_post", {{"step.n_rows", args.step.n_rows},
                                       {"o", args.o},
                                       {"post", args.post},
                                       {"comb", args.comb},
                                       {"streams", args.streams}}));
    EBB_TRY(check_rows("hc_post", args.step.max_rows));
    flush();
    post_ = args;
    return ok_status();
  });
}

Status Recorder::hc_head(const HcHeadArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_hyper("hc_head", args.hyper, args.n_streams, args.d, args.n_streams));
    EBB_TRY(check_pointers("hc_head", {{"step.n_out", args.step.n_out},
                                       {"step.out_row", args.step.out_row},
                                       {"streams", args.streams},
                                       {"norm_weight", args.norm_weight},
                                       {"y", args.y}}));
    EBB_TRY(check_rows("hc_head", args.step.max_out));
    return add("hc_head", hyper_workspace(args.step.max_out, args.n_streams, args.d),
               [args](const Launch& l) { return cuda::hc_head(l, args); });
  });
}

Status Recorder::argmax(const ArgmaxArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_pointers("argmax",
                           {{"n_rows", args.n_rows}, {"logits", args.logits}, {"ids", args.ids}}));
    EBB_TRY(check_range("argmax", "n", args.n, 1, INT32_MAX));
    EBB_TRY(check_rows("argmax", args.max_rows));
    return add("argmax", argmax_workspace(args),
               [args](const Launch& l) { return cuda::argmax(l, args); });
  });
}

Status Recorder::route(const RouteArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_pointers("route", {{"step.n_rows", args.step.n_rows},
                                     {"logits", args.logits},
                                     {"ids", args.ids},
                                     {"weights", args.weights}}));
    EBB_TRY(check_range("route", "n_experts", args.n_experts, 1, kMaxRouteExperts));
    EBB_TRY(
        check_range("route", "n_used", args.n_used, 1, std::min(args.n_experts, kMaxRouteUsed)));
    EBB_TRY(check_rows("route", args.step.max_rows));
    if (args.table != nullptr) {
      EBB_TRY(check_pointers("route", {{"step.token", args.step.token}}));
      if (args.bias != nullptr) {
        return make_error(Errc::invalid_argument,
                          "route: both a table and a bias are given, want one");
      }
    }
    EBB_TRY(add("route", 0, [args](const Launch& l) { return cuda::route(l, args); }));
    route_ = args;
    return ok_status();
  });
}

Status Recorder::experts(const ExpertsArgs& args) noexcept {
  return guarded([&]() -> Status {
    const std::int64_t d = args.routed.gate.n_in, f = args.routed.gate.n_out;
    EBB_TRY(check_experts("routed weights", args.routed, d, f, args.routed.gate.n_mats));
    EBB_TRY(check_experts("shared weights", args.shared, d, f, 1));
    EBB_TRY(check_range("experts", "n_used", args.n_used, 1, kMaxRouteUsed));
    EBB_TRY(check_rows("experts", args.step.max_rows));
    EBB_TRY(
        check_range("experts", "pieces",
                    std::int64_t{args.step.max_rows} * args.n_used / 8 + args.routed.gate.n_mats, 1,
                    kMaxGridRows));
    EBB_TRY(check_pointers("experts", {{"step.n_rows", args.step.n_rows},
                                       {"x", args.x},
                                       {"ids", args.ids},
                                       {"weights", args.weights},
                                       {"hidden", args.hidden},
                                       {"partial", args.partial},
                                       {"y", args.y}}));
    const auto with_sum = std::make_shared<bool>(true);
    // Whoever wrote x had ended before the route began.
    const bool x_settled =
        route_ && args.x != static_cast<const void*>(route_->ids) && args.x != route_->weights;
    EBB_TRY(add("experts", experts_workspace(args, precision_),
                [args, precision = precision_, with_sum, x_settled](const Launch& l) {
                  return cuda::experts(l, args, precision, *with_sum, x_settled);
                }));
    experts_ = {args, with_sum};
    return ok_status();
  });
}

Status Recorder::rope_table(const RopeTableArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_pointers("rope_table", {{"step.n_rows", args.step.n_rows},
                                          {"step.pos", args.step.pos},
                                          {"frequency", args.frequency},
                                          {"cos_sin", args.cos_sin}}));
    EBB_TRY(check_range("rope_table", "n_pairs", args.n_pairs, 1, 1 << 16));
    EBB_TRY(check_rows("rope_table", args.step.max_rows));
    const bool fits = tables_.n > 0 && tables_.n < kMaxRopeTables &&
                      tables_.tables[0].step.n_rows == args.step.n_rows &&
                      tables_.tables[0].step.max_rows == args.step.max_rows;
    if (!fits) flush();
    tables_.tables[static_cast<std::size_t>(tables_.n++)] = args;
    return ok_status();
  });
}

Status Recorder::heads(const HeadsArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_pointers(
        "heads", {{"step.n_rows", args.step.n_rows}, {"x", args.x}, {"cos_sin", args.cos_sin}}));
    EBB_TRY(check_range("heads", "n_heads", args.n_heads, 1, 1 << 16));
    EBB_TRY(check_range("heads", "d", args.d, 1, static_cast<std::int64_t>(largest_shared_ / 4)));
    EBB_TRY(check_rounding("heads", args.rounding, args.d, args.n_pairs));
    EBB_TRY(check_rows("heads", args.step.max_rows));
    flush_tables();
    flush_post();
    // The first is taken for an attend's queries, which it may turn out to be.
    if (!queries_ && !group_.has_heads && args.rounding == Rounding::none) {
      if (group_touches(args.x)) flush_group();
      queries_ = args;
      return ok_status();
    }
    if (queries_ && queries_->x == args.x) flush_queries();
    if (group_.has_heads || group_touches(args.x)) flush_group();
    group_.has_heads = true;
    group_.heads = args;
    return ok_status();
  });
}

Status Recorder::append(const AppendArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_step("append", args.step));
    EBB_TRY(check_pointers(
        "append", {{"kv", args.kv}, {"norm_weight", args.norm_weight}, {"cos_sin", args.cos_sin}}));
    EBB_TRY(check_range("append", "d", args.d, 1, static_cast<std::int64_t>(largest_shared_ / 4)));
    EBB_TRY(check_rounding("append", args.rounding, args.d, args.n_pairs));
    EBB_TRY(
        check_range("append", "rows of the ring", args.ring.n_rows, args.step.max_rows, INT32_MAX));
    EBB_ASSIGN(const std::int32_t n_rot,
               check_store("append", "ring", args.ring, args.d, args.n_pairs, args.rounding));
    flush_tables();
    flush_post();
    if (queries_ && queries_->x == args.kv) flush_queries();
    if (group_.has_append || group_touches(args.kv) || group_touches(args.ring.data)) flush_group();
    group_.has_append = true;
    group_.append = args;
    group_.append_rot = n_rot;
    return ok_status();
  });
}

Status Recorder::compress(const CompressArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_step("compress", args.step));
    EBB_TRY(check_pointers("compress", {{"kv", args.kv},
                                        {"gate", args.gate},
                                        {"ape", args.ape},
                                        {"state_kv", args.state_kv},
                                        {"state_gate", args.state_gate},
                                        {"norm_weight", args.norm_weight},
                                        {"cos_sin", args.cos_sin}}));
    EBB_TRY(check_range("compress", "ratio", args.ratio, 1, 1 << 16));
    EBB_TRY(
        check_range("compress", "d", args.d, 1, static_cast<std::int64_t>(largest_shared_ / 4)));
    EBB_TRY(check_range("compress", "overlap", args.overlap, 0, 1));
    EBB_TRY(check_rounding("compress", args.rounding, args.d, args.n_pairs));
    EBB_ASSIGN(const std::int32_t n_rot,
               check_store("compress", "rows", args.rows, args.d, args.n_pairs, args.rounding));
    flush_tables();
    flush_post();
    if (queries_ && (queries_->x == args.kv || queries_->x == args.gate)) flush_queries();
    const bool same_step =
        group_.n_compressions == 0 || (group_.compress[0].step.n_rows == args.step.n_rows &&
                                       group_.compress[0].step.max_rows == args.step.max_rows);
    if (group_.n_compressions == 2 || !same_step || group_touches(args.kv) ||
        group_touches(args.gate) || group_touches(args.state_kv) ||
        group_touches(args.state_gate) || group_touches(args.rows.data)) {
      flush_group();
    }
    const auto at = static_cast<std::size_t>(group_.n_compressions++);
    group_.compress[at] = args;
    group_.compress_rot[at] = n_rot;
    return ok_status();
  });
}

Status Recorder::select(const SelectArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_step("select", args.step));
    EBB_TRY(check_pointers(
        "select",
        {{"q", args.q}, {"weight", args.weight}, {"ids", args.ids}, {"count", args.count}}));
    EBB_TRY(check_range("select", "d", args.d, 1, kMaxIndexWidth));
    EBB_TRY(check_range("select", "n_heads", args.n_heads, 1,
                        max_index_heads(args.d, largest_shared_)));
    EBB_TRY(check_range("select", "ratio", args.ratio, 1, 1 << 16));
    EBB_TRY(check_range("select", "top_k", args.top_k, 1, 1 << 20));
    EBB_ASSIGN(const std::int32_t n_rot,
               check_store("select", "keys", args.keys, args.d, 0, Rounding::none));
    flush_tables();
    flush_post();
    flush_group();
    if (queries_ && (queries_->x == args.q || queries_->x == args.weight)) flush_queries();
    push("select", select_workspace(args),
         [args, n_rot](const Launch& l) { return cuda::select(l, args, n_rot); });
    return ok_status();
  });
}

Status Recorder::attend(const AttendArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_step("attend", args.step));
    EBB_TRY(check_pointers(
        "attend",
        {{"q", args.q}, {"sink", args.sink}, {"cos_sin", args.cos_sin}, {"out", args.out}}));
    EBB_TRY(check_range("attend", "d", args.d, 2, kMaxHeadWidth));
    if (args.d % 2 != 0) {
      return make_error(Errc::incompatible, "compute_cuda: attend: d = %d, want an even number",
                        args.d);
    }
    EBB_TRY(check_range("attend", "n_heads", args.n_heads, 1, 1 << 16));
    EBB_TRY(check_range("attend", "n_pairs", args.n_pairs, 0, args.d / 2));
    EBB_TRY(check_range("attend", "window", args.window, 1, INT32_MAX));
    EBB_TRY(check_rows("attend", args.step.max_rows));
    std::int32_t chunk_rot = 0;
    EBB_ASSIGN(const std::int32_t ring_rot,
               check_store("attend", "ring", args.ring, args.d, args.n_pairs, Rounding::none));
    EBB_TRY(check_range("attend", "rows of the ring", args.ring.n_rows,
                        static_cast<std::int64_t>(args.window) - 1 + args.step.max_rows,
                        INT32_MAX));
    if (args.chunks.data != nullptr) {
      EBB_ASSIGN(chunk_rot, check_store("attend", "chunks", args.chunks, args.d, args.n_pairs,
                                        Rounding::none));
      EBB_TRY(check_range("attend", "ratio", args.ratio, 1, 1 << 16));
      if (args.ids != nullptr) {
        EBB_TRY(check_pointers("attend", {{"count", args.count}}));
        EBB_TRY(check_range("attend", "top_k", args.top_k, 1, INT32_MAX));
      }
    }
    std::optional<HeadsArgs> queries;
    if (queries_ && attend_can_finish(*queries_, args)) std::swap(queries, queries_);
    return add("attend", attend_workspace(args),
               [args, ring_rot, chunk_rot, queries](const Launch& l) {
                 return cuda::attend(l, args, ring_rot, chunk_rot, queries ? &*queries : nullptr);
               });
  });
}

Status Recorder::keep_rows(const KeepRowsArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(cpu::check_keep_rows(args));
    EBB_TRY(check_rows("keep_rows", args.step.max_rows));
    return add_before_held("keep_rows", 0, {args.x, args.y},
                           [args](const Launch& l) { return cuda::keep_rows(l, args); });
  });
}

Status Recorder::pick_rows(const PickRowsArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(cpu::check_pick_rows(args));
    EBB_TRY(check_rows("pick_rows", args.step.max_rows));
    return add("pick_rows", 0, [args](const Launch& l) { return cuda::pick_rows(l, args); });
  });
}

Status Recorder::score(const ScoreArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_ASSIGN(const std::int32_t n_rot, cpu::check_score(args));
    EBB_TRY(check_range("score", "d", args.d, 1, kMaxIndexWidth));
    EBB_TRY(
        check_range("score", "n_heads", args.n_heads, 1, max_index_heads(args.d, largest_shared_)));
    EBB_TRY(check_rows("score", args.step.max_rows));
    return add("score", 0, [args, n_rot](const Launch& l) { return cuda::score(l, args, n_rot); });
  });
}

Status Recorder::move_rows(const MoveRowsArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(
        check_pointers("move_rows", {{"count", args.moves.count}, {"moves", args.moves.moves}}));
    EBB_TRY(check_range("move_rows", "max_moves", args.moves.max_moves, 1, INT32_MAX / 64));
    return add("move_rows", 0, [args](const Launch& l) { return cuda::move_rows(l, args); });
  });
}

Status Recorder::copy(const CopyArgs& args) noexcept {
  return guarded([&]() -> Status {
    EBB_TRY(check_pointers("copy", {{"to", args.to}, {"from", args.from}}));
    return add("copy", 0, [args](const Launch& l) {
      return cudaMemcpyAsync(args.to, args.from, args.bytes, cudaMemcpyDefault, l.stream);
    });
  });
}

Status Recorder::host_call(const HostCallArgs& args) noexcept {
  return guarded([&]() -> Status {
    if (args.function == nullptr) {
      return make_error(Errc::invalid_argument, "host_call: function is null");
    }
    HostCallArgs* const call = &plan_.calls.emplace_back(args);
    return add("host_call", 0, [call](const Launch& l) {
      return cudaLaunchHostFunc(
          l.stream,
          [](void* data) {
            const auto* made = static_cast<const HostCallArgs*>(data);
            made->function(made->context, made->index);
          },
          call);
    });
  });
}

}  // namespace ebb::cuda
