// Time of the ops around the products on a CUDA device, at V4-Flash's shape.
//   cuda_attention_bench [FILTER]      prints microseconds per op; FILTER is part of a name
//
// An op stands kRepeats times in a graph, as it does layer after layer in a step, each time on
// another layer's rows, so that a small context does not look fast for being in the cache.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/hyper.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/scoring.h"
#include "kernels/cuda/select.h"
#include "kernels/row_format.h"

namespace ebb::test {
namespace {

constexpr int kRepeats = 21;
constexpr std::int32_t kHeads = 64, kHeadDim = 512, kRot = 64, kIndexDim = 128, kTopK = 512;

void require(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "cuda_attention_bench: %s\n", cudaGetErrorString(code));
  std::exit(1);
}

const char* name_of(RowFormat format) {
  const char* const names[] = {"f32", "f16", "fp8", "fp4"};
  return names[static_cast<int>(format)];
}

/// Device memory that is freed with the pool.
class Pool {
 public:
  ~Pool() {
    for (void* p : all_) cudaFree(p);
  }
  std::byte* take(std::size_t bytes) {
    void* p = nullptr;
    require(cudaMalloc(&p, bytes + 256));
    all_.push_back(p);
    return static_cast<std::byte*>(p);
  }
  template <class T>
  T* put(const std::vector<T>& host) {
    T* const p = reinterpret_cast<T*>(take(host.size() * sizeof(T)));
    require(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
  }
  /// Normal values; a block of them over and over.
  float* normal(std::size_t n) {
    std::vector<float> host(n);
    const std::size_t block = std::min<std::size_t>(n, 65536 + 7);
    for (std::size_t i = 0; i < block; ++i) host[i] = normal_(random_);
    for (std::size_t i = block; i < n; ++i) host[i] = host[i - block];
    return put(host);
  }
  /// Rows of `copies` layers, alike.
  RowStore rows(RowFormat format, std::int32_t d, std::int32_t n_rot, std::int64_t n_rows,
                int copies) {
    RowStore store;
    store.format = format;
    store.row_bytes = row_bytes(format, d, n_rot);
    store.n_rows = n_rows;
    store.sequence_bytes = n_rows * store.row_bytes;
    std::vector<std::byte> host(static_cast<std::size_t>(store.sequence_bytes));
    std::vector<float> x(static_cast<std::size_t>(d));
    const std::int64_t fresh = std::min<std::int64_t>(n_rows, 4099);
    for (std::int64_t r = 0; r < n_rows; ++r) {
      std::byte* const row = host.data() + r * store.row_bytes;
      if (r < fresh) {
        for (float& v : x) v = normal_(random_);
        encode_row(format, d, n_rot, x.data(), row);
      } else {
        std::memcpy(row, row - fresh * store.row_bytes, static_cast<std::size_t>(store.row_bytes));
      }
    }
    store.data = take(static_cast<std::size_t>(store.sequence_bytes * copies));
    for (int c = 0; c < copies; ++c) {
      require(cudaMemcpy(store.data + c * store.sequence_bytes, host.data(), host.size(),
                         cudaMemcpyHostToDevice));
    }
    return store;
  }

 private:
  std::vector<void*> all_;
  std::mt19937 random_{1};
  std::normal_distribution<float> normal_;
};

/// Rows of one sequence that end at position `last`.
StepView step_of(Pool& pool, std::int32_t n_rows, std::int32_t last) {
  std::vector<std::int32_t> pos, zeros(static_cast<std::size_t>(n_rows), 0);
  for (std::int32_t r = 0; r < n_rows; ++r) pos.push_back(last - n_rows + 1 + r);
  StepView v;
  v.n_rows = pool.put(std::vector{n_rows});
  v.n_out = pool.put(std::vector{std::int32_t{1}});
  v.pos = pool.put(pos);
  v.token = v.seq = v.run_start = pool.put(zeros);
  v.out_row = pool.put(std::vector{n_rows - 1});
  v.max_rows = n_rows;
  v.max_out = 1;
  return v;
}

class Timer {
 public:
  explicit Timer(const char* filter) : filter_(filter) {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    cudaDeviceProp properties{};
    require(cudaGetDeviceProperties(&properties, 0));
    launch_.stream = stream_;
    launch_.n_sms = properties.multiProcessorCount;
    launch_.early_start = properties.major >= 9;
    clusters = properties.major >= 9;
    std::printf("%s\n%-52s %10s\n", properties.name, "op", "us");
  }
  ~Timer() { cudaStreamDestroy(stream_); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  bool wants(const std::string& name) const { return name.find(filter_) != std::string::npos; }

  /// `enqueue` gets the number of the repeat.
  void time(const std::string& name, std::size_t workspace_bytes,
            const std::function<cudaError_t(const cuda::Launch&, int)>& enqueue) {
    Pool pool;
    cuda::Launch launch = launch_;
    launch.workspace = pool.take(workspace_bytes);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kRepeats; ++i) require(enqueue(launch, i));
    require(cudaStreamEndCapture(stream_, &graph));
    require(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    require(cudaEventCreate(&begin));
    require(cudaEventCreate(&end));
    std::vector<float> times;
    for (int run = 0; run < 7; ++run) {
      require(cudaEventRecord(begin, stream_));
      require(cudaGraphLaunch(exec, stream_));
      require(cudaEventRecord(end, stream_));
      require(cudaStreamSynchronize(stream_));
      float ms = 0;
      require(cudaEventElapsedTime(&ms, begin, end));
      if (run > 1) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    std::printf("%-52s %10.2f\n", name.c_str(),
                static_cast<double>(times[times.size() / 2]) * 1e3 / kRepeats);
    std::fflush(stdout);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }

  bool clusters = false;

 private:
  const std::string filter_;
  cudaStream_t stream_ = nullptr;
  cuda::Launch launch_;
};

std::string label(const char* op, std::int32_t rows, std::int32_t context, RowFormat format) {
  char text[96];
  std::snprintf(text, sizeof(text), "%s rows=%d context=%d %s", op, rows, context, name_of(format));
  return text;
}

/// `allowed`: of every hundred pages of 64 chunks, how many may be chosen; negative: no mask.
void select(Timer& timer, std::int32_t n_rows, std::int32_t context, RowFormat format,
            int allowed = -1) {
  const std::string name =
      label("select", n_rows, context, format) +
      (allowed < 0 ? "" : " " + std::to_string(allowed) + " % of pages allowed");
  if (!timer.wants(name)) return;
  Pool pool;
  const int copies = n_rows == 1 ? kRepeats : 1;
  SelectArgs a;
  a.step = step_of(pool, n_rows, context - 1);
  a.q = pool.normal(static_cast<std::size_t>(n_rows) * 64 * kIndexDim);
  a.weight = pool.normal(static_cast<std::size_t>(n_rows) * 64);
  a.weight_scale = 0.011f;
  a.keys = pool.rows(format, kIndexDim, 0, context / 4, copies);
  a.n_heads = 64;
  a.d = kIndexDim;
  a.ratio = 4;
  a.top_k = kTopK;
  a.ids = reinterpret_cast<std::int32_t*>(
      pool.take(static_cast<std::size_t>(n_rows) * kTopK * sizeof(std::int32_t)));
  a.count = reinterpret_cast<std::int32_t*>(
      pool.take(static_cast<std::size_t>(n_rows) * sizeof(std::int32_t)));
  if (allowed >= 0) {
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(context / 4));
    for (std::size_t c = 0; c < mask.size(); ++c) {
      mask[c] = static_cast<int>(c / 64 * 37 % 100) < allowed ? 1 : 0;
    }
    a.allowed = pool.put(mask);
  }
  timer.time(name, cuda::select_workspace(a), [&](const cuda::Launch& launch, int i) {
    SelectArgs own = a;
    own.keys.data += (i % copies) * a.keys.sequence_bytes;
    return cuda::select(launch, own, 0);
  });
}

/// All visible chunks for a scorer of FlashMemory's shape.
void score(Timer& timer, std::int32_t n_rows, std::int32_t context, RowFormat format) {
  const std::string name = label("score 128 heads", n_rows, context, format);
  if (!timer.wants(name)) return;
  Pool pool;
  const int copies = n_rows == 1 ? kRepeats : 1;
  ScoreArgs a;
  a.step = step_of(pool, n_rows, context - 1);
  a.q = pool.normal(static_cast<std::size_t>(n_rows) * 128 * kIndexDim);
  a.weight = pool.normal(static_cast<std::size_t>(n_rows) * 128);
  a.weight_scale = 1.0f / 128;
  a.keys = pool.rows(format, kIndexDim, 0, context / 4, copies);
  a.n_heads = 128;
  a.d = kIndexDim;
  a.ratio = 4;
  a.stride = context / 4;
  a.logits = pool.normal(static_cast<std::size_t>(n_rows * a.stride));
  timer.time(name, 0, [&](const cuda::Launch& launch, int i) {
    ScoreArgs own = a;
    own.keys.data += (i % copies) * a.keys.sequence_bytes;
    return cuda::score(launch, own, 0);
  });
}

void keep_rows(Timer& timer, std::int32_t n_rows, std::int64_t d) {
  const std::string name =
      "keep_rows of " + std::to_string(d) + " rows=" + std::to_string(n_rows) + ", one kept";
  if (!timer.wants(name)) return;
  Pool pool;
  std::vector<std::int32_t> keep(static_cast<std::size_t>(n_rows), -1);
  keep.back() = 3;
  KeepRowsArgs a;
  a.step = step_of(pool, n_rows, n_rows);
  a.step.keep = pool.put(keep);
  a.x = pool.normal(static_cast<std::size_t>(n_rows * d));
  a.d = d;
  a.y = pool.normal(static_cast<std::size_t>(8 * d));
  timer.time(name, 0, [&](const cuda::Launch& launch, int) { return cuda::keep_rows(launch, a); });
}

/// ratio 4: 512 chosen chunks; ratio 128: all; 0: the window alone.
void attend(Timer& timer, std::int32_t n_rows, std::int32_t context, std::int32_t ratio,
            RowFormat format) {
  const std::string name =
      label(("attend ratio=" + std::to_string(ratio)).c_str(), n_rows, context, format);
  if (!timer.wants(name)) return;
  Pool pool;
  const int copies = n_rows == 1 ? kRepeats : 1;
  AttendArgs a;
  a.step = step_of(pool, n_rows, context - 1);
  const auto values = static_cast<std::size_t>(n_rows) * kHeads * kHeadDim;
  a.q = pool.normal(values);
  a.ring = pool.rows(format, kHeadDim, kRot, 127 + n_rows, copies);
  a.window = 128;
  if (ratio > 0) {
    a.chunks = pool.rows(format, kHeadDim, kRot, context / ratio, copies);
    a.ratio = ratio;
  }
  if (ratio == 4) {
    std::vector<std::int32_t> ids, count;
    std::mt19937 random(3);
    for (std::int32_t r = 0; r < n_rows; ++r) {
      const std::int32_t visible = (context - n_rows + 1 + r) / 4;
      std::vector<std::int32_t> own;
      for (std::int32_t i = 0; i < std::min(visible, kTopK); ++i) {
        own.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(visible)));
      }
      std::sort(own.begin(), own.end());
      count.push_back(static_cast<std::int32_t>(own.size()));
      own.resize(kTopK);
      ids.insert(ids.end(), own.begin(), own.end());
    }
    a.ids = pool.put(ids);
    a.count = pool.put(count);
    a.top_k = kTopK;
  }
  a.sink = pool.normal(kHeads);
  a.scale = 0.0442f;
  a.cos_sin = pool.normal(static_cast<std::size_t>(n_rows) * kRot);
  a.n_pairs = kRot / 2;
  a.n_heads = kHeads;
  a.d = kHeadDim;
  a.out = reinterpret_cast<float*>(pool.take(values * sizeof(float)));
  HeadsArgs heads{a.step,   const_cast<float*>(a.q), kHeads, kHeadDim, true, 1e-6f, a.cos_sin,
                  kRot / 2, Rounding::none};
  timer.time(name, cuda::attend_workspace(a), [&](const cuda::Launch& launch, int i) {
    AttendArgs own = a;
    own.ring.data += (i % copies) * a.ring.sequence_bytes;
    if (ratio > 0) own.chunks.data += (i % copies) * a.chunks.sequence_bytes;
    return cuda::attend(launch, own, kRot, kRot, &heads);
  });
}

void hyper(Timer& timer, std::int32_t n_rows, bool clusters, bool with_experts) {
  const std::string name = std::string("hc_post+hc_pre rows=") + std::to_string(n_rows) +
                           (clusters ? " clusters" : " two kernels") +
                           (with_experts ? " with experts' sum" : "");
  if (!timer.wants(name) || (clusters && !timer.clusters)) return;
  Pool pool;
  constexpr std::int64_t kD = 4096;
  const auto rows = static_cast<std::size_t>(n_rows);
  HcPreArgs a;
  a.step = step_of(pool, n_rows, n_rows);
  float* const streams = pool.normal(rows * 4 * kD);
  a.streams = streams;
  std::vector<float*> fn;
  for (int i = 0; i < kRepeats; ++i) fn.push_back(pool.normal(24 * 4 * kD / 2));
  a.hyper = {
      {nullptr, DType::f16, 4 * kD, 24, 1}, pool.normal(24), pool.normal(3), 1e-6f, 1e-6f, 20};
  a.norm_weight = pool.normal(kD);
  a.mix = pool.normal(rows * 24);
  a.y = pool.normal(rows * kD);
  a.post = pool.normal(rows * 4);
  a.comb = pool.normal(rows * 16);
  a.n_streams = 4;
  a.d = kD;
  const HcPostArgs post{a.step, pool.normal(rows * kD), a.post, a.comb, streams, 4, kD};
  ExpertsArgs experts;
  experts.partial = pool.normal(rows * 7 * kD);
  experts.ids = pool.put(std::vector<std::int32_t>(rows * 6, 3));
  experts.weights = pool.normal(rows * 6);
  experts.n_used = 6;
  experts.routed.gate.n_mats = 256;
  timer.time(name, cuda::hyper_workspace(n_rows, 4, kD), [&](const cuda::Launch& launch, int i) {
    HcPreArgs own = a;
    own.hyper.fn.data = reinterpret_cast<const std::byte*>(fn[static_cast<std::size_t>(i)]);
    return clusters ? cuda::hc_pre_clusters(launch, own, &post, with_experts ? &experts : nullptr)
                    : cuda::hc_pre(launch, own, &post);
  });
}

/// What a layer does to rows before it attends.
void rows(Timer& timer, std::int32_t n_rows, std::int32_t ratio, std::int32_t last) {
  const std::string name = "rows ratio=" + std::to_string(ratio) +
                           " rows=" + std::to_string(n_rows) +
                           ((last + 1) % ratio == 0 ? " chunk ends" : "");
  if (!timer.wants(name)) return;
  Pool pool;
  const auto n = static_cast<std::size_t>(n_rows);
  const StepView step = step_of(pool, n_rows, last);
  const float* const table = pool.normal(n * kRot);
  cuda::RowGroup group;
  const auto compress = [&](std::int32_t d, RowFormat format, Rounding rounding) {
    const std::int32_t c = ratio == 4 ? 2 : 1, state_rows = ratio == 4 ? 8 : ratio;
    CompressArgs a;
    a.step = step;
    a.kv = pool.normal(n * static_cast<std::size_t>(c * d));
    a.gate = pool.normal(n * static_cast<std::size_t>(c * d));
    a.ape = pool.normal(static_cast<std::size_t>(ratio * c * d));
    a.state_kv = pool.normal(static_cast<std::size_t>(state_rows * c * d));
    a.state_gate = pool.normal(static_cast<std::size_t>(state_rows * c * d));
    a.ratio = ratio;
    a.d = d;
    a.overlap = ratio == 4 ? 1 : 0;
    a.norm_weight = pool.normal(static_cast<std::size_t>(d));
    a.eps = 1e-6f;
    a.cos_sin = table;
    a.n_pairs = kRot / 2;
    a.rounding = rounding;
    a.rows = pool.rows(format, d, d == kHeadDim ? kRot : 0, last / ratio + 1, 1);
    group.compress_rot[static_cast<std::size_t>(group.n_compressions)] = d == kHeadDim ? kRot : 0;
    group.compress[static_cast<std::size_t>(group.n_compressions++)] = a;
  };
  compress(kHeadDim, RowFormat::f32, Rounding::fp8_nope);
  if (ratio == 4) {
    compress(kIndexDim, RowFormat::f32, Rounding::hadamard_fp4);
    group.has_heads = true;
    group.heads = {step,     pool.normal(n * 64 * kIndexDim), 64, kIndexDim, false, 0, table,
                   kRot / 2, Rounding::hadamard_fp4};
  }
  group.has_append = true;
  group.append = {step,
                  pool.normal(n * kHeadDim),
                  pool.normal(kHeadDim),
                  1e-6f,
                  table,
                  kRot / 2,
                  kHeadDim,
                  Rounding::fp8_nope,
                  pool.rows(RowFormat::f32, kHeadDim, kRot, 127 + n_rows, 1)};
  group.append_rot = kRot;
  timer.time(name, 0,
             [&](const cuda::Launch& launch, int) { return cuda::row_group(launch, group); });
}

void norm(Timer& timer, std::int32_t n_rows) {
  const std::string name = "rms_norm of 1024 rows=" + std::to_string(n_rows);
  if (!timer.wants(name)) return;
  Pool pool;
  float* const x = pool.normal(static_cast<std::size_t>(n_rows) * 1024);
  const RmsNormArgs a{pool.put(std::vector{n_rows}), n_rows, x, pool.normal(1024), x, 1024, 1e-6f};
  timer.time(name, 0, [&](const cuda::Launch& launch, int) { return cuda::rms_norm(launch, a); });
}

void route(Timer& timer, std::int32_t n_rows) {
  const std::string name = "route rows=" + std::to_string(n_rows);
  if (!timer.wants(name)) return;
  Pool pool;
  const auto n = static_cast<std::size_t>(n_rows);
  RouteArgs a;
  a.step = step_of(pool, n_rows, n_rows);
  a.logits = pool.normal(n * 256);
  a.bias = pool.normal(256);
  a.n_experts = 256;
  a.n_used = 6;
  a.scale = 1.5f;
  a.ids = reinterpret_cast<std::int32_t*>(pool.take(n * 6 * sizeof(std::int32_t)));
  a.weights = pool.normal(n * 6);
  timer.time(name, 0, [&](const cuda::Launch& launch, int) { return cuda::route(launch, a); });
}

void run(const char* filter) {
  Timer timer(filter);
  for (const bool clusters : {false, true}) {
    for (const std::int32_t n : {1, 2048}) hyper(timer, n, clusters, false);
  }
  for (const std::int32_t n : {1, 2048}) hyper(timer, n, true, true);
  for (const std::int32_t n : {1, 2048}) {
    rows(timer, n, 4, 4094);
    rows(timer, n, 4, 4095);
    rows(timer, n, 128, 4094);
    rows(timer, n, 128, 4095);
    norm(timer, n);
    route(timer, n);
    keep_rows(timer, n, 4096);
  }
  for (const RowFormat format : {RowFormat::f32, RowFormat::fp8, RowFormat::fp4}) {
    for (const std::int32_t k : {2, 4, 16, 64, 256}) select(timer, 1, k * 1024, format);
    for (const std::int32_t k : {4, 64}) select(timer, 2048, k * 1024, format);
    for (const int allowed : {15, 100}) {
      for (const std::int32_t k : {2, 64, 256}) select(timer, 1, k * 1024, format, allowed);
    }
    for (const std::int32_t k : {4, 64, 256}) score(timer, 1, k * 1024, format);
    score(timer, 16, 256 * 1024, format);
  }
  for (const RowFormat format : {RowFormat::f32, RowFormat::f16, RowFormat::fp8}) {
    attend(timer, 1, 2048, 0, format);
    for (const std::int32_t k : {2, 64}) attend(timer, 1, k * 1024, 4, format);
    for (const std::int32_t k : {2, 64, 256}) attend(timer, 1, k * 1024, 128, format);
    attend(timer, 16, 65536, 4, format);
    attend(timer, 2048, 65536, 4, format);
    attend(timer, 2048, 65536, 128, format);
  }
}

}  // namespace
}  // namespace ebb::test

int main(int argc, char** argv) {
  int n_devices = 0;
  if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
    std::fprintf(stderr, "SKIPPED: no CUDA device here\n");
    return 77;
  }
  ebb::test::run(argc > 1 ? argv[1] : "");
  return 0;
}
