// fn * RMS(flat) equals RMS's scalar times fn * flat. So the product is an ordinary matmul on the
// streams as they lie in memory, and what remains is one pass per row.

#include "kernels/cpu/hyper.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/block_phase.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/vector.h"
#include "kernels/hyper.h"

namespace ebb::cpu {
namespace {

void comb_of_row(const HcPreArgs& a, const float* mix, float* comb) {
  const HyperWeights& w = a.hyper;
  const int at = 2 * a.n_streams;
  hc_comb_of(a.n_streams, mix + at, w.scale[2], w.base + at, w.sinkhorn_iterations, w.hc_eps, comb);
}

void hc_pre_rows(const HcPreArgs& a, std::int64_t first, std::int64_t last, std::byte*) {
  const std::int32_t s = a.n_streams;
  const HyperWeights& w = a.hyper;
  for (std::int64_t r = first; r < last; ++r) {
    const float* const streams = a.streams + r * s * a.d;
    float* const mix = a.mix + r * (2 + s) * s;
    const float scale = inverse_rms(streams, s * a.d, w.rms_eps);
    for (std::int32_t i = 0; i < (2 + s) * s; ++i) mix[i] *= scale;
    float pre[kMaxStreams];
    for (std::int32_t i = 0; i < s; ++i) {
      pre[i] = hc_pre_weight(mix[i], w.scale[0], w.base[i], w.hc_eps);
      a.post[r * s + i] = hc_post_weight(mix[s + i], w.scale[1], w.base[s + i]);
    }
    comb_of_row(a, mix, a.comb + r * s * s);
    float* const y = a.y + r * a.d;
    weighted_streams(streams, a.d, pre, s, y, a.d);
    rms_norm_vector(y, a.norm_weight, y, a.d, w.rms_eps);
  }
}

void hc_post_rows(const HcPostArgs& a, std::int64_t first, std::int64_t last, std::byte*) {
  const std::int32_t s = a.n_streams;
  for (std::int64_t r = first; r < last; ++r) {
    mix_streams(a.o + r * a.d, a.post + r * s, a.comb + r * s * s, a.streams + r * s * a.d, s, a.d);
  }
}

void hc_gather_rows(const HcHeadArgs& a, std::int64_t first, std::int64_t last, std::byte*) {
  const std::int64_t width = a.n_streams * a.d;
  for (std::int64_t i = first; i < last; ++i) {
    std::memcpy(a.flat + i * width, a.streams + a.step.out_row[i] * width,
                static_cast<std::size_t>(width) * sizeof(float));
  }
}

void hc_head_rows(const HcHeadArgs& a, std::int64_t first, std::int64_t last, std::byte*) {
  const std::int32_t s = a.n_streams;
  const HyperWeights& w = a.hyper;
  for (std::int64_t i = first; i < last; ++i) {
    const float* const streams = a.flat + i * s * a.d;
    const float scale = inverse_rms(streams, s * a.d, w.rms_eps);
    float pre[kMaxStreams];
    for (std::int32_t k = 0; k < s; ++k) {
      pre[k] = hc_pre_weight(a.mix[i * s + k] * scale, w.scale[0], w.base[k], w.hc_eps);
    }
    float* const y = a.y + i * a.d;
    weighted_streams(streams, a.d, pre, s, y, a.d);
    rms_norm_vector(y, a.norm_weight, y, a.d, w.rms_eps);
  }
}

Status check_hyper(const char* op, const HyperWeights& w, std::int32_t n_streams, std::int64_t d,
                   std::int64_t n_mix) {
  EBB_TRY(check_range(op, "n_streams", n_streams, 1, kMaxStreams));
  EBB_TRY(check_range(op, "d", d, 1, INT32_MAX / kMaxStreams));
  EBB_TRY(check_pointers(op, {{"fn", w.fn.data}, {"base", w.base}, {"scale", w.scale}}));
  EBB_TRY(check_range(op, "columns of fn", w.fn.n_in, n_streams * d, n_streams * d));
  return check_range(op, "rows of fn", w.fn.n_out, n_mix, n_mix);
}

Status add_mix(PhaseList& list, const HyperWeights& w, const std::int32_t* n_rows,
               std::int32_t max_rows, const float* x, float* mix) {
  MatmulArgs product;
  product.n_rows = n_rows;
  product.max_rows = max_rows;
  product.x = x;
  product.exact = true;
  product.n_parts = 1;
  product.parts[0] = {w.fn, mix};
  return add_matmul(list, product, Precision::exact);
}

}  // namespace

Status add_hc_pre(PhaseList& list, const HcPreArgs& args) {
  EBB_TRY(check_hyper("hc_pre", args.hyper, args.n_streams, args.d,
                      (2 + args.n_streams) * args.n_streams));
  EBB_TRY(check_range("hc_pre", "sinkhorn_iterations", args.hyper.sinkhorn_iterations, 1, 1000));
  EBB_TRY(check_pointers("hc_pre", {{"step.n_rows", args.step.n_rows},
                                    {"streams", args.streams},
                                    {"norm_weight", args.norm_weight},
                                    {"mix", args.mix},
                                    {"y", args.y},
                                    {"post", args.post},
                                    {"comb", args.comb}}));
  EBB_TRY(add_mix(list, args.hyper, args.step.n_rows, args.step.max_rows, args.streams, args.mix));
  list.push_back(std::make_unique<BlockPhase<HcPreArgs>>("hc_pre", args, args.step.n_rows, 1,
                                                         items_for_values(args.n_streams * args.d),
                                                         0, hc_pre_rows));
  return ok_status();
}

Status add_hc_post(PhaseList& list, const HcPostArgs& args) {
  EBB_TRY(check_range("hc_post", "n_streams", args.n_streams, 1, kMaxStreams));
  EBB_TRY(check_range("hc_post", "d", args.d, 1, INT32_MAX / kMaxStreams));
  EBB_TRY(check_pointers("hc_post", {{"step.n_rows", args.step.n_rows},
                                     {"o", args.o},
                                     {"post", args.post},
                                     {"comb", args.comb},
                                     {"streams", args.streams}}));
  list.push_back(std::make_unique<BlockPhase<HcPostArgs>>("hc_post", args, args.step.n_rows, 1,
                                                          items_for_values(args.n_streams * args.d),
                                                          0, hc_post_rows));
  return ok_status();
}

Status add_hc_head(PhaseList& list, const HcHeadArgs& args) {
  EBB_TRY(check_hyper("hc_head", args.hyper, args.n_streams, args.d, args.n_streams));
  EBB_TRY(check_pointers("hc_head", {{"step.n_out", args.step.n_out},
                                     {"step.out_row", args.step.out_row},
                                     {"streams", args.streams},
                                     {"norm_weight", args.norm_weight},
                                     {"mix", args.mix},
                                     {"flat", args.flat},
                                     {"y", args.y}}));
  const std::int64_t block = items_for_values(args.n_streams * args.d);
  list.push_back(std::make_unique<BlockPhase<HcHeadArgs>>("hc_head gather", args, args.step.n_out,
                                                          1, block, 0, hc_gather_rows));
  EBB_TRY(add_mix(list, args.hyper, args.step.n_out, args.step.max_out, args.flat, args.mix));
  list.push_back(std::make_unique<BlockPhase<HcHeadArgs>>("hc_head", args, args.step.n_out, 1,
                                                          block, 0, hc_head_rows));
  return ok_status();
}

}  // namespace ebb::cpu
