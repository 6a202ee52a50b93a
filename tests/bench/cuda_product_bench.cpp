// Speed of compute_cuda's products in the shapes of DeepSeek-V4-Flash with the 2-bit mix.
//
//   cuda_product_bench [exact|fast] [rows...]      default: exact 1 4 16 2048
//
// One line per op and row count: time, stored bytes of weights that it must read over the time, and
// arithmetic of the model (a multiply and an add per weight and row) over the time. A graph runs
// the op over copies of its weights in turn, more bytes than the cache holds; the median of several
// replays is given. "layer" weighs the ops as the model does, 43 layers of three kinds.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/experts.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/tensor_product.h"
#include "kernels/quant_grids.h"

namespace ebb::cuda {
namespace {

void check(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "cuda_product_bench: %s\n", cudaGetErrorString(code));
  std::exit(1);
}

constexpr std::size_t kRotated = std::size_t{400} << 20;  // bytes of weights that a graph goes over

struct Bench {
  Precision precision = Precision::exact;
  Launch launch;
  std::byte* weights = nullptr;  // random, finite whatever they are read as
  std::size_t weight_bytes = std::size_t{4} << 30;
  std::byte* activations = nullptr;
  std::size_t activation_bytes = std::size_t{2} << 30;
  std::size_t workspace_bytes = std::size_t{1} << 30;

  Bench() {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    std::printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
    launch.n_sms = properties.multiProcessorCount;
    launch.largest_shared = properties.sharedMemPerBlockOptin;
    launch.tensor_units = has_tensor_units(properties);
    launch.early_start = properties.major >= 9;
    check(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
    std::byte* grid = nullptr;
    check(cudaMalloc(reinterpret_cast<void**>(&grid), sizeof(kernels::kGridIq2Xxs)));
    check(cudaMemcpy(grid, kernels::kGridIq2Xxs, sizeof(kernels::kGridIq2Xxs),
                     cudaMemcpyHostToDevice));
    launch.grid_iq2 = reinterpret_cast<const std::uint64_t*>(grid);
    check(cudaMalloc(reinterpret_cast<void**>(&weights), weight_bytes));
    check(cudaMalloc(reinterpret_cast<void**>(&activations), activation_bytes));
    check(cudaMalloc(reinterpret_cast<void**>(&launch.workspace), workspace_bytes));
    std::mt19937 random(1);
    std::vector<std::uint32_t> host(std::size_t{16} << 20);
    for (std::uint32_t& word : host) word = random() & 0x3f3f3f3fu;  // no f16 of 2 or more
    fill(weights, weight_bytes, host.data(), host.size() * 4);
    std::normal_distribution<float> normal;
    std::vector<float> floats(std::size_t{4} << 20);
    for (float& value : floats) value = normal(random);
    fill(activations, activation_bytes, floats.data(), floats.size() * 4);
  }

  static void fill(std::byte* to, std::size_t bytes, const void* from, std::size_t n) {
    for (std::size_t at = 0; at < bytes; at += n) {
      check(cudaMemcpy(to + at, from, std::min(n, bytes - at), cudaMemcpyHostToDevice));
    }
  }

  /// Microseconds of one of `n` ops that enqueue(i) records, i < n.
  double time(int n, const std::function<cudaError_t(int)>& enqueue) const {
    check(cudaStreamBeginCapture(launch.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; ++i) check(enqueue(i));
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(launch.stream, &graph));
    cudaGraphExec_t exec = nullptr;
    check(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin = nullptr, end = nullptr;
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    std::vector<float> ms;
    for (int i = 0; i < 9; ++i) {
      check(cudaEventRecord(begin, launch.stream));
      check(cudaGraphLaunch(exec, launch.stream));
      check(cudaEventRecord(end, launch.stream));
      check(cudaEventSynchronize(end));
      float one = 0;
      check(cudaEventElapsedTime(&one, begin, end));
      if (i > 1) ms.push_back(one);
    }
    check(cudaGraphExecDestroy(exec));
    check(cudaGraphDestroy(graph));
    check(cudaEventDestroy(begin));
    check(cudaEventDestroy(end));
    std::nth_element(ms.begin(), ms.begin() + 3, ms.end());
    return static_cast<double>(ms[3]) * 1000 / n;
  }
};

/// A number of the bits of `n` results, by which two builds can be compared.
std::uint64_t bits_of(const float* device, std::size_t n) {
  std::vector<std::uint32_t> words(n);
  check(cudaMemcpy(words.data(), device, n * 4, cudaMemcpyDeviceToHost));
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::uint32_t word : words) hash = (hash ^ word) * 0x100000001b3u;
  return hash;
}

void report(const std::string& name, std::int32_t rows, double us, double bytes, double flop,
            std::uint64_t bits) {
  std::printf("%-12s %5d rows %10.1f us %8.0f GB/s %8.1f TFLOP/s  bits %016llx\n", name.c_str(),
              rows, us, bytes / us / 1e3, flop / us / 1e6, static_cast<unsigned long long>(bits));
  std::fflush(stdout);
}

struct Matrix {
  DType type;
  std::int64_t n_in, n_out;  // n_in of one group
};

std::size_t bytes_of(const Matrix& m, std::int64_t n_mats = 1) {
  return static_cast<std::size_t>(row_bytes(m.type, m.n_in) * m.n_out * n_mats);
}

struct Dense {
  const char* name;
  double per_model;  // how often a step has it
  std::vector<Matrix> parts;
  std::int32_t n_groups = 1;
  bool exact = false;
};

double run(const Bench& bench, const Dense& op, std::int32_t rows, const std::int32_t* n_rows) {
  std::size_t bytes = 0;
  double flop = 0;
  for (const Matrix& m : op.parts) {
    bytes += bytes_of(m);
    flop += 2.0 * rows * static_cast<double>(m.n_in * m.n_out);
  }
  const int copies = rows > 64 ? 3 : static_cast<int>(std::max<std::size_t>(4, kRotated / bytes));
  const auto enqueue = [&](int i) {
    MatmulArgs args;
    args.n_rows = n_rows;
    args.max_rows = rows;
    args.n_groups = op.n_groups;
    args.exact = op.exact;
    args.x = reinterpret_cast<const float*>(bench.activations);
    std::byte* weight = bench.weights + static_cast<std::size_t>(i) * ((bytes + 255) / 256 * 256) %
                                            (bench.weight_bytes - (std::size_t{1} << 30));
    std::byte* y = bench.activations + bench.activation_bytes / 2;
    for (const Matrix& m : op.parts) {
      args.parts[static_cast<std::size_t>(args.n_parts++)] = {{weight, m.type, m.n_in, m.n_out, 1},
                                                              reinterpret_cast<float*>(y)};
      weight += (bytes_of(m) + 255) / 256 * 256;
      y += static_cast<std::size_t>(rows * m.n_out) * 4;
    }
    return matmul(bench.launch, args, bench.precision);
  };
  const double us = bench.time(copies, enqueue);
  std::size_t n = 0;
  for (const Matrix& m : op.parts) n += static_cast<std::size_t>(rows * m.n_out);
  report(op.name, rows, us, static_cast<double>(bytes), flop,
         bits_of(reinterpret_cast<const float*>(bench.activations + bench.activation_bytes / 2),
                 std::min(n, std::size_t{1} << 20)));
  return us * op.per_model;
}

double run_experts(const Bench& bench, std::int32_t rows, const std::int32_t* n_rows) {
  constexpr std::int32_t kExperts = 256, kUsed = 6;
  constexpr std::int64_t kD = 4096, kF = 2048;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows) * kUsed);
  std::mt19937 random(3);
  std::vector<bool> touched(kExperts);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto row = i / kUsed * kUsed;
    do {
      ids[i] = static_cast<std::int32_t>(random() % kExperts);
    } while (std::find(ids.begin() + static_cast<std::ptrdiff_t>(row),
                       ids.begin() + static_cast<std::ptrdiff_t>(i),
                       ids[i]) != ids.begin() + static_cast<std::ptrdiff_t>(i));
    touched[static_cast<std::size_t>(ids[i])] = true;
  }
  std::int32_t* device_ids = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&device_ids), ids.size() * 4));
  check(cudaMemcpy(device_ids, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
  const Matrix gate{DType::iq2_xxs, kD, kF}, down{DType::q2_k, kF, kD};
  const Matrix shared_gate{DType::q8_0, kD, kF}, shared_down{DType::q8_0, kF, kD};
  const double n_touched = static_cast<double>(std::count(touched.begin(), touched.end(), true));
  const double bytes = n_touched * static_cast<double>(2 * bytes_of(gate) + bytes_of(down)) +
                       static_cast<double>(3 * bytes_of(shared_gate));
  const std::size_t all = 2 * bytes_of(gate, kExperts) + bytes_of(down, kExperts) +
                          2 * bytes_of(shared_gate) + bytes_of(shared_down);
  // Another copy, or the ids' experts in another place of the same one: both are new to the cache.
  const int copies = rows > 64 ? 1 : 12;
  const auto enqueue = [&](int i) {
    ExpertsArgs args;
    args.step.n_rows = n_rows;
    args.step.max_rows = rows;
    auto* x = reinterpret_cast<float*>(bench.activations);
    args.x = x;
    args.ids = device_ids;
    args.weights = x;
    std::byte* weight = bench.weights + static_cast<std::size_t>(i) * (std::size_t{96} << 20) %
                                            (bench.weight_bytes - all - (std::size_t{1} << 20)) /
                                            4096 * 4096;
    const auto take = [&](const Matrix& m, std::int64_t n) {
      const Weight w{weight, m.type, m.n_in, m.n_out, n};
      weight += (bytes_of(m, n) + 255) / 256 * 256;
      return w;
    };
    args.routed.gate = take(gate, kExperts);
    args.routed.up = take(gate, kExperts);
    args.routed.down = take(down, kExperts);
    args.routed.clamp = 10;
    args.shared.gate = take(shared_gate, 1);
    args.shared.up = take(shared_gate, 1);
    args.shared.down = take(shared_down, 1);
    args.shared.clamp = 10;
    args.n_used = kUsed;
    args.hidden = x + bench.activation_bytes / 16;
    args.partial = x + bench.activation_bytes / 8;
    args.y = x + bench.activation_bytes / 16 * 3;
    return experts(bench.launch, args, bench.precision);
  };
  const double us = bench.time(copies, enqueue);
  const double flop = 2.0 * rows * 3 * static_cast<double>(kD * kF) * (kUsed + 1);
  report(
      "experts", rows, us, bytes, flop,
      bits_of(reinterpret_cast<const float*>(bench.activations) + bench.activation_bytes / 16 * 3,
              static_cast<std::size_t>(rows * kD)));
  check(cudaFree(device_ids));
  return us * 43;
}

int main_of(int argc, char** argv) {
  Bench bench;
  std::vector<std::int32_t> row_counts;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "fast") == 0) {
      bench.precision = Precision::fast;
    } else if (std::strcmp(argv[i], "exact") != 0) {
      row_counts.push_back(std::atoi(argv[i]));
    }
  }
  if (row_counts.empty()) row_counts = {1, 4, 16, 2048};
  std::printf("precision %s\n", bench.precision == Precision::exact ? "exact" : "fast");
  constexpr DType kQ8 = DType::q8_0, kF16 = DType::f16;
  const std::vector<Dense> ops{{"q_a, kv", 43, {{kQ8, 4096, 1024}, {kQ8, 4096, 512}}},
                               {"q_b", 43, {{kQ8, 1024, 32768}}},
                               {"output_a", 43, {{kQ8, 4096, 8192}}, 8},
                               {"output_b", 43, {{kQ8, 8192, 4096}}},
                               {"router", 43, {{kF16, 4096, 256}}, 1, true},
                               {"compress 4",
                                21,
                                {{kF16, 4096, 1024},
                                 {kF16, 4096, 1024},
                                 {kF16, 4096, 256},
                                 {kF16, 4096, 256},
                                 {kF16, 4096, 64}}},
                               {"compress 128", 20, {{kF16, 4096, 512}, {kF16, 4096, 512}}},
                               {"index q_b", 21, {{kF16, 1024, 8192}}},
                               {"head", 1, {{kQ8, 4096, 129280}}}};
  for (const std::int32_t rows : row_counts) {
    std::int32_t* n_rows = nullptr;
    check(cudaMalloc(reinterpret_cast<void**>(&n_rows), 4));
    check(cudaMemcpy(n_rows, &rows, 4, cudaMemcpyHostToDevice));
    double model = run_experts(bench, rows, n_rows);
    for (const Dense& op : ops) {
      if (rows > 64 && std::strcmp(op.name, "head") == 0) continue;  // a step wants few logits
      model += run(bench, op, rows, n_rows);
    }
    std::printf("products of a step of %d rows: %.3f ms, %.1f rows/s\n\n", rows, model / 1000,
                rows / model * 1e6);
    check(cudaFree(n_rows));
  }
  return 0;
}

}  // namespace
}  // namespace ebb::cuda

int main(int argc, char** argv) { return ebb::cuda::main_of(argc, argv); }
