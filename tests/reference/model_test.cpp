#define BOOST_TEST_MODULE reference_model
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <stdexcept>
#include <string>

#include "tests/reference/oracle.h"

using namespace ebb;
using namespace ebb::reference;

BOOST_AUTO_TEST_CASE(mixed_types_and_clamps_equal_both_oracles) {
  check_model(EBB_TEST_DATA "/models/tiny_kmix.gguf", "tiny_kmix", kFewLengths);
}

BOOST_AUTO_TEST_CASE(demo_model_equals_both_oracles) {
  check_model(EBB_DEMO_MODEL, "ds4-mini-q8_0", kFewLengths);
}

BOOST_AUTO_TEST_CASE(a_tensor_of_the_wrong_size_is_named) {
  const auto loader = gguf::GgufLoader::open(EBB_TEST_DATA "/models/tiny_kmix.gguf", false);
  BOOST_REQUIRE(loader);
  const ModelFile file = model_file(**loader);
  const auto shortened = [&](const std::string& name) {
    Vector values =
        dequantise(file.tensor(name)->type, {file.tensor(name)->data, file.tensor(name)->n_bytes});
    if (name == "blk.3.attn_kv.weight") values.pop_back();
    return values;
  };
  BOOST_CHECK_EXCEPTION(load_weights(read_config(file), shortened), std::invalid_argument,
                        [](const std::exception& e) {
                          return std::string(e.what()).starts_with("blk.3.attn_kv.weight");
                        });
}
