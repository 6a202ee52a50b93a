#define BOOST_TEST_DYN_LINK
#include <algorithm>
#include <cstring>

#include "kernels/cuda/rows.h"
#include "kernels/rope.h"
#include "kernels/row_format.h"
#include "tests/cuda/mirror.h"
#include "tests/reference/compressor.h"
#include "tests/reference/indexer.h"
#include "tests/reference/numeric.h"

using namespace ebb;
using namespace ebb::test;

namespace {

/// The rounding of the reference, in place.
void round_double(std::span<double> x, Rounding rounding, std::int32_t n_pairs) {
  if (rounding == Rounding::fp8_nope) {
    reference::simulate_fp8(x.first(x.size() - 2 * static_cast<std::size_t>(n_pairs)));
  } else if (rounding != Rounding::none) {
    reference::hadamard(x);
    if (rounding == Rounding::hadamard_fp4) reference::simulate_fp4(x);
  }
}

/// Share of values that are off by more than `limit`: a value on the edge of a rounding step may
/// fall on its other side, everything else has to agree.
double share_off(const float* got, const std::vector<double>& want, double limit) {
  std::size_t off = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!(std::fabs(got[i] - want[i]) <= limit * (1 + std::fabs(want[i])))) ++off;
  }
  return static_cast<double>(off) / static_cast<double>(want.size());
}

/// Two compressors of a layer, its appended rows and its index queries, with the tokens of some
/// sequences, fed in any cut of steps as one group.
struct Bench {
  std::int32_t ratio, d, d_index, n_pairs, n_sequences, n_tokens;
  Rounding rounding, index_rounding;
  std::vector<double> frequency;
  struct Part {
    std::int32_t d;
    std::int64_t width;
    Rounding rounding;
    Floats kv, gate, ape, norm, state_kv, state_gate;
    OwnedStore rows;
  };
  std::vector<Part> parts;
  Floats append_kv, append_norm, index_q;
  OwnedStore ring;
  static constexpr std::int32_t kHeads = 9;

  Bench(std::int32_t ratio_, std::int32_t d_, std::int32_t d_index_, std::int32_t n_pairs_,
        Rounding rounding_, Rounding index_rounding_, RowFormat format, std::int32_t n_sequences_,
        std::int32_t n_tokens_)
      : ratio(ratio_),
        d(d_),
        d_index(d_index_),
        n_pairs(n_pairs_),
        n_sequences(n_sequences_),
        n_tokens(n_tokens_),
        rounding(rounding_),
        index_rounding(index_rounding_),
        frequency(static_cast<std::size_t>(n_pairs_)),
        ring(format, d_, 2 * n_pairs_, n_tokens_, n_sequences_) {
    Random random(31);
    rope_frequencies({160000, 16, 65536, 32, 1}, n_pairs, frequency.data());
    for (const auto& [width, r, kind] :
         {std::tuple{d, rounding, format}, {d_index, index_rounding, RowFormat::f32}}) {
      const std::int64_t values = (ratio == 4 ? 2 : 1) * std::int64_t{width};
      const std::int64_t state = (ratio == 4 ? 8 : ratio) * values * n_sequences;
      parts.push_back({width, values, r, normal_floats(random, n_sequences * n_tokens * values, 2),
                       normal_floats(random, n_sequences * n_tokens * values, 2),
                       normal_floats(random, ratio * values, 0.7f),
                       normal_floats(random, width, 0.2f, 1), nan_floats(state), nan_floats(state),
                       OwnedStore(kind, width, width == d ? 2 * n_pairs : 0, n_tokens / ratio + 1,
                                  n_sequences)});
    }
    append_kv = normal_floats(random, std::int64_t{n_sequences} * n_tokens * d, 2);
    append_norm = normal_floats(random, d, 0.2f, 1);
    index_q = normal_floats(random, std::int64_t{n_sequences} * n_tokens * kHeads * d_index);
  }

  /// Rows of the step out of [n_sequences, n_tokens, width].
  Floats rows_of(const Step& step, const Floats& all, std::int64_t width) const {
    Floats x;
    for (std::size_t r = 0; r < static_cast<std::size_t>(step.n_rows); ++r) {
      const std::int64_t from = (std::int64_t{step.seq[r]} * n_tokens + step.pos[r]) * width;
      x.insert(x.end(), all.begin() + from, all.begin() + from + width);
    }
    return x;
  }

  /// Runs the step as one group; the step's index queries, finished.
  Floats run(const Step& step, std::int32_t max_rows = 0) {
    Mirror mirror;
    const StepView view = mirror.step(step, max_rows);
    Floats table = nan_floats(step.n_rows * n_pairs * 2), chunk_table = table;
    cuda::RopeTables tables;
    tables.n = 2;
    tables.tables[0] = {view, mirror.put(frequency), n_pairs, 0, mirror.share(table)};
    tables.tables[1] = {view, mirror.put(frequency), n_pairs, 1 - ratio, mirror.share(chunk_table)};
    Floats q = rows_of(step, index_q, std::int64_t{kHeads} * d_index);
    cuda::RowGroup group;
    group.n_compressions = 2;
    for (std::size_t i = 0; i < 2; ++i) {
      Part& part = parts[i];
      CompressArgs& a = group.compress[i];
      a.step = view;
      a.kv = mirror.put(rows_of(step, part.kv, part.width));
      a.gate = mirror.put(rows_of(step, part.gate, part.width));
      a.ape = mirror.put(part.ape);
      a.state_kv = mirror.share(part.state_kv);
      a.state_gate = mirror.share(part.state_gate);
      a.ratio = ratio;
      a.d = part.d;
      a.overlap = ratio == 4 ? 1 : 0;
      a.norm_weight = mirror.put(part.norm);
      a.eps = 1e-6f;
      a.cos_sin = tables.tables[1].cos_sin;
      a.n_pairs = n_pairs;
      a.rounding = part.rounding;
      a.rows = mirror.share(part.rows);
      group.compress_rot[i] = i == 0 ? 2 * n_pairs : 0;
    }
    group.has_append = true;
    group.append = {view,
                    mirror.put(rows_of(step, append_kv, d)),
                    mirror.put(append_norm),
                    1e-6f,
                    tables.tables[0].cos_sin,
                    n_pairs,
                    d,
                    rounding,
                    mirror.share(ring)};
    group.append_rot = 2 * n_pairs;
    group.has_heads = true;
    group.heads = {view, mirror.share(q),          kHeads,  d_index,       false,
                   0,    tables.tables[0].cos_sin, n_pairs, index_rounding};
    require_cuda(cuda::rope_tables(mirror.launch(0), tables));
    require_cuda(cuda::row_group(mirror.launch(0), group));
    mirror.fetch();
    return q;
  }

  /// Row of every chunk of a sequence, in double. The reference compressor is fed one-hot vectors,
  /// so that its matrices are the tokens' values.
  std::vector<std::vector<double>> reference_rows(const Part& part, std::int32_t sequence) const {
    reference::CompressorWeights w;
    w.kv = w.gate = reference::Matrix{part.width, n_tokens, {}};
    const auto cells = static_cast<std::size_t>(part.width * n_tokens);
    w.kv.values.resize(cells);
    w.gate.values.resize(cells);
    for (std::int64_t t = 0; t < n_tokens; ++t) {
      for (std::int64_t i = 0; i < part.width; ++i) {
        const auto from = static_cast<std::size_t>((sequence * n_tokens + t) * part.width + i);
        const auto to = static_cast<std::size_t>(i * n_tokens + t);
        w.kv.values[to] = part.kv[from];
        w.gate.values[to] = part.gate[from];
      }
    }
    w.ape = reference::Matrix{ratio, part.width, to_double(part.ape)};
    w.norm = to_double(part.norm);
    reference::Compressor compressor(w, frequency, 1e-6);
    std::vector<std::vector<double>> result;
    for (std::int32_t t = 0; t < n_tokens; ++t) {
      std::vector<double> token(static_cast<std::size_t>(n_tokens), 0.0);
      token[static_cast<std::size_t>(t)] = 1;
      auto row = compressor.push(token);
      if (!row.has_value()) continue;
      round_double(*row, part.rounding, n_pairs);
      result.push_back(*row);
    }
    return result;
  }
};

struct Shape {
  std::int32_t ratio, d, d_index, n_pairs;
  Rounding rounding, index_rounding;
};
const Shape kShapes[] = {
    {4, 512, 128, 32, Rounding::fp8_nope, Rounding::hadamard_fp4},
    {4, 512, 128, 32, Rounding::none, Rounding::none},
    {4, 96, 64, 16, Rounding::none, Rounding::hadamard},
    {128, 192, 128, 32, Rounding::fp8_nope, Rounding::hadamard},
    {128, 70, 32, 9, Rounding::none, Rounding::hadamard_fp4},
};

}  // namespace

BOOST_AUTO_TEST_CASE(row_groups_equal_the_reference_and_write_nothing_else) {
  for (const Shape& s : kShapes) {
    const std::int32_t n_tokens = s.ratio == 4 ? 37 : 300;
    Bench bench(s.ratio, s.d, s.d_index, s.n_pairs, s.rounding, s.index_rounding, RowFormat::f32, 1,
                n_tokens);
    Step step;
    step.add_run(0, 0, n_tokens);
    const Floats q = bench.run(step, n_tokens + 3);
    for (Bench::Part& part : bench.parts) {
      const auto want = bench.reference_rows(part, 0);
      BOOST_REQUIRE(want.size() == static_cast<std::size_t>(n_tokens / s.ratio));
      for (std::size_t c = 0; c < want.size(); ++c) {
        const auto* got = reinterpret_cast<const float*>(part.rows.row(0, static_cast<int>(c)));
        BOOST_TEST(share_off(got, want[c], 5e-6) <= 0.01);
      }
      const std::byte* const after = part.rows.row(0, static_cast<int>(want.size()));
      BOOST_TEST(std::all_of(after, after + part.rows.store.row_bytes,
                             [](std::byte b) { return b == std::byte{0xff}; }));
    }
    for (std::int32_t t = 0; t < n_tokens; ++t) {
      auto row =
          reference::rms_norm(to_double(&bench.append_kv[static_cast<std::size_t>(t * s.d)], s.d),
                              to_double(bench.append_norm), 1e-6);
      reference::rotate(row, bench.frequency, t);
      round_double(row, s.rounding, s.n_pairs);
      BOOST_TEST(share_off(reinterpret_cast<const float*>(bench.ring.row(0, t)), row, 5e-6) <=
                 0.01);
      for (std::int32_t h = 0; h < Bench::kHeads; ++h) {
        const auto at = static_cast<std::size_t>((t * Bench::kHeads + h) * s.d_index);
        auto head = to_double(&bench.index_q[at], s.d_index);
        reference::rotate(head, bench.frequency, t);
        round_double(head, s.index_rounding, s.n_pairs);
        BOOST_TEST(share_off(&q[at], head, 5e-6) <= 0.02);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(row_groups_leave_the_same_bits_for_every_cut_of_a_prompt) {
  for (const Shape& s : kShapes) {
    for (const RowFormat format : {RowFormat::f32, RowFormat::f16, RowFormat::fp8}) {
      const std::int32_t n_tokens = s.ratio == 4 ? 29 : 270;
      const auto make = [&] {
        return Bench(s.ratio, s.d, s.d_index, s.n_pairs, s.rounding, s.index_rounding, format, 2,
                     n_tokens);
      };
      Bench whole = make();
      Step all;
      all.add_run(1, 0, n_tokens);
      all.add_run(0, 0, n_tokens);
      whole.run(all);
      for (const std::int32_t cut : {1, 2, 3, 5, 8, 127, 128, 129}) {
        if (cut > n_tokens || (s.ratio == 128 && cut < 3 && format != RowFormat::f32)) continue;
        Bench parts = make();
        for (const std::int32_t sequence : {0, 1}) {
          for (std::int32_t first = 0; first < n_tokens; first += cut) {
            Step step;
            step.add_run(sequence, first, std::min(cut, n_tokens - first));
            parts.run(step);
          }
        }
        BOOST_TEST((parts.ring.memory == whole.ring.memory));
        for (std::size_t i = 0; i < 2; ++i) {
          const Bench::Part &a = parts.parts[i], &b = whole.parts[i];
          BOOST_TEST((a.rows.memory == b.rows.memory));
          const std::size_t bytes = a.state_kv.size() * sizeof(float);
          BOOST_TEST(std::memcmp(a.state_kv.data(), b.state_kv.data(), bytes) == 0);
          BOOST_TEST(std::memcmp(a.state_gate.data(), b.state_gate.data(), bytes) == 0);
        }
      }
    }
  }
}
