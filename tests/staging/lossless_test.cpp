// E6: a row of any stored format is the same bytes after its way from compute memory to the pool
// and back into a slot, whatever its bits mean as numbers: NaNs keep their payloads, and -0 its
// sign.

#define BOOST_TEST_MODULE swap_lossless
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>

#include "core/api/compute.h"
#include "core/host.h"
#include "core/module_loader.h"
#include "kernels/ops/ops.h"
#include "kernels/row_format.h"
#include "tests/core/support.h"
#include "tests/engine/harness.h"

namespace {

using ebb::RowFormat;
using ebb::SlotMove;
using ebb::SlotMoves;
using ebb::test::require;

/// Every pattern of a byte and the f32 and f16 values that copies by value may change; then noise.
std::vector<std::byte> patterns(std::size_t n, unsigned seed) {
  std::vector<std::byte> bytes(n);
  std::mt19937 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  auto put = [&, at = std::size_t{0}](const auto& values) mutable {
    const std::size_t size = std::min(sizeof(values), n - at);
    std::memcpy(bytes.data() + at, &values, size);
    at += size;
  };
  // Signalling and quiet NaNs with payloads, -0, infinities, subnormals.
  const std::uint32_t f32[] = {0x7fa00001, 0xffbfffff, 0x7fc12345, 0xffffffff,
                               0x80000000, 0x7f800000, 0xff800000, 0x80000001};
  const std::uint16_t f16[] = {0x7d01, 0xfdff, 0x7e55, 0xffff, 0x8000, 0x7c00, 0xfc00, 0x8001};
  std::uint8_t all[256];
  for (int i = 0; i < 256; ++i) all[i] = static_cast<std::uint8_t>(i);
  put(f32);
  put(f16);
  put(all);
  return bytes;
}

}  // namespace

BOOST_AUTO_TEST_CASE(E6_rows_of_every_format_survive_pool_and_slot_bit_by_bit) {
  constexpr std::int32_t kRows = 37, kWidth = 128, kRotated = 32;
  ebb::HostServices host([](ebb::LogLevel, std::string_view) {}, 0);
  for (const char* threads : {"1", "3"}) {
    const auto options = ebb::test::options_of("threads = " + std::string(threads), "compute");
    const auto compute = require(ebb::ModuleLoader(EBB_MODULES_DIR)
                                     .load<ebb::Compute>({"compute", "compute_cpu", "", "test"},
                                                         host.host_for("compute_cpu"), *options));
    for (const RowFormat format :
         {RowFormat::f32, RowFormat::f16, RowFormat::fp8, RowFormat::fp4}) {
      const std::int64_t row = ebb::row_bytes(format, kWidth, kRotated);
      const auto n = static_cast<std::uint64_t>(kRows * row);
      std::byte* const device = require(compute->allocate(n, "rows"));
      std::byte* const pool = require(compute->allocate_host(n, "pool"));
      std::byte* const slots = require(compute->allocate(n, "slots"));
      auto* const table = reinterpret_cast<std::int32_t*>(
          require(compute->allocate(kRows * sizeof(std::int32_t), "table")));
      std::byte* const list =
          require(compute->allocate_host((kRows + 1) * sizeof(SlotMove), "list"));
      auto* const count = reinterpret_cast<std::int32_t*>(list);
      auto* const moves = reinterpret_cast<SlotMove*>(list) + 1;
      // Row i of the pool to slot 7 i mod 37.
      for (std::int32_t i = 0; i < kRows; ++i) {
        const std::int32_t slot = 7 * i % kRows;
        moves[i] = {table + i, pool + i * row, slots + slot * row, slot,
                    static_cast<std::int32_t>(row)};
      }
      *count = kRows;
      ebb::Ops& ops = *require(compute->begin_plan());
      require(ops.copy({pool, device, n}));
      require(ops.move_rows({SlotMoves{count, moves, kRows}}));
      const ebb::PlanId plan = require(compute->end_plan());

      const std::vector<std::byte> want = patterns(n, static_cast<unsigned>(row));
      require(compute->write(device, want.data(), n));
      require(compute->start(plan));
      require(compute->wait());
      BOOST_TEST(std::memcmp(pool, want.data(), n) == 0, "to the pool, " << row);
      std::vector<std::byte> got(n);
      std::vector<std::int32_t> entries(kRows);
      require(compute->read(got.data(), slots, n));
      require(compute->read(entries.data(), table, kRows * sizeof(std::int32_t)));
      for (std::int32_t i = 0; i < kRows; ++i) {
        BOOST_TEST(entries[static_cast<std::size_t>(i)] == 7 * i % kRows);
        BOOST_TEST(std::memcmp(got.data() + 7 * i % kRows * row, want.data() + i * row,
                               static_cast<std::size_t>(row)) == 0,
                   "row " << i << " of " << row << " bytes");
      }
    }
  }
}
