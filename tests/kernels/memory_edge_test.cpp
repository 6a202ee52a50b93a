#define BOOST_TEST_MODULE memory_edge
#define BOOST_TEST_DYN_LINK
// The last tensor of a model file ends where the mapping ends: reading one byte more ends the
// process. So rows are put right in front of memory that cannot be read.

#include <sys/mman.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <vector>

#include "kernels/cpu/product.h"
#include "kernels/cpu/unpack.h"

using namespace ebb;
using namespace ebb::cpu;

namespace {

/// Zeros that end where readable memory ends.
class EdgeBytes {
 public:
  explicit EdgeBytes(std::size_t n) : readable_((n + kPage - 1) / kPage * kPage), n_(n) {
    void* const memory = mmap(nullptr, readable_ + kPage, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(memory != MAP_FAILED);
    start_ = static_cast<std::byte*>(memory);
    BOOST_REQUIRE(mprotect(start_ + readable_, kPage, PROT_NONE) == 0);
  }
  EdgeBytes(const EdgeBytes&) = delete;
  EdgeBytes& operator=(const EdgeBytes&) = delete;
  ~EdgeBytes() { munmap(start_, readable_ + kPage); }

  std::byte* data() const { return start_ + readable_ - n_; }

 private:
  static constexpr std::size_t kPage = 65536;
  std::size_t readable_;
  std::size_t n_;
  std::byte* start_ = nullptr;
};

}  // namespace

BOOST_AUTO_TEST_CASE(no_unpacker_reads_behind_its_row) {
  for (const DTypeTraits& traits : kDTypes) {
    const Unpacker unpacker = find_unpacker(traits.type);
    if (unpacker.floats == nullptr) continue;
    for (const std::int64_t n_blocks : {1, 2, 3, 5, 8, 9, 16, 31, 257}) {
      const std::int64_t n = n_blocks * traits.block_values;
      const EdgeBytes row(static_cast<std::size_t>(row_bytes(traits.type, n)));
      std::vector<float> values(static_cast<std::size_t>(n), 1.0f);
      unpacker.floats(row.data(), n, values.data());
      BOOST_TEST(values.back() == 0, traits.name);
      if (unpacker.tiles == nullptr) continue;
      std::vector<Tile> tiles(static_cast<std::size_t>((n + kTileValues - 1) / kTileValues));
      unpacker.tiles(row.data(), n, tiles.data());
      unpacker.lanes(row.data(), n, tiles.data());
    }
  }
}

BOOST_AUTO_TEST_CASE(no_product_reads_behind_its_weights_or_activations) {
  for (const DTypeTraits& traits : kDTypes) {
    if (find_unpacker(traits.type).floats == nullptr) continue;
    for (const std::int64_t n_in : {traits.block_values * 1, traits.block_values * 3, 1024}) {
      if (n_in % traits.block_values != 0) continue;
      const std::int64_t n_out = 5;
      const EdgeBytes bytes(static_cast<std::size_t>(row_bytes(traits.type, n_in) * n_out));
      for (const Precision precision : {Precision::exact, Precision::fast}) {
        const ProductWeight weight({bytes.data(), traits.type, n_in, n_out, 1}, precision);
        for (const std::int32_t n_acts : {1, 2, 5, 17}) {
          const EdgeBytes x(static_cast<std::size_t>(n_in) * sizeof(float));
          std::vector<ActTile> tiles(static_cast<std::size_t>(tiles_of(n_in)));
          quantise(reinterpret_cast<const float*>(x.data()), n_in, tiles.data());
          ActRows acts;
          acts.n = n_acts;
          std::vector<std::vector<float>> results(
              static_cast<std::size_t>(n_acts),
              std::vector<float>(static_cast<std::size_t>(n_out)));
          float* y[kMaxActRows];
          for (std::int32_t a = 0; a < n_acts; ++a) {
            acts.x[a] = reinterpret_cast<const float*>(x.data());
            acts.tiles[a] = tiles.data();
            y[a] = results[static_cast<std::size_t>(a)].data();
          }
          std::vector<std::byte> scratch(product_scratch_bytes() + 64);
          const auto at = reinterpret_cast<std::uintptr_t>(scratch.data());
          product(weight, 0, 0, n_out, acts, y, scratch.data() + (64 - at % 64) % 64);
          for (const auto& row : results) {
            for (const float value : row) BOOST_REQUIRE(value == 0);
          }
        }
      }
    }
  }
}
