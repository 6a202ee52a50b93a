// Read bandwidth of main memory: the ceiling of decode, whose time goes into reading weights.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace {

/// `threads` threads read a region far larger than any cache, each its own part.
void read_stream(benchmark::State& state) {
  const auto n_threads = static_cast<std::size_t>(state.range(0));
  const std::size_t n = std::size_t{1} << 28;  // 2 GiB of 8-byte words
  const std::vector<std::uint64_t> data(n, 1);
  for (auto _ : state) {
    std::vector<std::uint64_t> sums(n_threads * 8);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < n_threads; ++t) {
      threads.emplace_back([&, t] {
        const std::uint64_t* const part = data.data() + n / n_threads * t;
        std::uint64_t sum[8] = {};
        for (std::size_t i = 0; i < n / n_threads; i += 8) {
          for (std::size_t k = 0; k < 8; ++k) sum[k] += part[i + k];
        }
        for (std::size_t k = 0; k < 8; ++k) sums[t * 8 + k] = sum[k];
      });
    }
    for (std::thread& thread : threads) thread.join();
    benchmark::DoNotOptimize(sums.data());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>(n * sizeof(std::uint64_t)));
}

BENCHMARK(read_stream)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
