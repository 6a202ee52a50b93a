// What must not change a result: the size of prefill steps, other sequences in the same step, the
// number of threads, what unwritten memory holds. And what must: the tokens a position can see.

#define BOOST_TEST_MODULE engine
#define BOOST_TEST_DYN_LINK
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>
#include <thread>

#include "tests/engine/harness.h"

namespace {

using ebb::StepRow;
using ebb::test::open_engine;
using ebb::test::prompt_logits;
using ebb::test::require;
using ebb::test::synthetic_manifest;
using Rows = std::vector<std::vector<float>>;

std::vector<std::int32_t> random_tokens(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(n);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 320);
  return tokens;
}

std::vector<std::string> with(std::vector<std::string> base, const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

const std::vector<std::string> kSizes = {"engine.max_context=512", "engine.prefill_chunk=320"};

bool same_bits(const Rows& a, const Rows& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
  }
  return true;
}

bool all_finite(const Rows& rows) {
  for (const auto& row : rows) {
    for (const float value : row) {
      if (!std::isfinite(value)) return false;
    }
  }
  return true;
}

/// Settings under which every invariance has to hold.
const std::vector<std::vector<std::string>> kVariants = {
    {},
    {"compute.precision=fast"},
    {"decoder.qat_simulation=true"},
    {"attention.kv_format=fp8", "attention.index_format=fp4"},
    {"attention.kv_format=f16", "attention.index_format=fp8", "compute.precision=fast"},
    {"loader.type_dense=Q4_K", "loader.type_experts_in=MXFP4", "loader.type_experts_down=Q6_K",
     "loader.type_other=BF16", "compute.precision=fast"},
};

}  // namespace

BOOST_AUTO_TEST_CASE(prefill_in_any_chunks_and_decode_give_the_same_bits) {
  const auto tokens = random_tokens(300, 1);
  for (const auto& variant : kVariants) {
    const auto engine = open_engine(synthetic_manifest(), with(kSizes, variant), true);
    const Rows whole = prompt_logits(*engine, tokens, 300);
    BOOST_TEST(all_finite(whole));
    for (const std::size_t chunk : {1U, 2U, 3U, 5U, 8U, 127U, 128U, 129U, 131U}) {
      BOOST_TEST(same_bits(whole, prompt_logits(*engine, tokens, chunk)),
                 "chunk " << chunk << " variant " << (variant.empty() ? "" : variant.front()));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_position_sees_nothing_of_later_tokens) {
  const auto tokens = random_tokens(200, 2);
  const auto engine = open_engine(synthetic_manifest(), kSizes, true);
  const Rows whole = prompt_logits(*engine, tokens, 200);
  for (const std::size_t n : {1U, 3U, 4U, 5U, 8U, 9U, 41U, 127U, 128U, 129U}) {
    const Rows cut = prompt_logits(*engine, std::span(tokens).first(n), n);
    BOOST_TEST(same_bits({whole[n - 1]}, {cut.back()}), "prompt cut at " << n);
  }
}

BOOST_AUTO_TEST_CASE(sequences_in_one_step_equal_their_solo_runs) {
  // Phases differ: 41 and 130 tokens in, so the compressors stand at other places.
  const auto a = random_tokens(90, 3), b = random_tokens(170, 4), c = random_tokens(12, 5);
  const auto sizes = with(kSizes, {"engine.max_sequences=3"});
  const auto solo = open_engine(synthetic_manifest(), kSizes, true);
  const auto engine = open_engine(synthetic_manifest(), sizes, true);
  const std::vector<std::vector<std::int32_t>> prompts = {a, b, c};
  std::vector<Rows> got(3);
  std::vector<std::size_t> fed = {0, 0, 0};
  std::vector<std::int32_t> sequence;
  for (int i = 0; i < 3; ++i) sequence.push_back(require(engine->open_sequence()));
  // Uneven bites, so that runs of several lengths share a step, some of one token.
  for (std::size_t turn = 0; fed[0] < a.size() || fed[1] < b.size() || fed[2] < c.size(); ++turn) {
    std::vector<StepRow> rows;
    std::vector<std::size_t> owner;
    for (std::size_t k : {1U, 0U, 2U}) {
      const std::size_t bite = (turn * 5 + k * 7) % 11 + (turn % 3 == k ? 20 : 0);
      for (std::size_t i = 0; i < bite && fed[k] < prompts[k].size(); ++i) {
        rows.push_back({sequence[k], prompts[k][fed[k]++], true});
        owner.push_back(k);
      }
    }
    if (rows.empty()) continue;
    require(engine->step(rows));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto logits = require(engine->logits(static_cast<std::int32_t>(i)));
      got[owner[i]].emplace_back(logits.begin(), logits.end());
    }
  }
  for (std::size_t k = 0; k < 3; ++k) {
    BOOST_TEST(same_bits(got[k], prompt_logits(*solo, prompts[k], prompts[k].size())),
               "sequence " << k);
  }
}

BOOST_AUTO_TEST_CASE(the_ring_may_wrap_at_any_place_of_a_step) {
  // The ring is as long as the window and a step together, so its length follows prefill_chunk.
  // Window 8: prompts of one token more than the window, of two windows and beyond, and long ones.
  const auto tokens = random_tokens(200, 13);
  for (const auto& variant : {std::vector<std::string>{}, kVariants[3]}) {
    const auto roomy = open_engine(synthetic_manifest(), with(kSizes, variant), true);
    const Rows want = prompt_logits(*roomy, tokens, tokens.size());
    for (const std::size_t chunk : {1U, 3U, 8U, 16U, 29U, 64U}) {
      const auto engine = open_engine(
          synthetic_manifest(),
          with(with(kSizes, variant), {"engine.prefill_chunk=" + std::to_string(chunk)}), true);
      for (const std::size_t n : {9U, 16U, 29U, 200U}) {
        const Rows whole(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(n));
        BOOST_TEST(same_bits(whole, prompt_logits(*engine, std::span(tokens).first(n), chunk)),
                   "prompt of " << n << " in steps of " << chunk);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_context_may_end_anywhere_and_be_shorter_than_a_step) {
  const auto tokens = random_tokens(260, 14);
  const auto roomy = open_engine(synthetic_manifest(), kSizes, true);
  const Rows want = prompt_logits(*roomy, tokens, tokens.size());
  for (const std::size_t n : {1U, 3U, 4U, 6U, 127U, 128U, 131U, 257U}) {
    const auto engine = open_engine(synthetic_manifest(),
                                    {"engine.max_context=" + std::to_string(n),
                                     "engine.prefill_chunk=65536", "compute.poison=true"},
                                    true);
    BOOST_TEST(engine->max_rows() == static_cast<std::int32_t>(n));
    const Rows whole(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(n));
    BOOST_TEST(same_bits(whole, prompt_logits(*engine, std::span(tokens).first(n), n)),
               "context of " << n);
  }
}

BOOST_AUTO_TEST_CASE(storage_formats_that_attention_does_not_have_are_refused) {
  for (const auto& [key, formats] : {std::pair{"attention.kv_format", "f32, f16, fp8"},
                                     std::pair{"attention.index_format", "f32, fp8, fp4"}}) {
    try {
      open_engine(synthetic_manifest(), {std::string(key) + "=q8_0"});
      BOOST_ERROR("not refused");
    } catch (const std::runtime_error& error) {
      const std::string message = error.what();
      BOOST_TEST(message.find("\"q8_0\"") != std::string::npos, message);
      BOOST_TEST(message.find(formats) != std::string::npos, message);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_closed_sequence_leaves_nothing_behind) {
  const auto tokens = random_tokens(150, 6);
  const auto fresh = open_engine(synthetic_manifest(), kSizes, true);
  const auto used = open_engine(synthetic_manifest(), kSizes, true);
  prompt_logits(*used, random_tokens(233, 7), 100);
  BOOST_TEST(same_bits(prompt_logits(*fresh, tokens, 150), prompt_logits(*used, tokens, 150)));
}

BOOST_AUTO_TEST_CASE(threads_do_not_change_a_bit) {
  const auto tokens = random_tokens(140, 8);
  for (const char* precision : {"compute.precision=exact", "compute.precision=fast"}) {
    Rows first;
    for (const char* threads : {"compute.threads=1", "compute.threads=2", "compute.threads=5"}) {
      const auto engine =
          open_engine(synthetic_manifest(), with(kSizes, {threads, precision}), true);
      const Rows rows = prompt_logits(*engine, tokens, 50);
      if (first.empty()) first = rows;
      BOOST_TEST(same_bits(first, rows), threads << " " << precision);
    }
  }
}

BOOST_AUTO_TEST_CASE(memory_that_was_never_written_is_never_read) {
  const auto tokens = random_tokens(140, 9);
  for (const auto& variant : kVariants) {
    const auto zeroed = open_engine(synthetic_manifest(), with(kSizes, variant), true);
    const auto poisoned = open_engine(synthetic_manifest(),
                                      with(with(kSizes, variant), {"compute.poison=true"}), true);
    for (const std::size_t n : {1U, 3U, 127U, 140U}) {
      const auto prompt = std::span(tokens).first(n);
      const Rows rows = prompt_logits(*poisoned, prompt, n);
      BOOST_TEST(all_finite(rows), "prompt of " << n);
      BOOST_TEST(same_bits(rows, prompt_logits(*zeroed, prompt, n)), "prompt of " << n);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_window_is_128_tokens_with_the_query) {
  const std::vector<std::string> window_layer = {"loader.n_layers=1", "loader.ratios=[0]",
                                                 "loader.window=128", "loader.n_hash_layers=0"};
  const auto engine = open_engine(synthetic_manifest(), with(kSizes, window_layer), true);
  auto tokens = random_tokens(200, 10);
  const std::size_t t = 190;
  const auto row = [&] {
    return prompt_logits(*engine, std::span(tokens).first(t + 1), 64).back();
  };
  const auto before = row();
  auto change = [&](std::size_t at) { tokens[at] = (tokens[at] + 1) % 320; };
  change(t - 128);
  BOOST_TEST(same_bits({before}, {row()}), "token t - 128 must not be seen");
  change(t - 127);
  BOOST_TEST(!same_bits({before}, {row()}), "token t - 127 must be seen");
}

BOOST_AUTO_TEST_CASE(a_chunk_is_visible_to_the_token_that_completes_it) {
  // With a window of one token, what a token sees of its past it sees through chunks (one layer, so
  // nothing else carries the past).
  for (const auto& [ratios, ratio] :
       {std::pair{"loader.ratios=[4]", 4U}, std::pair{"loader.ratios=[128]", 128U}}) {
    const auto engine = open_engine(
        synthetic_manifest(),
        with(kSizes, {"loader.n_layers=1", ratios, "loader.window=1", "loader.n_hash_layers=0"}),
        true);
    auto tokens = random_tokens(2 * ratio, 11);
    const Rows before = prompt_logits(*engine, tokens, tokens.size());
    tokens[0] = (tokens[0] + 1) % 320;
    const Rows after = prompt_logits(*engine, tokens, tokens.size());
    BOOST_TEST(!same_bits({before[0]}, {after[0]}));
    for (std::size_t i = 1; i + 1 < ratio; ++i) {
      BOOST_TEST(same_bits({before[i]}, {after[i]}), "no chunk yet at " << i);
    }
    BOOST_TEST(!same_bits({before[ratio - 1]}, {after[ratio - 1]}), "chunk 0 at its last token");
  }
}

BOOST_AUTO_TEST_CASE(hash_layers_route_by_the_row_s_own_token) {
  const auto engine =
      open_engine(synthetic_manifest(), with(kSizes, {"engine.max_sequences=2"}), true);
  const std::int32_t a = require(engine->open_sequence()), b = require(engine->open_sequence());
  const auto pair = [&](std::int32_t first, std::int32_t second) {
    engine->close_sequence(a);
    engine->close_sequence(b);
    require(engine->open_sequence());
    require(engine->open_sequence());
    const StepRow rows[] = {{a, first, true}, {b, second, true}};
    require(engine->step(rows));
    Rows out;
    for (int i = 0; i < 2; ++i) {
      const auto logits = require(engine->logits(i));
      out.emplace_back(logits.begin(), logits.end());
    }
    return out;
  };
  const Rows forward = pair(17, 200), backward = pair(200, 17);
  BOOST_TEST(same_bits(forward, {backward[1], backward[0]}));
}

BOOST_AUTO_TEST_CASE(two_engines_in_one_process_do_not_meet) {
  const auto tokens = random_tokens(120, 12);
  const auto lone = open_engine(synthetic_manifest(), kSizes, true);
  const Rows want = prompt_logits(*lone, tokens, 40);
  std::vector<Rows> got(2);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      const auto engine =
          open_engine(synthetic_manifest(),
                      with(kSizes, {"engine.name=\"engine" + std::to_string(i) + "\""}), true);
      for (int round = 0; round < 3; ++round) got[i] = prompt_logits(*engine, tokens, 40);
    });
  }
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(same_bits(want, got[0]));
  BOOST_TEST(same_bits(want, got[1]));
}

BOOST_AUTO_TEST_CASE(a_filled_sequence_goes_on_from_its_length_and_leaves_others_alone) {
  const auto tokens = random_tokens(60, 11);
  for (const auto& variant : kVariants) {
    const auto solo = open_engine(synthetic_manifest(), with(kSizes, variant), true);
    const auto engine = open_engine(synthetic_manifest(),
                                    with(with(kSizes, {"engine.max_sequences=2"}), variant), true);
    const auto decode = [&](std::uint64_t seed) {
      const std::int32_t sequence = require(engine->open_sequence());
      require(engine->fill(sequence, 400, seed));
      BOOST_TEST(engine->length(sequence) == 400);
      Rows rows;
      for (int i = 0; i < 12; ++i) {
        const StepRow row{sequence, i, true};
        require(engine->step({&row, 1}));
        const auto logits = require(engine->logits(0));
        rows.emplace_back(logits.begin(), logits.end());
      }
      BOOST_TEST(engine->length(sequence) == 412);
      engine->close_sequence(sequence);
      return rows;
    };
    const std::int32_t other = require(engine->open_sequence());
    std::vector<StepRow> rows;
    for (const std::int32_t token : tokens) rows.push_back({other, token});
    rows.pop_back();
    require(engine->step(rows));
    const Rows one = decode(1);
    BOOST_TEST(all_finite(one));
    BOOST_TEST(same_bits(one, decode(1)));
    BOOST_TEST(!same_bits(one, decode(2)));
    const StepRow last{other, tokens.back(), true};
    require(engine->step({&last, 1}));
    const auto logits = require(engine->logits(0));
    Rows got;
    got.emplace_back(logits.begin(), logits.end());
    BOOST_TEST(same_bits(got, prompt_logits(*solo, tokens, 60, true)));
  }
}

BOOST_AUTO_TEST_CASE(only_an_empty_sequence_can_be_filled_and_only_so_far) {
  const auto engine = open_engine(synthetic_manifest(), kSizes);
  BOOST_TEST(!engine->fill(0, 1, 0));
  const std::int32_t sequence = require(engine->open_sequence());
  BOOST_TEST(!engine->fill(sequence, 513, 0));
  BOOST_TEST(!engine->fill(sequence, -1, 0));
  BOOST_TEST(engine->length(sequence) == 0);
  require(engine->fill(sequence, 512, 0));
  BOOST_TEST(!engine->fill(sequence, 1, 0));
}

BOOST_AUTO_TEST_CASE(a_step_refuses_what_it_cannot_feed_and_changes_nothing) {
  const auto engine =
      open_engine(synthetic_manifest(),
                  {"engine.max_context=8", "engine.prefill_chunk=4", "engine.max_sequences=2"});
  const std::int32_t a = require(engine->open_sequence()), b = require(engine->open_sequence());
  const auto refused = [&](std::vector<StepRow> rows, const char* words) {
    const ebb::Status status = engine->step(rows);
    BOOST_REQUIRE(!status);
    BOOST_TEST(status.error().message.find(words) != std::string::npos, status.error().message);
    BOOST_TEST(engine->length(a) == 0);
  };
  BOOST_TEST(!engine->open_sequence());
  refused({}, "0 rows: want 1..4");
  refused({{a, 1}, {a, 1}, {a, 1}, {a, 1}, {a, 1}}, "5 rows: want 1..4");
  refused({{a, 320}}, "token id 320: want 0..319");
  refused({{a, -1}}, "token id -1");
  refused({{7, 1}}, "sequence 7 is not open");
  refused({{a, 1}, {b, 1}, {a, 1}}, "do not stand together");
  refused({{a, 1, true}, {a, 1, true}, {a, 1, true}}, "more than 2 rows");
  BOOST_TEST(!engine->logits(0));
  const std::vector<StepRow> four = {{b, 1}, {b, 2}, {b, 3}, {b, 4}};
  require(engine->step(four));
  require(engine->step(four));
  refused({{b, 1}}, "max_context allows 8 tokens");
  engine->close_sequence(b);
  BOOST_TEST(require(engine->open_sequence()) == b);
  require(engine->step(four));
}
