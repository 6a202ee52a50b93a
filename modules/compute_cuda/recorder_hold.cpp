// Which ops are held back, and which go past them: ops that one launch can do together.

#include <algorithm>

#include "kernels/cuda/hyper.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/rows.h"
#include "modules/compute_cuda/recorder.h"

namespace ebb::cuda {

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

Status Recorder::add_before_held(const char* name, std::uint64_t workspace_bytes,
                                 const std::vector<const void*>& buffers,
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
  for (OpenProduct& product : products_) {
    product.touched.insert(product.touched.end(), buffers.begin(), buffers.end());
  }
  return ok_status();
}

bool Recorder::join(const MatmulArgs& args, const std::vector<const void*>& buffers) {
  const auto found = std::find_if(products_.rbegin(), products_.rend(), [&](const auto& open) {
    return !*open.second && matmul_pairs(open.args, args);
  });
  if (found == products_.rend() || post_) return false;
  for (const void* buffer : buffers) {
    const std::vector<const void*>& touched = found->touched;
    if (std::find(touched.begin(), touched.end(), buffer) != touched.end()) return false;
    if (group_touches(buffer) || (queries_ && buffer == queries_->x)) return false;
  }
  *found->second = args;
  return true;
}

void Recorder::flush_tables() {
  if (tables_.n == 0) return;
  push("rope_table", 0,
       [tables = tables_](const Launch& l) { return cuda::rope_tables(l, tables); });
  tables_ = {};
}

void Recorder::flush_group() {
  if (group_.empty()) return;
  push("rows", 0, [group = group_](const Launch& l) { return cuda::row_group(l, group); });
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

void Recorder::flush() {
  flush_tables();
  flush_queries();
  flush_group();
  flush_post();
}

bool Recorder::group_touches(const void* buffer) const {
  const auto is_one_of = [buffer](std::initializer_list<const void*> others) {
    return std::find(others.begin(), others.end(), buffer) != others.end();
  };
  bool found = false;
  if (group_.has_append) {
    const AppendArgs& a = group_.append;
    found = is_one_of({a.kv, a.norm_weight, a.cos_sin, a.ring.data});
  }
  for (std::int32_t i = 0; i < group_.n_compressions; ++i) {
    const CompressArgs& a = group_.compress[static_cast<std::size_t>(i)];
    found = found || is_one_of({a.kv, a.gate, a.ape, a.state_kv, a.state_gate, a.norm_weight,
                                a.cos_sin, a.rows.data, a.slots.slots});
  }
  if (group_.has_heads) found = found || is_one_of({group_.heads.x, group_.heads.cos_sin});
  return found;
}

}  // namespace ebb::cuda
