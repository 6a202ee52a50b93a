#include "tests/reference/quant.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/reference/linear.h"

// Blocks of every type against values that ggml's own code gave for them (tests/data/blocks).

using namespace ebb;
using namespace ebb::reference;

namespace {

const std::string kBlocks = EBB_TEST_DATA "/blocks/";

std::vector<std::byte> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  BOOST_REQUIRE_MESSAGE(file, "cannot read " << path);
  const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::vector<float> read_floats(const std::string& path) {
  const std::vector<std::byte> bytes = read_bytes(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

nlohmann::json read_index() {
  std::ifstream file(kBlocks + "index.json");
  BOOST_REQUIRE_MESSAGE(file, "cannot read " << kBlocks << "index.json");
  return nlohmann::json::parse(file);
}

DType type_named(const std::string& name) {
  for (const DTypeTraits& traits : kDTypes) {
    if (name == traits.name) return traits.type;
  }
  BOOST_FAIL("no type " << name);
  return DType::f32;
}

bool same(float found, float expected) {
  if (std::isnan(expected)) return std::isnan(found);
  if (std::isinf(expected)) return found == expected;
  return std::fabs(found - expected) <= 1e-6 * std::fabs(static_cast<double>(expected));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(quant)

BOOST_AUTO_TEST_CASE(every_type_equals_ggmls_values_edges_included) {
  const nlohmann::json index = read_index();
  std::set<DType> seen;
  for (const auto& [name, entry] : index["types"].items()) {
    const DType type = type_named(name);
    seen.insert(type);
    BOOST_TEST(static_cast<int>(type) == entry["ggml_type"].get<int>());
    const std::vector<double> found =
        dequantise(type, read_bytes(kBlocks + entry["bin"].get<std::string>()));
    const std::vector<float> expected = read_floats(kBlocks + entry["f32"].get<std::string>());
    BOOST_REQUIRE_EQUAL(found.size(), expected.size());
    std::int64_t wrong = 0, not_finite = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!std::isfinite(expected[i])) ++not_finite;
      if (same(static_cast<float>(found[i]), expected[i])) continue;
      if (++wrong == 1) {
        BOOST_TEST_MESSAGE(name << " value " << i << ": found " << found[i] << ", expected "
                                << expected[i]);
      }
    }
    BOOST_TEST(wrong == 0, name << ": " << wrong << " values differ");
    BOOST_TEST(not_finite == entry["bad_values"].get<std::int64_t>());
  }
  // All but I32, whose values are plain integers.
  BOOST_TEST(seen.size() == kDTypes.size() - 1);
}

BOOST_AUTO_TEST_CASE(dot_products_equal_the_recorded_ones) {
  const nlohmann::json index = read_index();
  BOOST_REQUIRE(!index["dots"].empty());
  for (const auto& entry : index["dots"]) {
    const Vector w = dequantise(type_named(entry["type"].get<std::string>()),
                                read_bytes(kBlocks + entry["weights"].get<std::string>()));
    const std::vector<float> x32 = read_floats(kBlocks + entry["x"].get<std::string>());
    const Vector x(x32.begin(), x32.end());
    BOOST_REQUIRE_EQUAL(w.size(), x.size());
    const double error = std::fabs(dot(w, x) - entry["result"].get<double>());
    BOOST_TEST(error <= 1e-8 * entry["sum_abs"].get<double>(), entry["type"] << ": " << error);
  }
}

BOOST_AUTO_TEST_CASE(iq2_xxs_codewords_0_to_2_give_known_values) {
  std::vector<std::byte> block(66);
  block[1] = std::byte{0x3C};  // d = 1
  for (const double value : dequantise(DType::iq2_xxs, block)) BOOST_TEST(value == 1.0);
  block[2] = std::byte{1};
  BOOST_TEST(dequantise(DType::iq2_xxs, block)[0] == 5.375);
  block[2] = std::byte{2};
  BOOST_TEST(dequantise(DType::iq2_xxs, block)[0] == 3.125);
  BOOST_TEST(dequantise(DType::iq2_xxs, block)[1] == 3.125);
}

BOOST_AUTO_TEST_CASE(mxfp4_low_nibbles_are_the_first_sixteen_values) {
  std::vector<std::byte> block(17);
  block[0] = std::byte{127};
  block[1] = std::byte{0x21};
  const std::vector<double> values = dequantise(DType::mxfp4, block);
  BOOST_TEST(values[0] == 0.5);
  BOOST_TEST(values[16] == 1.0);
}

BOOST_AUTO_TEST_CASE(sign_bytes_always_hold_an_even_number_of_minuses) {
  for (std::uint32_t field = 0; field < 128; ++field) {
    BOOST_TEST((even_signs(field) & 127) == field);
    BOOST_TEST(std::popcount(even_signs(field)) % 2 == 0);
    BOOST_TEST(kernels::sign_byte(field) == even_signs(field));
  }
}

BOOST_AUTO_TEST_CASE(integers_keep_their_sign) {
  const std::vector<std::byte> bytes(4, std::byte{0xFF});
  BOOST_TEST(dequantise(DType::i32, bytes).front() == -1);
}

BOOST_AUTO_TEST_SUITE_END()
