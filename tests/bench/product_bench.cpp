// Speed of matmul and experts on one thread. bytes_per_second counts stored weights; FLOP counts
// a multiply and an add per weight and activation row.
//   product_bench --benchmark_filter=matmul/Q8_0 --benchmark_repetitions=5

#include <benchmark/benchmark.h>
#include <hwy/highway.h>

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels/cpu/experts.h"
#include "kernels/cpu/matmul.h"
#include "tests/kernels/random_weights.h"

namespace ebb::cpu {
namespace {

/// Scratch for every phase of a list, then all their tasks, in order.
class Runner {
 public:
  explicit Runner(const PhaseList& phases) : phases_(phases) {
    std::size_t bytes = 64;
    for (const auto& phase : phases) bytes = std::max(bytes, phase->scratch_bytes());
    scratch_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
  }
  void run() {
    for (const auto& phase : phases_) {
      const std::int64_t n_tasks = phase->n_tasks();
      for (std::int64_t task = 0; task < n_tasks; ++task) phase->run(task, scratch_.get());
    }
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  const PhaseList& phases_;
  std::unique_ptr<std::byte, Free> scratch_;
};

void report(benchmark::State& state, double weight_bytes, double flops) {
  const auto iterations = static_cast<double>(state.iterations());
  state.SetBytesProcessed(static_cast<std::int64_t>(weight_bytes * iterations));
  state.counters["FLOP"] = benchmark::Counter(flops * iterations, benchmark::Counter::kIsRate);
}

void matmul(benchmark::State& state, DType type, Precision precision, std::int64_t n_in,
            std::int64_t n_out, std::int32_t n_rows) {
  const test::RandomWeight w(type, n_out, n_in, 1);
  const std::vector<float> x = test::random_floats(n_rows * n_in, 2);
  std::vector<float> y(static_cast<std::size_t>(n_rows * n_out));
  MatmulArgs args;
  args.n_rows = &n_rows;
  args.max_rows = n_rows;
  args.x = x.data();
  args.n_parts = 1;
  args.parts[0] = {w.weight, y.data()};
  PhaseList phases;
  if (!add_matmul(phases, args, precision)) return state.SkipWithError("refused");
  Runner runner(phases);
  for (auto _ : state) runner.run();
  report(state, static_cast<double>(w.bytes.size()),
         2.0 * static_cast<double>(n_in) * static_cast<double>(n_out) * n_rows);
}

void experts(benchmark::State& state, DType gate_type, DType down_type, Precision precision,
             std::int32_t n_rows) {
  constexpr std::int32_t kExperts = 32;
  constexpr std::int32_t kUsed = 6;
  constexpr std::int64_t kD = 4096;
  constexpr std::int64_t kF = 2048;
  const test::RandomWeight gate(gate_type, kF, kD, 1, kExperts), up(gate_type, kF, kD, 2, kExperts),
      down(down_type, kD, kF, 3, kExperts);
  const test::RandomWeight shared_gate(DType::q8_0, kF, kD, 4), shared_up(DType::q8_0, kF, kD, 5),
      shared_down(DType::q8_0, kD, kF, 6);
  const auto rows = static_cast<std::size_t>(n_rows);
  const std::vector<float> x = test::random_floats(n_rows * kD, 7);
  std::vector<std::int32_t> ids(rows * kUsed);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 5 % kExperts);
  const std::vector<float> weights(ids.size(), 0.25f);
  std::vector<float> hidden(rows * (kUsed + 1) * kF), partial(rows * (kUsed + 1) * kD),
      y(rows * kD);
  ExpertsArgs args;
  args.step.n_rows = &n_rows;
  args.step.max_rows = n_rows;
  args.x = x.data();
  args.ids = ids.data();
  args.weights = weights.data();
  args.routed = {gate.weight, up.weight, down.weight, 10};
  args.shared = {shared_gate.weight, shared_up.weight, shared_down.weight, 10};
  args.n_used = kUsed;
  args.hidden = hidden.data();
  args.partial = partial.data();
  args.y = y.data();
  PhaseList phases;
  if (!add_experts(phases, args, precision)) return state.SkipWithError("refused");
  Runner runner(phases);
  for (auto _ : state) runner.run();
  const double used = n_rows == 1 ? kUsed : kExperts;
  report(state,
         (static_cast<double>(gate.bytes.size()) * 2 + static_cast<double>(down.bytes.size())) /
                 kExperts * used +
             static_cast<double>(shared_gate.bytes.size()) * 3,
         2.0 * 3 * kD * kF * (kUsed + 1) * n_rows);
}

/// What the other figures are fractions of: multiply-adds that stay in registers, with the widest
/// vectors that the compiler may use (build with -march=native).
void peak(benchmark::State& state) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999f);
  auto s0 = hn::Iota(d, 0), s1 = hn::Iota(d, 1), s2 = hn::Iota(d, 2), s3 = hn::Iota(d, 3),
       s4 = hn::Iota(d, 4), s5 = hn::Iota(d, 5), s6 = hn::Iota(d, 6), s7 = hn::Iota(d, 7),
       s8 = hn::Iota(d, 8), s9 = hn::Iota(d, 9);
  constexpr int kSteps = 100000;
  for (auto _ : state) {
    for (int step = 0; step < kSteps; ++step) {
      s0 = hn::MulAdd(s0, factor, factor);
      s1 = hn::MulAdd(s1, factor, factor);
      s2 = hn::MulAdd(s2, factor, factor);
      s3 = hn::MulAdd(s3, factor, factor);
      s4 = hn::MulAdd(s4, factor, factor);
      s5 = hn::MulAdd(s5, factor, factor);
      s6 = hn::MulAdd(s6, factor, factor);
      s7 = hn::MulAdd(s7, factor, factor);
      s8 = hn::MulAdd(s8, factor, factor);
      s9 = hn::MulAdd(s9, factor, factor);
    }
    const auto low = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
    const auto high = hn::Add(hn::Add(s4, s5), hn::Add(s6, hn::Add(s7, hn::Add(s8, s9))));
    benchmark::DoNotOptimize(hn::GetLane(hn::Add(low, high)));
  }
  report(state, 0, 2.0 * 10 * static_cast<double>(hn::Lanes(d)) * kSteps);
}

void add_all() {
  benchmark::RegisterBenchmark("peak", peak);
  for (const Precision precision : {Precision::exact, Precision::fast}) {
    const std::string mode = precision == Precision::fast ? "fast" : "exact";
    for (const DType type : test::kWeightTypes) {
      for (const std::int32_t n_rows : {1, 2, 4, 16, 128}) {
        const std::int64_t n_out = n_rows > 4 ? 1024 : 8192;
        const std::string name = "matmul/" + std::string(dtype_traits(type)->name) + "/" + mode +
                                 "/4096x" + std::to_string(n_out) + "/" + std::to_string(n_rows);
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
          matmul(state, type, precision, 4096, n_out, n_rows);
        });
      }
    }
    for (const std::int32_t n_rows : {1, 2, 16, 128}) {
      benchmark::RegisterBenchmark(
          ("experts/IQ2_XXS,Q2_K/" + mode + "/" + std::to_string(n_rows)).c_str(),
          [=](benchmark::State& state) {
            experts(state, DType::iq2_xxs, DType::q2_k, precision, n_rows);
          });
    }
  }
}

}  // namespace
}  // namespace ebb::cpu

int main(int argc, char** argv) {
  ebb::cpu::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
