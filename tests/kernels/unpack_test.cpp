#define BOOST_TEST_MODULE unpack
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/unpack.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/cpu/unpack_plain.h"
#include "tests/kernels/random_weights.h"
#include "tests/reference/quant.h"

namespace ebb::cpu {

// Boost prints what it compares.
std::ostream& operator<<(std::ostream& out, const std::vector<std::byte>& bytes) {
  return out << bytes.size() << " bytes";
}

namespace {

std::vector<std::byte> read_file(const std::string& name) {
  std::ifstream file(std::string(EBB_TEST_DATA) + "/blocks/" + name, std::ios::binary);
  BOOST_REQUIRE_MESSAGE(file, "cannot open " << name);
  const std::vector<char> chars{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(chars.size());
  std::memcpy(bytes.data(), chars.data(), chars.size());
  return bytes;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Equal as the oracle wants it: NaN where NaN, infinities by sign, else 1e-6 relative.
bool same(float got, double want) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want)) return static_cast<double>(got) == want;
  return std::abs(static_cast<double>(got) - want) <= 1e-6 * std::abs(want);
}

std::vector<float> unpack_floats(DType type, const std::byte* bytes, std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  find_unpacker(type).floats(bytes, n, values.data());
  return values;
}

BOOST_AUTO_TEST_CASE(values_are_those_of_the_formats_own_library) {
  for (const DType type : test::kWeightTypes) {
    const std::string name = lower(dtype_traits(type)->name);
    const std::vector<std::byte> blocks = read_file(name + ".bin");
    const std::vector<std::byte> value_bytes = read_file(name + ".f32");
    std::vector<float> want(value_bytes.size() / sizeof(float));
    std::memcpy(want.data(), value_bytes.data(), value_bytes.size());
    const std::vector<float> got =
        unpack_floats(type, blocks.data(), static_cast<std::int64_t>(want.size()));
    BOOST_REQUIRE_GT(want.size(), 0u);
    for (std::size_t i = 0; i < want.size(); ++i) {
      BOOST_REQUIRE_MESSAGE(same(got[i], static_cast<double>(want[i])),
                            name << " value " << i << ": " << got[i] << ", want " << want[i]);
    }
  }
}

BOOST_AUTO_TEST_CASE(values_of_random_rows_of_every_length_are_those_of_the_reference) {
  for (const DType type : test::kWeightTypes) {
    const std::int64_t block = dtype_traits(type)->block_values;
    for (const std::int64_t n : {std::int64_t{32}, std::int64_t{64}, std::int64_t{96},
                                 std::int64_t{256}, std::int64_t{288}, std::int64_t{1024}}) {
      if (n % block != 0) continue;
      const test::RandomWeight row(type, 1, n, 11);
      const std::vector<double> want = reference::dequantise(type, row.bytes);
      const std::vector<float> got = unpack_floats(type, row.bytes.data(), n);
      for (std::size_t i = 0; i < want.size(); ++i) {
        // Where an offset cancels the rest, the error is relative to what was subtracted.
        const double margin = type_has_minus(type) ? 1e-6 : 0;
        BOOST_REQUIRE_MESSAGE(
            same(got[i], want[i]) || std::abs(static_cast<double>(got[i]) - want[i]) <= margin,
            dtype_traits(type)->name << " value " << i << " of " << n << ": " << got[i] << ", want "
                                     << want[i]);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(tiles_equal_the_portable_ones_and_are_padded_with_zeros) {
  for (const DType type : test::kWeightTypes) {
    const Unpacker unpacker = find_unpacker(type);
    const UnpackTiles plain = find_plain_tiles(type);
    BOOST_REQUIRE_EQUAL(unpacker.tiles == nullptr, plain == nullptr);
    if (plain == nullptr) continue;
    const std::int64_t block = dtype_traits(type)->block_values;
    for (const std::int64_t n :
         {std::int64_t{64}, std::int64_t{256}, std::int64_t{320}, std::int64_t{768}}) {
      if (n % block != 0) continue;
      const test::RandomWeight row(type, 1, n, 12);
      const auto n_tiles = static_cast<std::size_t>((n + kTileValues - 1) / kTileValues);
      std::vector<Tile> want(n_tiles);
      std::vector<Tile> got(n_tiles);
      std::memset(static_cast<void*>(want.data()), 0, n_tiles * sizeof(Tile));
      std::memset(static_cast<void*>(got.data()), 0, n_tiles * sizeof(Tile));
      plain(row.bytes.data(), n, want.data());
      unpacker.tiles(row.bytes.data(), n, got.data());
      for (std::size_t t = 0; t < n_tiles; ++t) {
        BOOST_TEST(std::memcmp(got[t].q, want[t].q, sizeof(want[t].q)) == 0,
                   dtype_traits(type)->name << " integers of tile " << t << " of " << n);
        BOOST_TEST(std::memcmp(got[t].scale, want[t].scale, sizeof(want[t].scale)) == 0,
                   dtype_traits(type)->name << " scales of tile " << t << " of " << n);
        if (!unpacker.has_minus) continue;
        BOOST_TEST(std::memcmp(got[t].minus, want[t].minus, sizeof(want[t].minus)) == 0,
                   dtype_traits(type)->name << " offsets of tile " << t << " of " << n);
      }
      const Tile& last = got.back();
      for (std::int64_t i = n % kTileValues; i != 0 && i < kTileValues; ++i) {
        BOOST_REQUIRE_EQUAL(last.q[i], 0);
        BOOST_REQUIRE_EQUAL(last.scale[i / kGroupValues], 0);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(types_that_hold_no_weights_have_no_unpacker) {
  for (const DType type : {DType::i32, DType::q8_k, static_cast<DType>(77)}) {
    BOOST_TEST((find_unpacker(type).floats == nullptr));
    BOOST_TEST((find_unpacker(type).tiles == nullptr));
  }
}

}  // namespace
}  // namespace ebb::cpu
