// A rehearsal counts what an engine then takes: to the byte, part by part, for every way of keeping
// rows; and takes nothing itself.

#include <sys/resource.h>

#include <boost/test/unit_test.hpp>
#include <map>

#include "tests/engine/harness.h"

namespace {

using ebb::ComputeInfo;
using ebb::Engine;
using Overrides = std::vector<std::string>;

std::unique_ptr<Engine> rehearse(const std::string& text, const Overrides& overrides) {
  return ebb::test::open_engine(text, overrides, false, nullptr, {}, true);
}

void check_equal(const std::string& text, const Overrides& overrides) {
  const auto counted = rehearse(text, overrides);
  const auto taken = ebb::test::open_engine(text, overrides);
  const ComputeInfo want = taken->compute_info(), got = counted->compute_info();
  BOOST_TEST(got.bytes_allocated == want.bytes_allocated);
  BOOST_TEST(got.bytes_host == want.bytes_host);
  BOOST_TEST(got.bytes_borrowed == want.bytes_borrowed);
  BOOST_TEST((counted->parts() == taken->parts()));
  std::uint64_t sum = 0;
  for (const auto& [name, bytes] : counted->parts()) sum += bytes;
  BOOST_TEST(sum == want.bytes_allocated);
  BOOST_TEST((counted->swap() == nullptr) == (taken->swap() == nullptr));
  if (taken->swap() == nullptr) return;
  BOOST_TEST(counted->swap()->layout().pool_bytes == taken->swap()->layout().pool_bytes);
  BOOST_TEST(want.bytes_host > taken->swap()->layout().pool_bytes);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rehearsal)

BOOST_AUTO_TEST_CASE(counts_what_the_engine_takes_in_every_format_with_and_without_swapping) {
  const Overrides swaps[] = {{},
                             {"swap.module=swap_lru", "swap.slots=32"},
                             {"swap.module=swap_none", "swap.slots=16", "swap.staging=demand"},
                             {"swap.module=swap_lru", "swap.staging=resident"},
                             {"swap.module=swap_lru", "swap.slots=4096"}};
  for (const char* kv : {"f32", "f16", "fp8"}) {
    for (const char* index : {"f32", "fp8", "fp4"}) {
      for (const Overrides& swap : swaps) {
        for (const char* sequences : {"1", "3"}) {
          Overrides overrides{"engine.max_context=1000", "engine.prefill_chunk=33",
                              std::string("engine.max_sequences=") + sequences,
                              std::string("attention.kv_format=") + kv,
                              std::string("attention.index_format=") + index};
          overrides.insert(overrides.end(), swap.begin(), swap.end());
          BOOST_TEST_CONTEXT(kv << ' ' << index << ' ' << swap.size() << ' ' << sequences) {
            check_equal(ebb::test::synthetic_manifest(), overrides);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(counts_a_model_file_with_a_tokenizer_and_more_sequences_than_a_step_has_rows) {
  const std::string text = ebb::test::cpu_manifest(EBB_DEMO "/ds4-mini-q8_0.gguf", true);
  for (const char* precision : {"exact", "fast"}) {
    check_equal(text, {"engine.max_sequences=40", "engine.prefill_chunk=32",
                       std::string("compute.precision=") + precision, "swap.module=swap_lru",
                       "loader.verify=true"});
  }
}

BOOST_AUTO_TEST_CASE(counts_what_forecasts_take) {
  for (const char* mode : {"exact", "bounded", "direct"}) {
    for (const char* scorers :
         {"[{module='scorer_recent'}]", "[{module='scorer_recent'}, {module='scorer_random'}]"}) {
      BOOST_TEST_CONTEXT(mode << ' ' << scorers) {
        check_equal(
            ebb::test::synthetic_manifest(),
            {"engine.max_context=1000", "engine.max_sequences=3", "loader.top_k=128",
             "memory.module=memory_flash", std::string("memory.mode=") + mode,
             std::string("memory.scorer=") + scorers, "swap.module=swap_lru", "swap.slots=200"});
      }
    }
  }
}

// 80.8 GiB of weights and 16 sequences of a million tokens.
BOOST_AUTO_TEST_CASE(the_full_shape_is_counted_without_its_memory) {
  const auto engine =
      rehearse(ebb::test::synthetic_manifest(),
               {"loader.preset=v4_flash", "engine.max_context=1048576", "engine.max_sequences=16",
                "swap.module=swap_lru", "swap.slots=1024", "swap.host_limit=1TiB"});
  std::map<std::string, std::uint64_t> parts(engine->parts().begin(), engine->parts().end());
  BOOST_TEST(parts["chunk slots"] == 16ULL * 21 * 1024 * 2048);
  BOOST_TEST(parts["index keys"] == 16ULL * 21 * 262144 * 512);
  BOOST_TEST(engine->swap()->layout().pool_bytes == 16ULL * 21 * 262144 * 2048);
  BOOST_TEST(engine->compute_info().bytes_borrowed > 80ULL << 30);
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  BOOST_TEST(usage.ru_maxrss < 1 << 20, "KiB: " << usage.ru_maxrss);
}

BOOST_AUTO_TEST_SUITE_END()
