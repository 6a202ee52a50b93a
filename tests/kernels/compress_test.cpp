#define BOOST_TEST_MODULE compress
#define BOOST_TEST_DYN_LINK
#include "kernels/cpu/compress.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "kernels/rope.h"
#include "kernels/row_format.h"
#include "tests/kernels/refusal_cases.h"
#include "tests/kernels/run_phases.h"
#include "tests/kernels/step.h"
#include "tests/reference/compressor.h"
#include "tests/reference/indexer.h"
#include "tests/reference/numeric.h"

using namespace ebb;
using namespace ebb::test;

namespace {

/// The compressor of one layer with the tokens of some sequences, fed in any cut of steps.
struct Bench {
  std::int32_t ratio, d, n_pairs, overlap;
  Rounding rounding;
  std::int32_t n_sequences, n_tokens;
  std::int64_t width;
  std::vector<double> frequency;
  Floats kv, gate;  // [n_sequences, n_tokens, width]
  Floats ape, norm_weight, state_kv, state_gate;
  OwnedStore rows;

  Bench(std::int32_t ratio_, std::int32_t d_, std::int32_t n_pairs_, Rounding rounding_,
        RowFormat format, std::int32_t n_rot, std::int32_t n_sequences_, std::int32_t n_tokens_)
      : ratio(ratio_),
        d(d_),
        n_pairs(n_pairs_),
        overlap(ratio_ == 4 ? 1 : 0),
        rounding(rounding_),
        n_sequences(n_sequences_),
        n_tokens(n_tokens_),
        width((overlap + 1) * std::int64_t{d_}),
        rows(format, d_, n_rot, n_tokens_ / ratio_ + 1, n_sequences_) {
    Random random(31);
    frequency.resize(static_cast<std::size_t>(n_pairs));
    rope_frequencies({160000, 16, 65536, 32, 1}, n_pairs, frequency.data());
    kv = normal_floats(random, n_sequences * n_tokens * width, 2);
    gate = normal_floats(random, n_sequences * n_tokens * width, 2);
    ape = normal_floats(random, ratio * width, 0.7f);
    norm_weight = normal_floats(random, d, 0.2f, 1);
    const std::int64_t state_rows = overlap != 0 ? 2 * ratio : ratio;
    state_kv = nan_floats(n_sequences * state_rows * width);
    state_gate = state_kv;
  }

  void run(const Step& step, Schedule schedule = {}) {
    Floats batch_kv, batch_gate, table = nan_floats(step.n_rows * n_pairs * 2);
    for (std::int32_t r = 0; r < step.n_rows; ++r) {
      const auto at = static_cast<std::size_t>(r);
      const std::int64_t from = (std::int64_t{step.seq[at]} * n_tokens + step.pos[at]) * width;
      batch_kv.insert(batch_kv.end(), kv.begin() + from, kv.begin() + from + width);
      batch_gate.insert(batch_gate.end(), gate.begin() + from, gate.begin() + from + width);
      const std::int32_t first = step.pos[at] - (ratio - 1);
      for (std::int32_t i = 0; first >= 0 && i < n_pairs; ++i) {
        rope_entry(first, frequency[static_cast<std::size_t>(i)],
                   &table[static_cast<std::size_t>((r * n_pairs + i) * 2)]);
      }
    }
    CompressArgs a;
    a.step = step.view();
    a.kv = batch_kv.data();
    a.gate = batch_gate.data();
    a.ape = ape.data();
    a.state_kv = state_kv.data();
    a.state_gate = state_gate.data();
    a.ratio = ratio;
    a.d = d;
    a.overlap = overlap;
    a.norm_weight = norm_weight.data();
    a.eps = 1e-6f;
    a.cos_sin = table.data();
    a.n_pairs = n_pairs;
    a.rounding = rounding;
    a.rows = rows.store;
    cpu::PhaseList list;
    BOOST_REQUIRE(cpu::add_compress(list, a).has_value());
    run_phases(list, schedule);
  }

  /// Row of every chunk of a sequence, in double. The reference compressor is fed one-hot vectors,
  /// so that its matrices are the tokens' values.
  std::vector<std::vector<double>> reference_rows(std::int32_t sequence) const {
    reference::CompressorWeights w;
    w.kv = w.gate = reference::Matrix{width, n_tokens, {}};
    const auto cells = static_cast<std::size_t>(width * n_tokens);
    w.kv.values.resize(cells);
    w.gate.values.resize(cells);
    for (std::int64_t t = 0; t < n_tokens; ++t) {
      for (std::int64_t i = 0; i < width; ++i) {
        const auto from = static_cast<std::size_t>((sequence * n_tokens + t) * width + i);
        const auto to = static_cast<std::size_t>(i * n_tokens + t);
        w.kv.values[to] = kv[from];
        w.gate.values[to] = gate[from];
      }
    }
    w.ape = reference::Matrix{ratio, width, to_double(ape)};
    w.norm = to_double(norm_weight);
    reference::Compressor compressor(w, frequency, 1e-6);
    std::vector<std::vector<double>> result;
    for (std::int32_t t = 0; t < n_tokens; ++t) {
      std::vector<double> token(static_cast<std::size_t>(n_tokens), 0.0);
      token[static_cast<std::size_t>(t)] = 1;
      auto row = compressor.push(token);
      if (!row.has_value()) continue;
      const std::span<double> all(*row);
      if (rounding == Rounding::fp8_nope) {
        reference::simulate_fp8(all.first(static_cast<std::size_t>(d - 2 * n_pairs)));
      } else if (rounding != Rounding::none) {
        reference::hadamard(all);
        if (rounding == Rounding::hadamard_fp4) reference::simulate_fp4(all);
      }
      result.push_back(*row);
    }
    return result;
  }
};

struct Shape {
  std::int32_t ratio, d, n_pairs;
  Rounding rounding;
};
const Shape kShapes[] = {{4, 512, 32, Rounding::fp8_nope},     {4, 96, 16, Rounding::none},
                         {4, 128, 32, Rounding::hadamard_fp4}, {4, 64, 16, Rounding::hadamard},
                         {128, 192, 32, Rounding::fp8_nope},   {128, 7, 1, Rounding::none}};

}  // namespace

BOOST_AUTO_TEST_CASE(rows_equal_the_reference_and_nothing_else_is_written) {
  for (const Shape& s : kShapes) {
    const std::int32_t n_tokens = s.ratio == 4 ? 37 : 300;
    Bench bench(s.ratio, s.d, s.n_pairs, s.rounding, RowFormat::f32, 0, 1, n_tokens);
    Step step;
    step.add_run(0, 0, n_tokens);
    bench.run(step, {2, true});
    const auto want = bench.reference_rows(0);
    BOOST_REQUIRE(want.size() == static_cast<std::size_t>(n_tokens / s.ratio));
    for (std::size_t c = 0; c < want.size(); ++c) {
      const auto* got = reinterpret_cast<const float*>(bench.rows.row(0, static_cast<int>(c)));
      BOOST_TEST(largest_error(got, want[c]) < 5e-6);
    }
    const std::byte* const after = bench.rows.row(0, static_cast<int>(want.size()));
    BOOST_TEST(std::all_of(after, after + bench.rows.store.row_bytes,
                           [](std::byte b) { return b == std::byte{0xff}; }));
  }
}

BOOST_AUTO_TEST_CASE(any_cut_of_a_prompt_gives_the_same_bits) {
  for (const Shape& s : kShapes) {
    const std::int32_t n_tokens = s.ratio == 4 ? 29 : 270;
    Bench whole(s.ratio, s.d, s.n_pairs, s.rounding, RowFormat::f32, 0, 1, n_tokens);
    Step all;
    all.add_run(0, 0, n_tokens);
    whole.run(all);
    for (const std::int32_t cut : {1, 2, 3, 5, 7, 8, 9, 127, 128, 129}) {
      if (cut > n_tokens) continue;
      Bench parts(s.ratio, s.d, s.n_pairs, s.rounding, RowFormat::f32, 0, 1, n_tokens);
      for (std::int32_t first = 0; first < n_tokens; first += cut) {
        Step step;
        step.add_run(0, first, std::min(cut, n_tokens - first));
        parts.run(step, {first % 3 + 1, first % 2 == 1});
      }
      BOOST_TEST((parts.rows.memory == whole.rows.memory));
      const std::size_t bytes = whole.state_kv.size() * sizeof(float);
      BOOST_TEST(std::memcmp(parts.state_kv.data(), whole.state_kv.data(), bytes) == 0);
      BOOST_TEST(std::memcmp(parts.state_gate.data(), whole.state_gate.data(), bytes) == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(prompts_of_every_short_length_then_single_tokens_give_the_same_bits) {
  for (const std::int32_t ratio : {4, 128}) {
    const std::int32_t n_tokens = ratio == 4 ? 24 : 260;
    Bench whole(ratio, 64, 16, Rounding::fp8_nope, RowFormat::f32, 0, 1, n_tokens);
    Step all;
    all.add_run(0, 0, n_tokens);
    whole.run(all);
    const std::int32_t low = ratio == 4 ? 1 : 125, high = ratio == 4 ? 9 : 133;
    for (std::int32_t length = low; length <= high; ++length) {
      Bench parts(ratio, 64, 16, Rounding::fp8_nope, RowFormat::f32, 0, 1, n_tokens);
      Step prompt;
      prompt.add_run(0, 0, length);
      parts.run(prompt);
      for (std::int32_t pos = length; pos < n_tokens; ++pos) {
        Step token;
        token.add_run(0, pos, 1);
        parts.run(token);
      }
      BOOST_TEST((parts.rows.memory == whole.rows.memory));
    }
  }
}

BOOST_AUTO_TEST_CASE(interleaved_sequences_of_different_phase_do_not_mix) {
  for (const std::int32_t ratio : {4, 128}) {
    const std::int32_t n_tokens = ratio == 4 ? 40 : 400;
    Bench alone(ratio, 64, 16, Rounding::none, RowFormat::f32, 0, 3, n_tokens);
    for (std::int32_t s = 0; s < 3; ++s) {
      Step all;
      all.add_run(s, 0, n_tokens);
      alone.run(all);
    }
    Bench mixed(ratio, 64, 16, Rounding::none, RowFormat::f32, 0, 3, n_tokens);
    std::int32_t done[3] = {0, 0, 0};
    for (std::int32_t round = 0; *std::min_element(done, done + 3) < n_tokens; ++round) {
      Step step;
      for (std::int32_t k = 0; k < 3; ++k) {
        const std::int32_t s = (k + round) % 3;
        const std::int32_t want = s == 0 ? 1 + round % 2 * ratio : s == 1 ? 3 : ratio + 5;
        const std::int32_t n = std::min(want, n_tokens - done[s]);
        step.add_run(s, done[s], n);
        done[s] += n;
      }
      mixed.run(step, {2, round % 2 == 1});
    }
    BOOST_TEST((mixed.rows.memory == alone.rows.memory));
  }
}

BOOST_AUTO_TEST_CASE(a_new_prompt_ignores_the_state_of_the_last_one) {
  Bench fresh(4, 64, 16, Rounding::none, RowFormat::f32, 0, 1, 16);
  Step all;
  all.add_run(0, 0, 16);
  fresh.run(all);
  const auto rows = fresh.rows.memory;
  fresh.run(all);
  BOOST_TEST((fresh.rows.memory == rows));
}

BOOST_AUTO_TEST_CASE(packed_rows_hold_what_the_plain_rows_hold) {
  const std::tuple<std::int32_t, Rounding, RowFormat, std::int32_t> cases[] = {
      {512, Rounding::fp8_nope, RowFormat::fp8, 64},
      {512, Rounding::fp8_nope, RowFormat::f16, 64},
      {128, Rounding::hadamard_fp4, RowFormat::fp4, 0},
      {128, Rounding::hadamard_fp4, RowFormat::fp8, 0},
      {128, Rounding::none, RowFormat::fp8, 0}};
  for (const auto& [d, rounding, format, n_rot] : cases) {
    Bench plain(4, d, 32, rounding, RowFormat::f32, 0, 1, 32);
    Bench packed(4, d, 32, rounding, format, n_rot, 1, 32);
    Step all;
    all.add_run(0, 0, 32);
    plain.run(all);
    packed.run(all);
    for (int c = 0; c < 8; ++c) {
      const auto* want = reinterpret_cast<const float*>(plain.rows.row(0, c));
      for (std::int32_t i = 0; i < d; ++i) {
        const float got = decode_value(format, d, n_rot, packed.rows.row(0, c), i);
        // Dims that rotate are kept in bf16 or f16; unrounded keys lose bits in fp8.
        const bool exact =
            rounding == Rounding::hadamard_fp4 || (rounding == Rounding::fp8_nope && i < d - 64);
        const float allowed = exact ? 0 : std::fabs(want[i]) / 16 + 0.01f;
        BOOST_REQUIRE(std::fabs(got - want[i]) <= allowed);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_refused_with_a_reason) {
  check_compress_refusals(
      [](const CompressArgs& args) {
        cpu::PhaseList list;
        return cpu::add_compress(list, args);
      },
      1 << 16);
}
