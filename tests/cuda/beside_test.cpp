// Plans that run beside the steps, through compute_cuda's own interface. Host calls hold a plan
// where a test wants it, so that what overlaps and what waits does not depend on speed.
// Without a CUDA device it says so and exits with 77.

#define BOOST_TEST_MODULE cuda_beside
#define BOOST_TEST_DYN_LINK
#define BOOST_TEST_NO_MAIN
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "core/api/compute.h"
#include "kernels/ops/ops.h"
#include "kernels/rope.h"
#include "tests/core/bare_host.h"
#include "tests/core/support.h"
#include "tests/cuda/device.h"
#include "tests/kernels/scoring_cases.h"

extern "C" const ebb::ModuleDescriptor ebb_module;

using namespace ebb;
using namespace ebb::test;
using namespace std::chrono_literals;

namespace {

template <class T>
void require_done(const Result<T>& result) {
  const std::string message = result ? "" : result.error().message;
  BOOST_REQUIRE_MESSAGE(result.has_value(), message);
}
template <class T>
T value_of(Result<T> result) {
  require_done(result);
  return *std::move(result);
}

struct Destroy {
  void operator()(Compute* compute) const noexcept { ebb_module.destroy(compute); }
};
using ComputePtr = std::unique_ptr<Compute, Destroy>;

ComputePtr make_compute(std::string_view keys = "") {
  static BareHost host;
  const auto options = options_of(keys, "compute");
  Result<Module*> made = ebb_module.create(host, *options);
  require_done(made);
  return ComputePtr(static_cast<Compute*>(static_cast<Module*>(*made)));
}

/// Holds a plan from its host call on until it is opened.
struct Gate {
  std::atomic<bool> reached{false}, open{false};

  HostCallArgs call() {
    return {[](void* gate, std::int32_t) noexcept {
              auto* const own = static_cast<Gate*>(gate);
              own->reached = true;
              // A test that fails must not hang.
              for (int i = 0; i < 10000 && !own->open; ++i) std::this_thread::sleep_for(1ms);
            },
            this, 0};
  }
  bool wait_until_reached() const {
    for (int i = 0; i < 5000 && !reached; ++i) std::this_thread::sleep_for(1ms);
    return reached;
  }
};

struct Fixture {
  Gate gate;  // outlives the plans
  ComputePtr compute;

  explicit Fixture(std::string_view keys = "") : compute(make_compute(keys)) {}
  ~Fixture() { gate.open = true; }

  template <class T>
  T* device(const std::vector<T>& values) {
    const std::uint64_t bytes = values.size() * sizeof(T);
    auto* const at = reinterpret_cast<T*>(value_of(compute->allocate(bytes, "a test")));
    require_done(compute->write(at, values.data(), bytes));
    return at;
  }
  /// Words of host memory that plans write and a test may look at: it is never cached on the host.
  volatile std::int32_t* host_words(std::size_t n) {
    return reinterpret_cast<std::int32_t*>(
        value_of(compute->allocate_host(n * sizeof(std::int32_t), "a test")));
  }
  template <class Record>
  PlanId plan(Record record) {
    Ops* const ops = value_of(compute->begin_plan());
    record(*ops);
    return value_of(compute->end_plan());
  }
  std::int32_t read(const std::int32_t* at) {
    std::int32_t word = 0;
    require_done(compute->read(&word, at, sizeof(word)));
    return word;
  }
};

CopyArgs copy_word(volatile std::int32_t* to, const volatile std::int32_t* from) {
  return {const_cast<std::int32_t*>(to), const_cast<std::int32_t*>(from), sizeof(std::int32_t)};
}

}  // namespace

BOOST_AUTO_TEST_CASE(steps_do_not_wait_for_a_plan_beside) {
  Fixture f;
  std::int32_t* const a = f.device<std::int32_t>({7});
  std::int32_t* const b = f.device<std::int32_t>({0});
  volatile std::int32_t* const host = f.host_words(1);
  const PlanId beside = f.plan([&](Ops& ops) {
    require_done(ops.host_call(f.gate.call()));
    require_done(ops.copy(copy_word(host, a)));
  });
  const PlanId step = f.plan([&](Ops& ops) { require_done(ops.copy(copy_word(b, a))); });
  require_done(f.compute->wait_beside(beside));  // there is nothing to wait for
  require_done(f.compute->start_beside(beside));
  BOOST_REQUIRE(f.gate.wait_until_reached());
  // The plan is held; steps, writes, reads and waits pass.
  for (const std::int32_t word : {8, 9}) {
    require_done(f.compute->start(step));
    require_done(f.compute->wait());
    BOOST_TEST(f.read(b) == word - 1);
    require_done(f.compute->write(a, &word, sizeof(word)));
    BOOST_TEST(f.read(a) == word);
  }
  BOOST_TEST(*host == 0);
  auto waited = std::async(std::launch::async, [&] { return f.compute->wait_beside(beside); });
  BOOST_TEST((waited.wait_for(50ms) == std::future_status::timeout));
  f.gate.open = true;
  require_done(waited.get());
  BOOST_TEST(*host == 9);
}

BOOST_AUTO_TEST_CASE(a_plan_beside_waits_for_what_was_started_before_it) {
  Fixture f;
  std::int32_t* const a = f.device<std::int32_t>({7});
  std::int32_t* const b = f.device<std::int32_t>({0});
  volatile std::int32_t* const host = f.host_words(1);
  const PlanId step = f.plan([&](Ops& ops) {
    require_done(ops.host_call(f.gate.call()));
    require_done(ops.copy(copy_word(b, a)));
  });
  const PlanId beside = f.plan([&](Ops& ops) { require_done(ops.copy(copy_word(host, b))); });
  require_done(f.compute->start(step));
  require_done(f.compute->start_beside(beside));
  BOOST_REQUIRE(f.gate.wait_until_reached());
  std::this_thread::sleep_for(50ms);
  BOOST_TEST(*host == 0);
  f.gate.open = true;
  require_done(f.compute->wait_beside(beside));
  BOOST_TEST(*host == 7);
  // So does a write.
  for (std::int32_t word = 10; word < 30; ++word) {
    require_done(f.compute->write(b, &word, sizeof(word)));
    require_done(f.compute->start_beside(beside));
    require_done(f.compute->wait_beside(beside));
    BOOST_TEST(*host == word);
  }
}

BOOST_AUTO_TEST_CASE(wait_beside_waits_for_its_own_plan_alone) {
  Fixture f;
  std::int32_t* const a = f.device<std::int32_t>({7});
  volatile std::int32_t* const host = f.host_words(2);
  const PlanId first = f.plan([&](Ops& ops) { require_done(ops.copy(copy_word(host, a))); });
  const PlanId held = f.plan([&](Ops& ops) {
    require_done(ops.host_call(f.gate.call()));
    require_done(ops.copy(copy_word(host + 1, a)));
  });
  require_done(f.compute->start_beside(first));
  require_done(f.compute->start_beside(held));
  require_done(f.compute->wait_beside(first));
  BOOST_TEST(host[0] == 7);
  BOOST_TEST(host[1] == 0);
  f.gate.open = true;
  require_done(f.compute->wait_beside(held));
  BOOST_TEST(host[1] == 7);
}

BOOST_AUTO_TEST_CASE(the_module_waits_for_a_plan_beside_before_it_goes) {
  for (const bool step_too : {false, true}) {
    std::atomic<bool> over{false};
    Fixture f;
    std::int32_t* const a = f.device<std::int32_t>(std::vector<std::int32_t>(64, 7));
    const PlanId beside = f.plan([&](Ops& ops) {
      require_done(ops.host_call(f.gate.call()));
      require_done(ops.copy({a + 16, a, sizeof(*a)}));
      require_done(ops.host_call(
          {[](void* flag, std::int32_t) noexcept { *static_cast<std::atomic<bool>*>(flag) = true; },
           &over, 0}));
    });
    const PlanId step = f.plan([&](Ops& ops) { require_done(ops.copy({a + 32, a, sizeof(*a)})); });
    require_done(f.compute->start_beside(beside));
    if (step_too) require_done(f.compute->start(step));
    BOOST_REQUIRE(f.gate.wait_until_reached());
    std::thread opener([&] {
      std::this_thread::sleep_for(50ms);
      f.gate.open = true;
    });
    f.compute.reset();
    BOOST_TEST(over);
    opener.join();
  }
}

BOOST_AUTO_TEST_CASE(plans_beside_have_the_results_of_plain_ones) {
  for (const char* const keys : {"", "profile = true", "early_start = false", "poison = true",
                                 "graph = false", "graph = false\nprofile = true"}) {
    Fixture f(keys);
    Random random(91);
    // A scorer's plan: angles, heads, scores. A step: selection by the same keys.
    const std::int32_t n_chunks = 20000, n_heads = 64, d = 128, n_pairs = 32;
    ScoreBench bench(n_heads, d, 4, RowFormat::fp8, 1, n_chunks);
    bench.write_keys(random, 1, n_chunks, false);
    Step step;
    step.add_run(0, 4 * n_chunks - 1, 1);
    bench.write_queries(random, step, false);
    std::vector<double> frequency(n_pairs);
    rope_frequencies({160000, 16, 65536, 32, 1}, n_pairs, frequency.data());
    StepView view;
    view.n_rows = f.device<std::int32_t>({1});
    view.pos = f.device(step.pos);
    view.seq = view.run_start = f.device<std::int32_t>({0});
    view.max_rows = 1;
    RowStore keys_there = bench.keys.store;
    keys_there.data = f.device(bench.keys.memory);
    float* const q = f.device(bench.q);
    float* const weight = f.device(bench.weight);
    float* const heads = f.device(bench.q);
    float* const table = f.device(Floats(2 * n_pairs));
    float* const logits = f.device(Floats(n_chunks));
    std::int32_t* const ids = f.device(std::vector<std::int32_t>(513));
    const PlanId scores = f.plan([&](Ops& ops) {
      require_done(ops.copy({heads, q, bench.q.size() * sizeof(float)}));
      require_done(ops.rope_table({view, f.device(frequency), n_pairs, 0, table, true}));
      require_done(
          ops.heads({view, heads, n_heads, d, false, 0, table, n_pairs, Rounding::bf16_hadamard}));
      require_done(
          ops.score({view, heads, weight, 0.01f, keys_there, n_heads, d, 4, logits, n_chunks}));
    });
    const PlanId selection = f.plan([&](Ops& ops) {
      SelectArgs a;
      a.step = view;
      a.q = q;
      a.weight = weight;
      a.keys = keys_there;
      a.n_heads = n_heads;
      a.d = d;
      a.ratio = 4;
      a.top_k = 512;
      a.ids = ids;
      a.count = ids + 512;
      require_done(ops.select(a));
    });
    const auto results = [&] {
      Floats scored(n_chunks);
      std::vector<std::int32_t> chosen(513);
      require_done(f.compute->read(scored.data(), logits, scored.size() * sizeof(float)));
      require_done(f.compute->read(chosen.data(), ids, chosen.size() * sizeof(std::int32_t)));
      return std::pair(scored, chosen);
    };
    const auto clear = [&] {
      const Floats zeros(n_chunks);
      require_done(f.compute->write(logits, zeros.data(), zeros.size() * sizeof(float)));
      require_done(f.compute->write(ids, zeros.data(), 513 * sizeof(std::int32_t)));
    };
    require_done(f.compute->start(scores));
    require_done(f.compute->start(selection));
    const auto want = results();
    BOOST_TEST(want.second[512] == 512);
    BOOST_TEST(std::count(want.first.begin(), want.first.end(), 0.0f) < 10);
    for (int round = 0; round < 10; ++round) {
      clear();
      require_done(f.compute->start_beside(scores));
      for (int i = 0; i < 5; ++i) require_done(f.compute->start(selection));
      require_done(f.compute->wait_beside(scores));
      BOOST_TEST((results() == want));
    }
  }
}

int main(int argc, char** argv) {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
    std::fprintf(stderr, "SKIPPED: no CUDA device here; no plan was run beside another\n");
    return 77;
  }
  return boost::unit_test::unit_test_main(&init_unit_test, argc, argv);
}
