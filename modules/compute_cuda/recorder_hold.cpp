// Which ops are held back, and which go past them: ops that one launch can do together.

#include <algorithm>

#include "kernels/cuda/hyper.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/rows.h"
#include "modules/compute_cuda/recorder.h"

namespace ebb::cuda {
namespace {

using Buffers = std::vector<const void*>;

constexpr std::int32_t kRowsBeside = 16;  // a product of more keeps the device busy by itself

bool meet(const Buffers& some, const Buffers& others) {
  return std::find_first_of(some.begin(), some.end(), others.begin(), others.end(),
                            [](const void* a, const void* b) { return a == b && a != nullptr; }) !=
         some.end();
}

void add_to(Buffers& all, const Buffers& more) { all.insert(all.end(), more.begin(), more.end()); }

/// What the ops of a group read and write, but for weights and the step.
Buffers buffers_of(const RowGroup& group) {
  Buffers all;
  if (group.has_append) {
    const AppendArgs& a = group.append;
    add_to(all, {a.kv, a.norm_weight, a.cos_sin, a.ring.data});
  }
  for (std::int32_t i = 0; i < group.n_compressions; ++i) {
    const CompressArgs& a = group.compress[static_cast<std::size_t>(i)];
    add_to(all, {a.kv, a.gate, a.ape, a.state_kv, a.state_gate, a.norm_weight, a.cos_sin,
                 a.rows.data, a.slots.slots});
  }
  if (group.has_heads) add_to(all, {group.heads.x, group.heads.cos_sin});
  return all;
}

}  // namespace

void Recorder::push(const char* name, std::uint64_t workspace_bytes,
                    std::function<cudaError_t(const Launch&)> enqueue) {
  plan_.ops.push_back({name, std::move(enqueue)});
  plan_.workspace_bytes = std::max(plan_.workspace_bytes, workspace_bytes);
  experts_.reset();
  route_.reset();
  products_.clear();
}

Status Recorder::add(const char* name, std::uint64_t workspace_bytes,
                     std::function<cudaError_t(const Launch&)> enqueue) {
  flush();
  push(name, workspace_bytes, std::move(enqueue));
  return ok_status();
}

void Recorder::push_before_held(const char* name, std::uint64_t workspace_bytes,
                                const Buffers& buffers,
                                std::function<cudaError_t(const Launch&)> enqueue) {
  flush_tables();
  flush_post();
  for (const void* buffer : buffers) {
    if (group_touches(buffer)) flush_group();
    if (queries_ && (buffer == queries_->x || buffer == queries_->cos_sin)) flush_queries();
  }
  // What may pass is a product or a norm: products before it stay open.
  std::vector<OpenProduct> open;
  std::swap(open, products_);
  push(name, workspace_bytes, std::move(enqueue));
  std::swap(open, products_);
  for (OpenProduct& product : products_) add_to(product.touched, buffers);
}

bool Recorder::join(const MatmulArgs& args, const Buffers& buffers) {
  const auto found = std::find_if(products_.rbegin(), products_.rend(), [&](const auto& open) {
    return !*open.second &&
           (*open.norm ? matmul_norms(args, **open.norm) : matmul_pairs(open.args, args));
  });
  if (found == products_.rend() || post_ || held_touches(buffers)) return false;
  if (meet(buffers, found->touched) || meet(buffers, found->beside)) return false;
  if (!*found->norm) {
    *found->second = args;
    add_to(found->own, buffers);
    return true;
  }
  // This one does the norm then. What follows from it can run beside the other.
  if (std::any_of(args.parts.begin(), args.parts.begin() + args.n_parts,
                  [&](const MatmulPart& part) { return meet({part.y}, found->own); })) {
    return false;
  }
  std::optional<RmsNormArgs> norm;
  std::swap(norm, *found->norm);
  plan_.workspace_bytes = std::max(plan_.workspace_bytes, matmul_workspace(args, precision_));
  insert(found->op,
         {"matmul", [args, norm = *norm, precision = precision_](
                        const Launch& l) { return cuda::matmul(l, args, precision, &norm); }},
         buffers);
  return true;
}

void Recorder::insert(std::size_t at, RecordedOp op, const Buffers& buffers) {
  const bool beside = op.beside;
  plan_.ops.insert(plan_.ops.begin() + static_cast<std::ptrdiff_t>(at), std::move(op));
  for (OpenProduct& product : products_) {
    if (product.op < at) add_to(product.touched, buffers);
    if (beside && product.op == at) add_to(product.beside, buffers);
    if (product.op >= at) ++product.op;
  }
}

bool Recorder::fits_beside(const Buffers& buffers) const {
  if (products_.empty()) return false;
  const OpenProduct& last = products_.back();
  if (last.op + 1 != plan_.ops.size() || last.args.max_rows > kRowsBeside) return false;
  if (meet(buffers, last.own) || meet(buffers, last.touched)) return false;
  // The product will not wait for what is beside the op before it; so nothing may be.
  std::size_t before = last.op;
  while (before > 0 && plan_.ops[before - 1].beside) --before;
  return before > 0 && plan_.ops[before - 1].joins;
}

void Recorder::push_beside(const char* name, std::uint64_t workspace_bytes, const Buffers& buffers,
                           std::function<cudaError_t(const Launch&)> enqueue) {
  if (!fits_beside(buffers)) return push(name, workspace_bytes, std::move(enqueue));
  const std::size_t at = products_.back().op;
  plan_.ops[at].joins = false;
  plan_.beside_workspace_bytes = std::max(plan_.beside_workspace_bytes, workspace_bytes);
  insert(at, {name, std::move(enqueue), true}, buffers);
}

void Recorder::flush_norm() {
  if (!norm_) return;
  const RmsNormArgs args = *norm_;
  norm_.reset();
  push_before_held("rms_norm", 0, {args.x, args.weight, args.y},
                   [args](const Launch& l) { return cuda::rms_norm(l, args); });
}

void Recorder::flush_tables() {
  if (tables_.n == 0) return;
  push("rope_table", 0,
       [tables = tables_](const Launch& l) { return cuda::rope_tables(l, tables); });
  tables_ = {};
}

void Recorder::flush_group() {
  if (group_.empty()) return;
  push_beside("rows", 0, buffers_of(group_),
              [group = group_](const Launch& l) { return cuda::row_group(l, group); });
  group_ = {};
}

void Recorder::flush_queries() {
  if (!queries_) return;
  RowGroup group;
  group.has_heads = true;
  group.heads = *queries_;
  push("heads", 0, [group](const Launch& l) { return cuda::row_group(l, group); });
  queries_.reset();
}

void Recorder::flush_post() {
  if (!post_) return;
  push("hc_post", 0, [args = *post_](const Launch& l) { return cuda::hc_post(l, args); });
  post_.reset();
}

void Recorder::flush_all_but_queries() {
  flush_tables();
  flush_post();
  flush_group();
}

void Recorder::flush() {
  flush_tables();
  flush_queries();
  flush_group();
  flush_post();
}

bool Recorder::group_touches(const void* buffer) const {
  return meet({buffer}, buffers_of(group_));
}

bool Recorder::held_touches(const Buffers& buffers) const {
  return meet(buffers, buffers_of(group_)) || (queries_ && meet(buffers, {queries_->x}));
}

}  // namespace ebb::cuda
