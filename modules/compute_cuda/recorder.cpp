// Ops on whole rows and on experts.

#include "modules/compute_cuda/recorder.h"

#include <algorithm>

#include "kernels/cuda/embed.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/experts_row.h"
#include "kernels/cuda/hyper.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/planes.h"
#include "kernels/cuda/route.h"
#include "kernels/hyper.h"
#include "modules/compute_cuda/recorder_common.h"

namespace ebb::cuda {
namespace {

using cpu::check_pointers;
using cpu::check_range;

constexpr std::int32_t kFewRows = 16;

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

bool writes(const MatmulArgs& args, const void* buffer) {
  const auto* const end = args.parts.data() + args.n_parts;
  return std::any_of(args.parts.data(), end, [&](const auto& part) { return part.y == buffer; });
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
    flush_norm();
    flush();
    return ok_status();
  }));
  return std::move(plan_);
}

Status Recorder::embed(const EmbedArgs& args) noexcept {
  return record([&]() -> Status {
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
    Buffers buffers{args.x};
    for (std::int32_t p = 0; p < args.n_parts; ++p) {
      buffers.push_back(args.parts[static_cast<std::size_t>(p)].y);
    }
    std::optional<RmsNormArgs> norm;
    if (norm_ && matmul_norms(args, *norm_)) std::swap(norm, norm_);
    flush_norm();
    if (norm) {
      buffers.insert(buffers.end(), {norm->x, norm->weight});
    } else if (join(args, buffers)) {
      return ok_status();
    }
    const auto second = std::make_shared<std::optional<MatmulArgs>>();
    const auto own_norm = std::make_shared<std::optional<RmsNormArgs>>(norm);
    push_before_held("matmul", matmul_workspace(args, precision_), buffers,
                     [args, own_norm, second, precision = precision_](const Launch& l) {
                       return *second ? cuda::matmul_pair(l, args, **second, precision)
                                      : cuda::matmul(l, args, precision, address(*own_norm));
                     });
    products_.push_back({plan_.ops.size() - 1, args, own_norm, second, buffers, {}, {}});
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
    flush_norm();
    norm_ = args;
    return ok_status();
  });
}

Status Recorder::hc_pre(const HcPreArgs& args) noexcept {
  return record([&]() -> Status {
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
      return add(name, hyper_workspace(args.step.max_rows, args.n_streams, args.d),
                 [args, post](const Launch& l) { return cuda::hc_pre(l, args, address(post)); });
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
      return cuda::hc_pre_clusters(l, args, address(post), address(sum));
    });
  });
}

Status Recorder::hc_post(const HcPostArgs& args) noexcept {
  return record([&]() -> Status {
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
  return record([&]() -> Status {
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
  return record([&]() -> Status {
    EBB_TRY(check_pointers("argmax",
                           {{"n_rows", args.n_rows}, {"logits", args.logits}, {"ids", args.ids}}));
    EBB_TRY(check_range("argmax", "n", args.n, 1, INT32_MAX));
    EBB_TRY(check_rows("argmax", args.max_rows));
    return add("argmax", argmax_workspace(args),
               [args](const Launch& l) { return cuda::argmax(l, args); });
  });
}

Status Recorder::route(const RouteArgs& args) noexcept {
  return record([&]() -> Status {
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
    std::optional<MatmulArgs> router;
    if (!products_.empty() && products_.back().op + 1 == plan_.ops.size()) {
      router = products_.back().args;
    }
    EBB_TRY(add("route", 0, [args](const Launch& l) { return cuda::route(l, args); }));
    if (router) route_ = {args, *router};
    return ok_status();
  });
}

Status Recorder::experts(const ExpertsArgs& args) noexcept {
  return record([&]() -> Status {
    const std::int64_t d = args.routed.gate.n_in, f = args.routed.gate.n_out;
    EBB_TRY(check_experts("routed weights", args.routed, d, f, args.routed.gate.n_mats));
    EBB_TRY(check_experts("shared weights", args.shared, d, f, 1));
    EBB_TRY(check_range("experts", "n_experts", args.routed.gate.n_mats, 1, kMaxRouteExperts));
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
    // The experts may begin with the route, which begins with the router: x was there before.
    const bool x_settled = route_ && !writes(route_->router, args.x) &&
                           args.x != static_cast<const void*>(route_->args.ids) &&
                           args.x != route_->args.weights;
    EBB_TRY(add("experts", experts_workspace(args, precision_),
                [args, precision = precision_, with_sum, x_settled](const Launch& l) {
                  return cuda::experts(l, args, precision, *with_sum, x_settled);
                }));
    experts_ = {args, with_sum};
    return ok_status();
  });
}

}  // namespace ebb::cuda
