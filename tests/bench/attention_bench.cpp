// Speed of select, attend and heads on one thread. FLOP counts a multiply and an add per key value
// and head, and the same again per output value of attend.
//   attention_bench --benchmark_filter=select --benchmark_repetitions=5

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "kernels/cpu/attend.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/select.h"
#include "kernels/row_format.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/step.h"

namespace ebb::test {
namespace {

const char* name_of(RowFormat format) {
  const char* const names[] = {"f32", "f16", "fp8", "fp4"};
  return names[static_cast<int>(format)];
}

void fill(Random& random, OwnedStore& rows, std::int32_t d, std::int32_t n_rot) {
  for (std::int64_t i = 0; i < rows.store.n_rows; ++i) {
    const Floats x = normal_floats(random, d);
    encode_row(rows.store.format, d, n_rot, x.data(), rows.row(0, i));
  }
}

/// Runs every task of a list in order, with scratch made once.
void measure(benchmark::State& state, const cpu::PhaseList& list, double flops) {
  std::size_t bytes = 64;
  for (const auto& phase : list) bytes = std::max(bytes, phase->scratch_bytes());
  const auto free = [](std::byte* p) { ::operator delete[](p, std::align_val_t{64}); };
  const std::unique_ptr<std::byte, decltype(free)> scratch(
      static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})), free);
  for (auto _ : state) {
    for (const auto& phase : list) {
      const std::int64_t n_tasks = phase->n_tasks();
      for (std::int64_t task = 0; task < n_tasks; ++task) phase->run(task, scratch.get());
    }
  }
  state.counters["FLOP"] = benchmark::Counter(flops * static_cast<double>(state.iterations()),
                                              benchmark::Counter::kIsRate);
}

void select(benchmark::State& state, std::int32_t n_heads, std::int32_t d, std::int32_t top_k,
            RowFormat format, std::int32_t n_chunks, std::int32_t n_rows) {
  Random random(1);
  OwnedStore keys(format, d, 0, n_chunks);
  fill(random, keys, d, 0);
  Step step;
  step.add_run(0, 4 * n_chunks - n_rows, n_rows);
  const Floats q = normal_floats(random, std::int64_t{n_rows} * n_heads * d);
  const Floats weight = normal_floats(random, std::int64_t{n_rows} * n_heads);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n_rows * top_k));
  std::vector<std::int32_t> count(static_cast<std::size_t>(n_rows));
  SelectArgs a;
  a.step = step.view();
  a.q = q.data();
  a.weight = weight.data();
  a.keys = keys.store;
  a.n_heads = n_heads;
  a.d = d;
  a.ratio = 4;
  a.top_k = top_k;
  a.ids = ids.data();
  a.count = count.data();
  cpu::PhaseList list;
  if (!cpu::add_select(list, a)) return state.SkipWithError("refused");
  measure(state, list, 2.0 * n_rows * n_heads * d * n_chunks);
}

void attend(benchmark::State& state, std::int32_t n_heads, std::int32_t d, std::int32_t n_pairs,
            RowFormat format, std::int32_t n_chosen, std::int32_t n_rows) {
  Random random(2);
  constexpr std::int32_t kWindow = 128, kFirst = 100000;
  OwnedStore ring(format, d, 2 * n_pairs, kWindow - 1 + n_rows);
  OwnedStore chunks(format, d, 2 * n_pairs, (kFirst + n_rows) / 4);
  fill(random, ring, d, 2 * n_pairs);
  fill(random, chunks, d, 2 * n_pairs);
  Step step;
  step.add_run(0, kFirst, n_rows);
  const Floats q = normal_floats(random, std::int64_t{n_rows} * n_heads * d);
  const Floats sink = normal_floats(random, n_heads);
  const Floats cos_sin(static_cast<std::size_t>(n_rows * n_pairs * 2), 0.5f);
  Floats out(q.size());
  std::vector<std::int32_t> ids;
  std::uniform_int_distribution<std::int32_t> any(0, kFirst / 4 - 1);
  for (std::int32_t r = 0; r < n_rows; ++r) {
    for (std::int32_t i = 0; i < n_chosen; ++i) ids.push_back(any(random));
    std::sort(ids.end() - n_chosen, ids.end());
  }
  const std::vector<std::int32_t> count(static_cast<std::size_t>(n_rows), n_chosen);
  AttendArgs a;
  a.step = step.view();
  a.q = q.data();
  a.ring = ring.store;
  a.chunks = chunks.store;
  a.ids = ids.data();
  a.count = count.data();
  a.top_k = n_chosen;
  a.ratio = 4;
  a.window = kWindow;
  a.sink = sink.data();
  a.scale = 0.04f;
  a.cos_sin = cos_sin.data();
  a.n_pairs = n_pairs;
  a.n_heads = n_heads;
  a.d = d;
  a.out = out.data();
  cpu::PhaseList list;
  if (!cpu::add_attend(list, a)) return state.SkipWithError("refused");
  measure(state, list, 4.0 * n_rows * n_heads * d * (kWindow + n_chosen));
}

void heads(benchmark::State& state, std::int32_t n_heads, std::int32_t d, bool index,
           std::int32_t n_rows) {
  Random random(3);
  Step step;
  step.add_run(0, 5000, n_rows);
  Floats x = normal_floats(random, std::int64_t{n_rows} * n_heads * d);
  const Floats cos_sin(static_cast<std::size_t>(n_rows * 64), 0.70710678f);
  HeadsArgs a;
  a.step = step.view();
  a.x = x.data();
  a.n_heads = n_heads;
  a.d = d;
  a.normalise = true;
  a.eps = 1e-6f;
  a.cos_sin = cos_sin.data();
  a.n_pairs = 32;
  a.rounding = index ? Rounding::hadamard_fp4 : Rounding::none;
  cpu::PhaseList list;
  if (!cpu::add_heads(list, a)) return state.SkipWithError("refused");
  measure(state, list, 1.0 * n_rows * n_heads * d);
}

void register_all() {
  using benchmark::RegisterBenchmark;
  for (const RowFormat format : {RowFormat::f32, RowFormat::fp8, RowFormat::fp4}) {
    for (const std::int32_t n_rows : {1, 512}) {
      const std::string tail = std::string(name_of(format)) + "/rows:" + std::to_string(n_rows);
      RegisterBenchmark(("select/demo 4096 chunks/" + tail).c_str(),
                        [=](benchmark::State& s) { select(s, 32, 64, 64, format, 4096, n_rows); });
      RegisterBenchmark(("select/full 4096 chunks/" + tail).c_str(), [=](benchmark::State& s) {
        select(s, 64, 128, 512, format, 4096, n_rows / 4 + 1);
      });
    }
  }
  for (const RowFormat format : {RowFormat::f32, RowFormat::f16, RowFormat::fp8}) {
    for (const std::int32_t n_rows : {1, 64}) {
      const std::string tail = std::string(name_of(format)) + "/rows:" + std::to_string(n_rows);
      RegisterBenchmark(("attend/demo/" + tail).c_str(),
                        [=](benchmark::State& s) { attend(s, 8, 96, 16, format, 64, n_rows); });
      RegisterBenchmark(("attend/full/" + tail).c_str(),
                        [=](benchmark::State& s) { attend(s, 64, 512, 32, format, 512, n_rows); });
    }
  }
  for (const std::int32_t n_rows : {1, 64}) {
    const std::string tail = "/rows:" + std::to_string(n_rows);
    RegisterBenchmark(("heads/64x512" + tail).c_str(),
                      [=](benchmark::State& s) { heads(s, 64, 512, false, n_rows); });
    RegisterBenchmark(("heads/64x128 index" + tail).c_str(),
                      [=](benchmark::State& s) { heads(s, 64, 128, true, n_rows); });
  }
}

}  // namespace
}  // namespace ebb::test

int main(int argc, char** argv) {
  ebb::test::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
