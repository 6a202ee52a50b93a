#define BOOST_TEST_MODULE policies_contract
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <new>

#include "tests/policies/support.h"
#include "tests/policies/traces.h"

// What every policy has to keep to, run for each one that is installed.

namespace {

bool is_counting = false;
std::int64_t n_allocations = 0;

void* allocate(std::size_t size) {
  if (is_counting) ++n_allocations;
  if (void* const memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// For the program and every module in it.
void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace ebb::test {
namespace {

/// Passes everything on, and counts allocations of the policy alone.
class Watched final : public SwapPolicy {
 public:
  explicit Watched(SwapPolicy& policy) : policy_(policy) {}
  Status open(const SwapShape& shape) noexcept override { return policy_.open(shape); }
  void forget(std::int32_t sequence) noexcept override {
    const Count count;
    policy_.forget(sequence);
  }
  void selected(CacheId cache, std::span<const std::int32_t> chunks,
                const SlotView& slots) noexcept override {
    const Count count;
    policy_.selected(cache, chunks, slots);
  }
  void inserted(CacheId cache, std::int32_t chunk, SlotReason reason) noexcept override {
    const Count count;
    policy_.inserted(cache, chunk, reason);
  }
  void evicted(CacheId cache, std::int32_t chunk) noexcept override {
    const Count count;
    policy_.evicted(cache, chunk);
  }
  void scored(std::int32_t sequence, std::span<const float> scores) noexcept override {
    const Count count;
    policy_.scored(sequence, scores);
  }
  std::size_t admit(CacheId cache, std::span<const std::int32_t> missed,
                    std::span<std::int32_t> out) noexcept override {
    const Count count;
    return policy_.admit(cache, missed, out);
  }
  std::size_t victims(CacheId cache, std::span<ChunkId> out,
                      const SlotView& slots) noexcept override {
    const Count count;
    return policy_.victims(cache, out, slots);
  }

 private:
  struct Count {
    Count() { is_counting = true; }
    ~Count() { is_counting = false; }
  };
  SwapPolicy& policy_;
};

/// Every policy, trace, number of slots and staging; `moves` as Driver takes it.
template <class Body>
void for_each_case(const Body& body) {
  const std::vector<std::string> policies = all_policies();
  BOOST_REQUIRE_GE(policies.size(), 2u);
  for (const TestTrace& trace : all_traces()) {
    for (const std::int64_t slots : slot_counts(trace)) {
      for (const std::int64_t moves : {0, 16}) {
        for (const std::string& policy : policies) {
          BOOST_TEST_CONTEXT(policy << ", " << trace.name << ", " << slots << " slots, "
                                    << (moves > 0 ? "zero_copy" : "demand")) {
            body(policy, trace, slots, moves);
          }
        }
      }
    }
  }
}

bool same(const DriverCounts& a, const DriverCounts& b) {
  return a.hits == b.hits && a.misses == b.misses && a.evictions == b.evictions &&
         a.inserted == b.inserted && a.victims_asked == b.victims_asked;
}

BOOST_AUTO_TEST_CASE(every_answer_is_valid_and_nothing_is_allocated_after_open) {
  for_each_case(
      [](const std::string& name, const TestTrace& trace, std::int64_t slots, std::int64_t moves) {
        const SwapShape shape = shape_of(trace, slots);
        Policy policy(name, shape);
        Watched watched(*policy);
        Driver driver(watched, shape, 0, moves);
        n_allocations = 0;
        driver.run(trace);
        driver.end();
        BOOST_TEST(driver.fault() == "");
        BOOST_TEST(n_allocations == 0);
      });
}

BOOST_AUTO_TEST_CASE(the_allocation_counter_sees_what_a_module_allocates) {
  const SwapShape shape{1, 1, 64, 16, 4};
  Policy policy(all_policies().front(), shape);
  n_allocations = 0;
  is_counting = true;
  const Status status = (*policy).open({2, 4, 4096, 1024, 4});
  is_counting = false;
  BOOST_TEST(bool(status));
  BOOST_TEST(n_allocations > 0);
}

// Questions are the only work of a policy that can be seen from outside. The bound is for the whole
// trace: a policy may pay for many steps in one.
BOOST_AUTO_TEST_CASE(a_policy_asks_a_bounded_number_of_questions_per_decision) {
  for_each_case(
      [](const std::string& name, const TestTrace& trace, std::int64_t slots, std::int64_t moves) {
        const DriverCounts counts = run(name, trace, slots, "", moves);
        const std::int64_t decisions = counts.hits + counts.misses + counts.inserted;
        BOOST_TEST(counts.questions <= 4 * decisions);
      });
}

BOOST_AUTO_TEST_CASE(a_sequence_that_is_forgotten_leaves_nothing_behind) {
  for_each_case(
      [](const std::string& name, const TestTrace& trace, std::int64_t slots, std::int64_t moves) {
        const SwapShape shape = shape_of(trace, slots);
        Policy policy(name, shape);
        Driver driver(*policy, shape, 1, moves);
        driver.run(trace);
        const DriverCounts first = driver.counts();
        driver.end();
        driver.run(trace);
        DriverCounts second = driver.counts();
        second.hits -= first.hits;
        second.misses -= first.misses;
        second.evictions -= first.evictions;
        second.inserted -= first.inserted;
        second.victims_asked -= first.victims_asked;
        BOOST_TEST(same(first, second));
        BOOST_TEST(driver.fault() == "");
      });
}

BOOST_AUTO_TEST_CASE(sequences_do_not_see_each_other) {
  for (const std::string& name : all_policies()) {
    BOOST_TEST_CONTEXT(name) {
      const TestTrace one = with_prefill(churn_trace(2, 16, 200, 300, 2, 21, true));
      const TestTrace other = with_prefill(zipf_trace(2, 16, 200, 300, 0.9, 22));
      const SwapShape shape = shape_of(one, 24);
      Policy both(name, shape);
      Driver first(*both, shape, 0), second(*both, shape, 1);
      for (std::size_t t = 0; t < one.steps.size(); ++t) {
        first.step(one.steps[t]);
        second.step(other.steps[t]);
      }
      BOOST_TEST(same(first.counts(), run(name, one, 24)));
      BOOST_TEST(same(second.counts(), run(name, other, 24)));
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_asked_for_is_not_answered) {
  for (const std::string& name : all_policies()) {
    BOOST_TEST_CONTEXT(name) {
      const TestTrace trace = with_prefill(churn_trace(2, 16, 200, 20, 2, 23));
      const SwapShape shape = shape_of(trace, 24);
      Policy policy(name, shape);
      Driver driver(*policy, shape, 0);
      driver.run(trace);
      BOOST_TEST((*policy).victims({0, 0}, {}, driver) == 0u);
      const std::vector<std::int32_t> missed = {199};
      BOOST_TEST((*policy).admit({0, 0}, missed, {}) == 0u);
      std::vector<std::int32_t> room(4, -1);
      BOOST_TEST((*policy).admit({0, 0}, {}, room) == 0u);
    }
  }
}

}  // namespace
}  // namespace ebb::test
