// Kernels of attention and of what stands around the products, against references in double.
// Without a CUDA device it says so and exits with 77.

#define BOOST_TEST_MODULE cuda_attention
#define BOOST_TEST_DYN_LINK
#define BOOST_TEST_NO_MAIN
#include <algorithm>
#include <cstdio>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/rows.h"
#include "tests/cuda/mirror.h"
#include "tests/kernels/attend_bench.h"

using namespace ebb;
using namespace ebb::test;

namespace {

struct Bench : AttendBench {
  using AttendBench::AttendBench;

  std::vector<std::int32_t> slot_of;  // empty: chunks have one place
  std::vector<std::byte> slots;
  bool heads_apart = false;  // queries are finished by an op of their own

  void run(const Step& step, std::int32_t max_rows = 0) {
    Mirror mirror;
    AttendArgs a = begin(step);
    a.step = mirror.step(step, max_rows);
    a.q = mirror.put(q);
    a.ring = mirror.store(ring);
    if (shape.chunks != Chunks::none) a.chunks = mirror.store(chunks);
    if (!slot_of.empty()) {
      a.slots.slot_of = mirror.put(slot_of);
      a.slots.slots = const_cast<std::byte*>(mirror.put(slots));
      a.slots.sequence_bytes = static_cast<std::int64_t>(slots.size()) / 2;
    }
    if (shape.chunks == Chunks::chosen) {
      a.ids = mirror.put(ids);
      a.count = mirror.put(count);
    }
    a.sink = mirror.put(sink);
    a.cos_sin = mirror.put(table);
    a.out = mirror.share(out);
    HeadsArgs heads;
    heads.step = a.step;
    heads.x = const_cast<float*>(a.q);
    heads.n_heads = a.n_heads;
    heads.d = a.d;
    heads.normalise = true;
    heads.eps = 1e-6f;
    heads.cos_sin = a.cos_sin;
    heads.n_pairs = a.n_pairs;
    if (heads_apart) {
      cuda::RowGroup group;
      group.has_heads = true;
      group.heads = heads;
      require_cuda(cuda::row_group(mirror.launch(0), group));
    }
    cuda::Launch launch = mirror.launch(cuda::attend_workspace(a));
    if (const std::size_t landing = cuda::attend_landing(a)) {
      launch.landing = mirror.launch(landing).workspace;
      require_cuda(cuda::attend_fetch(launch, a));
    }
    require_cuda(cuda::attend(launch, a, 2 * shape.n_pairs, 2 * shape.n_pairs,
                              with_heads && !heads_apart ? &heads : nullptr));
    mirror.fetch();
  }
};

const Shape kShapes[] = {
    {64, 512, 32, 128, Chunks::chosen, 4, 64, RowFormat::f32},
    {64, 512, 32, 128, Chunks::chosen, 4, 64, RowFormat::fp8},
    {8, 512, 32, 128, Chunks::all, 128, 1, RowFormat::f16},
    {33, 256, 32, 128, Chunks::all, 4, 1, RowFormat::f32},
    {1, 96, 16, 1, Chunks::none, 4, 1, RowFormat::f32},
    {1, 96, 16, 8, Chunks::chosen, 4, 8, RowFormat::fp8},
    {5, 192, 32, 8, Chunks::chosen, 4, 1, RowFormat::f32},
    {7, 96, 16, 128, Chunks::all, 4, 1, RowFormat::f32},
    {3, 70, 11, 33, Chunks::all, 4, 1, RowFormat::f16},
    {13, 130, 17, 8, Chunks::none, 4, 1, RowFormat::fp8},
    {16, 512, 32, 128, Chunks::all, 4, 1, RowFormat::f32, 0.01f},
    {16, 512, 32, 128, Chunks::all, 4, 1, RowFormat::f32, 3},
};

double error_of(Bench& bench, const Step& step, std::int32_t r) {
  const std::int64_t width = std::int64_t{bench.shape.n_heads} * bench.shape.d;
  return largest_error(&bench.out[static_cast<std::size_t>(r * width)],
                       bench.reference_row(step, r));
}

}  // namespace

BOOST_AUTO_TEST_CASE(attend_equals_the_reference_in_poisoned_caches) {
  Random random(51);
  for (const Shape& shape : kShapes) {
    for (const bool with_heads : {false, true}) {
      for (const bool many : {false, true}) {
        Bench bench(shape, 3, shape.window + 60, 110);
        bench.with_heads = with_heads;
        Step step;
        step.add_run(2, 0, 6);
        step.add_run(0, 399, 3);
        step.add_run(1, 126, many ? 20 : 2);
        bench.prepare(random, step);
        bench.run(step);
        for (std::int32_t r = 0; r < std::min(step.n_rows, 12); ++r) {
          // A large score keeps fewer places behind the point, in any 32-bit format.
          const double limit = shape.size <= 1 ? 4e-6 : with_heads ? 1e-5 : 5e-5;
          BOOST_TEST(error_of(bench, step, r) < limit);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(attend_equals_the_reference_over_long_contexts) {
  Random random(53);
  // 512 chosen of many; all chunks of 64K, 256K and 1M tokens: one to many tiles a run.
  for (const RowFormat format : {RowFormat::f32, RowFormat::f16, RowFormat::fp8}) {
    for (const auto& [chunks, ratio, pos] :
         {std::tuple{Chunks::chosen, 4, 5000}, std::tuple{Chunks::all, 128, 65535},
          std::tuple{Chunks::all, 128, 262000}, std::tuple{Chunks::all, 128, 1048575}}) {
      if (pos > 300000 && format != RowFormat::fp8) continue;
      Bench bench({16, 512, 32, 128, chunks, ratio, 512, format}, 1, 160, pos / ratio + 2);
      for (const std::int32_t n_rows : {1, 20}) {
        Step step;
        step.add_run(0, pos - n_rows + 1, n_rows);
        bench.prepare(random, step);
        bench.run(step);
        for (const std::int32_t r : {0, n_rows - 1}) BOOST_TEST(error_of(bench, step, r) < 4e-6);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(attend_gives_a_row_the_same_bits_in_every_batch) {
  for (const Shape& shape : kShapes) {
    Random random(52);
    Bench bench(shape, 2, shape.window + 300, 300);
    bench.with_heads = shape.n_heads % 2 == 0;
    Step all;
    all.add_run(1, 880, 280);
    all.add_run(0, 3, 20);
    bench.prepare(random, all);
    bench.run(all, 320);
    const Floats out = bench.out, q = bench.q, table = bench.table;
    const auto ids = bench.ids, count = bench.count;
    const std::int64_t width = std::int64_t{shape.n_heads} * shape.d;
    for (const std::int32_t n : {1, 2, 3, 16, 17, 64}) {
      for (const std::int32_t first : {0, 64, 213}) {
        Step part;
        part.add_run(1, 880 + first, n);
        const auto rows = [&](const auto& x, std::int64_t w) {
          return std::remove_cvref_t<decltype(x)>(x.begin() + first * w,
                                                  x.begin() + (first + n) * w);
        };
        bench.q = rows(q, width);
        bench.table = rows(table, 2 * shape.n_pairs);
        bench.ids = rows(ids, shape.top_k);
        bench.count = rows(count, 1);
        bench.run(part);
        BOOST_REQUIRE(std::equal(bench.out.begin(), bench.out.end(), out.begin() + first * width));
      }
    }
  }
}

// Whether a step has an op between the two decides which of them it is: it must not show.
BOOST_AUTO_TEST_CASE(queries_have_the_same_bits_whether_attend_finishes_them_or_heads_does) {
  Random random(56);
  for (const Shape& shape : kShapes) {
    for (const std::int32_t n_rows : {1, 2, 20}) {
      Bench bench(shape, 1, shape.window + 30, 30);
      bench.with_heads = true;
      Step step;
      step.add_run(0, 60, n_rows);
      bench.prepare(random, step);
      bench.run(step);
      const Floats want = bench.out;
      bench.heads_apart = true;
      bench.run(step);
      BOOST_TEST((bench.out == want), "d = " << shape.d << ", " << n_rows << " rows");
    }
  }
}

BOOST_AUTO_TEST_CASE(attend_reads_a_chunk_from_its_slot_where_it_has_one) {
  Random random(55);
  for (const std::int32_t n_rows : {1, 20}) {
    Bench bench({16, 512, 32, 128, Chunks::chosen, 4, 64, RowFormat::fp8}, 2, 160, 110);
    Step step;
    step.add_run(1, 399 - n_rows, n_rows);
    bench.prepare(random, step);
    bench.run(step);
    const Floats want = bench.out;
    // Every third chunk moves to a slot; its old place is full of NaNs.
    const std::int64_t bytes = bench.chunks.store.row_bytes;
    bench.slot_of.assign(2 * 110, -1);
    bench.slots.assign(static_cast<std::size_t>(2 * 40 * bytes), std::byte{0xff});
    for (std::int32_t c = 0; c < 110; c += 3) {
      const std::int32_t slot = 39 - c / 3;
      bench.slot_of[static_cast<std::size_t>(110 + c)] = slot;
      std::byte* const row = bench.chunks.row(1, c);
      std::copy(row, row + bytes, bench.slots.begin() + (40 + slot) * bytes);
      std::fill(row, row + bytes, std::byte{0xff});
    }
    bench.run(step);
    BOOST_TEST((bench.out == want));
  }
}

BOOST_AUTO_TEST_CASE(attend_lets_a_nan_key_reach_every_head_that_sees_it) {
  Random random(54);
  Bench bench({4, 128, 16, 16, Chunks::none, 4, 1, RowFormat::f32}, 1, 64, 1);
  Step step;
  step.add_run(0, 40, 1);
  bench.prepare(random, step);
  const Floats nan = nan_floats(128);
  encode_row(RowFormat::f32, 128, 32, nan.data(), bench.ring.row(0, 33));
  bench.run(step);
  for (const float v : bench.out) BOOST_REQUIRE(std::isnan(v));
}

int main(int argc, char** argv) {
  int n_devices = 0;
  if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
    std::fprintf(stderr, "SKIPPED: no CUDA device here; no attention kernel was tested\n");
    return 77;
  }
  return boost::unit_test::unit_test_main(&init_unit_test, argc, argv);
}
