#define BOOST_TEST_MODULE targets
#define BOOST_TEST_DYN_LINK
// Every instruction set that this machine has must compute the same: to the bit where values are
// rounded to few bits or chosen, within rounding elsewhere.

#include "kernels/cpu/simd_targets.h"
// The choice of targets comes first.
#include <hwy/highway.h>

#include <boost/test/unit_test.hpp>

#include "kernels/cpu/attend.h"
#include "kernels/cpu/compress.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/vector.h"
#include "kernels/row_format.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/step.h"

using namespace ebb;
using namespace ebb::test;

namespace {

/// Calls `body` once for every target of this machine, best first, with only that one enabled.
template <class Body>
void on_every_target(Body body) {
  hwy::SetSupportedTargetsForTest(0);
  int n = 0;
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    const std::int64_t target = left & -left;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    BOOST_TEST_MESSAGE("on " << hwy::TargetName(target));
    BOOST_TEST_CONTEXT(hwy::TargetName(target)) { body(n++ == 0); }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  BOOST_TEST(n > 1);  // the plain code is there on every machine
}

}  // namespace

BOOST_AUTO_TEST_CASE(vectors_agree) {
  Random random(71);
  const Floats x = normal_floats(random, 512), weight = normal_floats(random, 512);
  const Floats angles = normal_floats(random, 64), streams = normal_floats(random, 4 * 77);
  Floats norm(512), want_norm, mixed, want_mixed;
  on_every_target([&](bool first) {
    cpu::rms_norm_vector(x.data(), weight.data(), norm.data(), 511, 1e-6f);
    mixed = streams;
    cpu::mix_streams(x.data(), weight.data(), weight.data() + 8, mixed.data(), 4, 77);
    if (first) {
      want_norm = norm;
      want_mixed = mixed;
    }
    BOOST_TEST(largest_error(norm.data(), to_double(want_norm)) < 1e-6);
    BOOST_TEST(largest_error(mixed.data(), to_double(want_mixed)) < 1e-6);
  });
  Floats tie(200, 1.0f);
  tie[73] = tie[150] = 4;
  tie[20] = std::numeric_limits<float>::quiet_NaN();
  on_every_target([&](bool) { BOOST_TEST(cpu::argmax_vector(tie.data(), 200) == 73); });
  for (const Rounding rounding :
       {Rounding::none, Rounding::fp8_nope, Rounding::hadamard, Rounding::hadamard_fp4}) {
    Floats want;
    on_every_target([&](bool first) {
      Floats y = x;
      cpu::rope_and_round(y.data(), 512, angles.data(), 32, rounding);
      if (first) want = y;
      BOOST_TEST(y == want);
    });
  }
}

BOOST_AUTO_TEST_CASE(decoded_rows_agree) {
  Random random(72);
  const Floats x = normal_floats(random, 130);
  for (const RowFormat format : {RowFormat::f32, RowFormat::f16, RowFormat::fp8, RowFormat::fp4}) {
    for (const std::int32_t n_rot : {0, 34}) {
      if (format == RowFormat::fp4 && n_rot != 0) continue;
      std::vector<std::byte> row(static_cast<std::size_t>(row_bytes(format, 130, n_rot)));
      encode_row(format, 130, n_rot, x.data(), row.data());
      Floats want;
      on_every_target([&](bool first) {
        Floats y(130);
        cpu::decode_row_fast(format, 130, n_rot, row.data(), y.data());
        if (first) want = y;
        BOOST_TEST(y == want);
      });
    }
  }
}

BOOST_AUTO_TEST_CASE(choices_of_whole_numbers_agree) {
  Random random(73);
  const auto whole = [&](std::int64_t n) {
    Floats x = normal_floats(random, n);
    for (float& value : x) value = std::nearbyint(value);
    return x;
  };
  for (const std::int32_t d : {7, 64}) {
    OwnedStore keys(RowFormat::f32, d, 0, 300);
    for (std::int64_t c = 0; c < 300; ++c) {
      const Floats key = whole(d);
      std::memcpy(keys.row(0, c), key.data(), static_cast<std::size_t>(d) * sizeof(float));
    }
    Step step;
    step.add_run(0, 1190, 10);
    const Floats q = whole(10 * 5 * d), weight = whole(10 * 5);
    std::vector<std::int32_t> ids(10 * 40), count(10), want;
    SelectArgs a{step.view(), q.data(), weight.data(), 1,          keys.store,  5, d,
                 4,           40,       nullptr,       ids.data(), count.data()};
    on_every_target([&](bool first) {
      cpu::PhaseList list;
      BOOST_REQUIRE(cpu::add_select(list, a).has_value());
      run_phases(list);
      if (first) want = ids;
      BOOST_TEST(ids == want);
    });
  }
}

BOOST_AUTO_TEST_CASE(compressed_rows_and_attention_agree) {
  Random random(74);
  constexpr std::int32_t kDim = 70, kHeads = 5, kRows = 40;
  const std::int64_t width = 2 * kDim;
  Step step;
  step.add_run(0, 0, kRows);
  const Floats kv = normal_floats(random, kRows * width),
               gate = normal_floats(random, kRows * width);
  const Floats ape = normal_floats(random, 4 * width), norm = normal_floats(random, kDim);
  const Floats angles = normal_floats(random, kRows * 32);
  const Floats q = normal_floats(random, std::int64_t{kRows} * kHeads * kDim);
  const Floats sink = normal_floats(random, kHeads);
  OwnedStore ring(RowFormat::f32, kDim, 32, 16 + kRows);
  for (std::int64_t i = 0; i < kRows; ++i) {
    const Floats row = normal_floats(random, kDim);
    std::memcpy(ring.row(0, i), row.data(), kDim * sizeof(float));
  }
  Floats want;
  on_every_target([&](bool first) {
    OwnedStore rows(RowFormat::f32, kDim, 32, 12);
    Floats state_kv = nan_floats(8 * width), state_gate = nan_floats(8 * width);
    Floats out = nan_floats(std::int64_t{kRows} * kHeads * kDim);
    const CompressArgs compress{
        step.view(), kv.data(),      gate.data(), ape.data(),  state_kv.data(), state_gate.data(),
        4,           kDim,           1,           norm.data(), 1e-6f,           angles.data(),
        16,          Rounding::none, rows.store,  {}};
    const AttendArgs attend{step.view(),   q.data(), ring.store, rows.store, {},          nullptr,
                            nullptr,       1,        4,          17,         sink.data(), 0.12f,
                            angles.data(), 16,       kHeads,     kDim,       out.data()};
    cpu::PhaseList list;
    BOOST_REQUIRE(cpu::add_compress(list, compress).has_value());
    BOOST_REQUIRE(cpu::add_attend(list, attend).has_value());
    run_phases(list);
    if (first) want = out;
    BOOST_TEST(largest_error(out.data(), to_double(want)) < 1e-5);
  });
}
