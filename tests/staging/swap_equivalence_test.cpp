// E1, E2, E3: what every layer's attention hands on and every logit have the bits that they have
// without swapping, for all policies, modes, numbers of slots, threads, prefill chunks and with
// forecasts that foresee nonsense. swap_chaos draws victims, admissions and slots at random.
//
// Of the tiny model all combinations are run (EBB_FULL_PRODUCT, a test of its own), the numbers of
// threads by turns; elsewhere, and of the demo model, where all would take half an hour, as many as
// it takes for every pair of values to meet. Steps of several sequences, formats of rows and other
// backends are swap_check's.

#define BOOST_TEST_MODULE swap_equivalence
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <numeric>
#include <utility>

#include "tests/staging/swap_cases.h"

namespace {

using ebb::test::Attended;
using ebb::test::demo_swap_model;
using ebb::test::feed;
using ebb::test::kSwapTaps;
using ebb::test::open_engine;
using ebb::test::Overrides;
using ebb::test::SwapCases;
using ebb::test::SwapChoice;
using ebb::test::SwapFactor;
using ebb::test::SwapModel;
using ebb::test::SwapOutcome;
using ebb::test::tiny_swap_model;
using ebb::test::operator+;

const std::vector<Overrides> kThreads = {
    {"compute.threads=1"}, {"compute.threads=2"}, {"compute.threads=3"}};

/// One sequence of f32 rows, with what attention hands on.
SwapChoice sizes_of(const SwapCases& cases) {
  SwapChoice sizes = cases.sizes();
  sizes[SwapFactor::format] = sizes[SwapFactor::tap] = sizes[SwapFactor::together] = 1;
  return sizes;
}

#ifdef EBB_FULL_PRODUCT

/// All of everything but threads, which take turns such that each of up to three numbers meets
/// every three values of other factors: whatever those three are, two factors are left to turn by.
std::vector<SwapChoice> all_with_threads_by_turns(SwapChoice sizes) {
  const std::size_t n_threads = std::exchange(sizes[SwapFactor::backend], 1);
  std::vector<SwapChoice> all = ebb::test::all_choices(sizes);
  for (SwapChoice& choice : all) {
    choice[SwapFactor::backend] =
        std::accumulate(choice.begin(), choice.end(), std::size_t{0}) % n_threads;
  }
  return all;
}

#endif

void check(SwapCases& cases, const std::vector<SwapChoice>& choices) {
  const SwapOutcome outcome =
      cases.run(choices, [](const std::string& fault) { BOOST_ERROR(fault); });
  BOOST_TEST(outcome.n_right == choices.size());
  BOOST_TEST(outcome.n_attended > 0U);
  BOOST_TEST(outcome.idle() == "");
}

}  // namespace

#ifdef EBB_FULL_PRODUCT

BOOST_AUTO_TEST_CASE(E1_E2_E3_of_the_tiny_model_in_all_combinations) {
  SwapCases tiny(tiny_swap_model(), kThreads, {});
  check(tiny, all_with_threads_by_turns(sizes_of(tiny)));
}

BOOST_AUTO_TEST_CASE(E1_E2_E3_of_the_demo_model_in_all_pairs) {
  SwapCases demo(demo_swap_model(), kThreads, {"compute.precision=fast"});
  check(demo, ebb::test::pairwise(sizes_of(demo)));
}

#else

BOOST_AUTO_TEST_CASE(E1_E2_E3_of_the_tiny_model_in_all_pairs) {
  SwapCases tiny(tiny_swap_model(), kThreads, {});
  check(tiny, ebb::test::pairwise(sizes_of(tiny)));
}

BOOST_AUTO_TEST_CASE(a_bit_that_differs_is_seen) {
  const SwapModel model = tiny_swap_model();
  const Overrides sizes = model.sizes + kSwapTaps[0];
  Attended attended, other;
  std::vector<std::int32_t> tokens = ebb::test::random_tokens(200, 1);
  feed(*open_engine(model.manifest, sizes, true), tokens, 150, 64, &attended);
  tokens[100] ^= 1;
  feed(*open_engine(model.manifest, sizes, true), tokens, 150, 64, &other);
  for (std::size_t layer = 0; layer < attended.size(); ++layer) {
    BOOST_TEST(attended[layer].size() == 200U);
    for (std::size_t pos = 0; pos < 100; ++pos) {
      BOOST_TEST(attended[layer][pos] == other[layer][pos]);
    }
    BOOST_TEST(attended[layer][100] != other[layer][100]);
  }
}

#endif
