#include <boost/test/unit_test.hpp>

#include "tests/engine/copy_cases.h"

namespace ebb::test {
namespace {

BOOST_AUTO_TEST_CASE(a_copied_sequence_goes_on_as_one_that_was_fed) {
  for (std::size_t i = 0; i < copy_cases().size(); ++i) {
    const CopyCase one = copy_cases()[i];
    CopyRun run(one.settings);
    for (const std::size_t place : copy_places(i)) {
      const std::string fault = run.check(place);
      BOOST_TEST(fault == "", one.name << ", " << place << " tokens: " << fault);
    }
  }
}

BOOST_AUTO_TEST_CASE(copies_know_their_limits) {
  const auto engine =
      open_engine(synthetic_manifest(), {"engine.max_context=64", "engine.prefix_sequences=1"});
  BOOST_TEST(engine->session().max_open == 2);
  BOOST_TEST(engine->session().max_decode == 1);
  const auto refusal = [&engine](std::int32_t from, std::int32_t to) {
    const Status status = engine->copy(from, to);
    return status ? std::string() : status.error().message;
  };
  const std::int32_t from = require(engine->open_sequence());
  BOOST_TEST(refusal(from, 1) == "sequence 1 is not open and empty");
  BOOST_TEST(refusal(from, from) == "sequence 0: want another that is open");
  const std::int32_t to = require(engine->open_sequence());
  BOOST_TEST(refusal(from, -1) == "sequence -1 is not open and empty");
  BOOST_TEST(refusal(from, 2) == "sequence 2 is not open and empty");
  BOOST_TEST(refusal(-1, to) == "sequence -1: want another that is open");
  BOOST_TEST(refusal(2, to) == "sequence 2: want another that is open");
  // Nothing at all can be copied too.
  BOOST_TEST(refusal(from, to) == "");
  BOOST_TEST(engine->length(to) == 0);
  const StepRow row{from, 5, true};
  require(engine->step({&row, 1}));
  BOOST_TEST(refusal(from, to) == "");
  BOOST_TEST(engine->length(to) == 1);
  BOOST_TEST(refusal(from, to) == "sequence 1 is not open and empty");
  engine->close_sequence(from);
  engine->close_sequence(to);
  BOOST_TEST(require(engine->open_sequence()) == 0);
  BOOST_TEST(refusal(1, 0) == "sequence 1: want another that is open");
}

// A step of decode has the size that [engine] max_sequences says, whatever else holds state.
BOOST_AUTO_TEST_CASE(sequences_for_prefixes_do_not_make_decode_steps_larger) {
  for (const char* const n : {"0", "3"}) {
    const auto engine =
        open_engine(synthetic_manifest(), {"engine.max_context=256", "engine.max_sequences=2",
                                           "engine.prefix_sequences=" + std::string(n),
                                           "swap.module=swap_lru", "swap.slots=9"});
    BOOST_TEST(engine->max_out() == 2);
    BOOST_REQUIRE(engine->swap() != nullptr);
    BOOST_TEST(engine->swap()->max_log_rows() == 2);
  }
}

}  // namespace
}  // namespace ebb::test
