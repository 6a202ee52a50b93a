#define BOOST_TEST_MODULE reference_more_models
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <vector>

#include "tests/reference/oracle.h"

// Models that the repository leaves out for their size; built where they are present.

using namespace ebb::reference;

BOOST_AUTO_TEST_CASE(unquantised_model_equals_both_oracles) {
  check_model(EBB_TEST_DATA "/models/tiny_f32.gguf", "tiny_f32",
              {1, 2, 3, 4, 5, 7, 8, 127, 128, 129, 131, 132, 300});
}

BOOST_AUTO_TEST_CASE(two_bit_model_equals_both_oracles) {
  check_model(EBB_TEST_DATA "/models/tiny_q2mix.gguf", "tiny_q2mix", kFewLengths);
}

BOOST_AUTO_TEST_CASE(split_model_has_the_same_logits_as_the_single_file) {
  const Weights single = open_weights(EBB_TEST_DATA "/models/tiny_f32.gguf");
  const Weights split = open_weights(EBB_TEST_DATA "/models/tiny_f32-00001-of-00002.gguf");
  const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5};
  BOOST_TEST(last_logits(single, tokens, false) == last_logits(split, tokens, false));
}
