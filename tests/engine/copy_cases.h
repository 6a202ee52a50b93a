#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/harness.h"

// A sequence that was copied goes on as one that was fed: the same bits, wherever it is copied,
// whatever is in the places that it gets, and beside others of the same origin.

namespace ebb::test {

struct CopyCase {
  const char* name;
  std::vector<std::string> settings;
};

/// Every format of rows and keys, and every way of keeping them.
inline std::vector<CopyCase> copy_cases() {
  const auto swapping = [](const char* mode, const char* format) -> std::vector<std::string> {
    return {"swap.module=swap_lru", std::string("swap.staging=") + mode, "swap.slots=9",
            std::string("attention.kv_format=") + format};
  };
  return {{"f32", {}},
          {"f16, fp8", {"attention.kv_format=f16", "attention.index_format=fp8"}},
          {"fp8, fp4", {"attention.kv_format=fp8", "attention.index_format=fp4"}},
          {"rounding as in training", {"decoder.qat_simulation=true"}},
          {"zero_copy f32", swapping("zero_copy", "f32")},
          {"zero_copy fp8", swapping("zero_copy", "fp8")},
          {"demand f32", swapping("demand", "f32")},
          {"demand f16", swapping("demand", "f16")}};
}

inline bool swaps(const CopyCase& one) {
  return !one.settings.empty() && one.settings[0].starts_with("swap.module=");
}

/// The window has 8 tokens and its ring 7 + kCopyStep rows; chunks have 4 and 128 tokens.
constexpr std::size_t kCopyTokens = 330, kCopyStep = 40;
/// Tokens by which the copies go on.
constexpr std::size_t kCopyMore = 30;

/// Before any chunk, inside of chunks and at their ends, where the window or the ring is full and
/// one further, and where the ring has gone round several times. The first case has them all, the
/// others every third, beginning at another each.
inline std::vector<std::size_t> copy_places(std::size_t i_case) {
  const std::vector<std::size_t> all = {1,  2,  3,  4,   5,   7,   8,   9,   40,  46,
                                        47, 48, 95, 127, 128, 129, 132, 200, 256, 299};
  std::vector<std::size_t> some;
  for (std::size_t i = i_case % 3; i < all.size(); i += i_case == 0 ? 1 : 3) some.push_back(all[i]);
  return some;
}

class CopyRun {
 public:
  using Rows = std::vector<std::vector<float>>;

  explicit CopyRun(std::vector<std::string> settings) : settings_(std::move(settings)) {
    const std::vector<std::string> sizes = {"engine.max_context=" + std::to_string(kCopyTokens),
                                            "engine.prefill_chunk=" + std::to_string(kCopyStep),
                                            "engine.max_sequences=2", "engine.prefix_sequences=1"};
    settings_.insert(settings_.end(), sizes.begin(), sizes.end());
    engine_ = open_engine(synthetic_manifest(), settings_, true);
    tokens_ = random_tokens(1);
    other_ = random_tokens(2);
    want_ = prompt_logits(*engine_, tokens_, kCopyStep);
  }

  /// What is wrong with copies of the first `place` tokens, or "".
  std::string check(std::size_t place) {
    const std::size_t end = place + kCopyMore;
    const std::vector<std::int32_t> changed = changed_at(place);
    const Rows want_changed = prompt_logits(*engine_, changed, kCopyStep);

    // The places that the copies get hold the end of what was fed there.
    const std::int32_t from = require(engine_->open_sequence());
    require(cli::prefill(*engine_, from, std::span(tokens_).first(place), nullptr, false));
    const std::int32_t same = require(engine_->open_sequence());
    const std::int32_t turned = require(engine_->open_sequence());
    require(engine_->copy(from, same));
    require(engine_->copy(from, turned));
    if (engine_->length(same) != static_cast<std::int64_t>(place)) return "a wrong length";

    // Both go on in the same steps: by some tokens, one by one, then by the rest.
    Rows got_same, got_changed, got_from;
    for (std::size_t at = place; at < end;) {
      const std::size_t step = at - place;
      const std::size_t n = step == 0 ? 3 : step < 17 ? 1 : end - at;
      feed({{same, &tokens_, &got_same}, {turned, &changed, &got_changed}}, at, n);
      at += n;
    }
    engine_->close_sequence(turned);
    // What was copied from is as it was.
    for (std::size_t at = place; at < end;) {
      const std::size_t n = at == place ? 1 : end - at;
      feed({{from, &tokens_, &got_from}}, at, n);
      at += n;
    }
    engine_->close_sequence(same);
    engine_->close_sequence(from);
    same_ = got_same;
    turned_ = got_changed;
    from_ = got_from;
    if (!equals_from(place, want_, got_same)) return "a copy goes on differently";
    if (!equals_from(place, want_changed, got_changed)) return "a copy with another end is wrong";
    if (!equals_from(place, want_, got_from)) return "what was copied from goes on differently";
    for (const SwapCounters& c : require(engine_->swap_counters())) {
      if (c.born + c.misses - c.pool_reads + c.promotions != c.evictions + c.freed) {
        return "slots are lost";
      }
    }
    return "";
  }

  /// Prints where the rows of the last check, and sequences fed afresh in steps of several sizes,
  /// leave what an engine says that swaps nothing: steps of 36 give birth to no more chunks than
  /// there are slots, steps of 40 to one more, which is read from the pool in the step that makes
  /// it; steps of 1 and 2 are those of the plan for decode.
  void explain(std::size_t place) {
    std::vector<std::string> resident = settings_;
    resident.emplace_back("swap.staging=resident");
    const auto plain = open_engine(synthetic_manifest(), resident, true);
    const Rows right = prompt_logits(*plain, tokens_, kCopyStep);
    const std::vector<std::int32_t> changed = changed_at(place);
    const Rows right_changed = prompt_logits(*plain, changed, kCopyStep);
    std::printf("  against an engine without swapping:\n");
    compare("fed first, by 40", right, want_, 0);
    for (const std::size_t step : {40, 36, 20, 4, 2, 1}) {
      compare("by " + std::to_string(step), right, prompt_logits(*engine_, tokens_, step), 0);
    }
    const std::int32_t first = require(engine_->open_sequence());
    compare("by 40, sequence 1", right, prompt_logits(*engine_, tokens_, 40), 0);
    compare("by 36, sequence 1", right, prompt_logits(*engine_, tokens_, 36), 0);
    compare("by 1, sequence 1", right, prompt_logits(*engine_, tokens_, 1), 0);
    engine_->close_sequence(first);
    two_at_once("two by 18", right, 18);
    two_at_once("two by 1", right, 1);
    compare("the copy", right, same_, place);
    compare("the copy with another end", right_changed, turned_, place);
    compare("what was copied", right, from_, place);
  }

 private:
  struct Part {
    std::int32_t sequence;
    const std::vector<std::int32_t>* tokens;
    Rows* logits;
  };

  static std::ptrdiff_t offset(std::size_t n) { return static_cast<std::ptrdiff_t>(n); }
  static std::vector<std::int32_t> random_tokens(unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> tokens(kCopyTokens);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 320);
    return tokens;
  }

  std::vector<std::int32_t> changed_at(std::size_t place) const {
    std::vector<std::int32_t> changed(tokens_.begin(), tokens_.begin() + offset(place));
    changed.insert(changed.end(), other_.begin() + offset(place),
                   other_.begin() + offset(place + kCopyMore));
    return changed;
  }

  /// Two sequences side by side, from their beginning.
  void two_at_once(const char* what, const Rows& right, std::size_t step) {
    const std::int32_t a = require(engine_->open_sequence());
    const std::int32_t b = require(engine_->open_sequence());
    Rows rows_a, rows_b;
    for (std::size_t at = 0; at < tokens_.size(); at += step) {
      const std::size_t n = std::min(step, tokens_.size() - at);
      feed({{a, &tokens_, &rows_a}, {b, &tokens_, &rows_b}}, at, n);
    }
    engine_->close_sequence(b);
    engine_->close_sequence(a);
    compare(what + std::string(", sequence 0"), right, rows_a, 0);
    compare(what + std::string(", sequence 1"), right, rows_b, 0);
  }

  static void compare(const std::string& what, const Rows& right, const Rows& rows,
                      std::size_t place) {
    std::size_t n_wrong = 0, first = 0;
    double largest = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float>& want = right[place + i];
      if (std::memcmp(want.data(), rows[i].data(), want.size() * sizeof(float)) == 0) continue;
      if (n_wrong++ == 0) first = place + i;
      for (std::size_t j = 0; j < want.size(); ++j) {
        const double distance = std::abs(double{want[j]} - double{rows[i][j]});
        if (!(distance <= largest)) largest = distance;  // NaN is seen
      }
    }
    if (n_wrong == 0) {
      std::printf("  %-28s the same, %zu tokens\n", what.c_str(), rows.size());
    } else {
      std::printf("  %-28s %zu of %zu tokens differ, the first is %zu, by up to %.3g\n",
                  what.c_str(), n_wrong, rows.size(), first, largest);
    }
  }

  void feed(const std::vector<Part>& parts, std::size_t at, std::size_t n) {
    std::vector<StepRow> rows;
    for (const Part& part : parts) {
      for (std::size_t i = at; i < at + n; ++i) {
        rows.push_back({part.sequence, (*part.tokens)[i], true});
      }
    }
    require(engine_->step(rows));
    std::int32_t out = 0;
    for (const Part& part : parts) {
      for (std::size_t i = 0; i < n; ++i) {
        const std::span<const float> logits = require(engine_->logits(out++));
        part.logits->emplace_back(logits.begin(), logits.end());
      }
    }
  }

  /// Bit by bit.
  static bool equals_from(std::size_t place, const Rows& all, const Rows& part) {
    if (part.size() != kCopyMore) return false;
    for (std::size_t i = 0; i < part.size(); ++i) {
      const std::vector<float>& row = all[place + i];
      if (row.size() != part[i].size() ||
          std::memcmp(row.data(), part[i].data(), row.size() * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }

  std::vector<std::string> settings_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::int32_t> tokens_, other_;
  Rows want_;
  Rows same_, turned_, from_;  // of the last check
};

}  // namespace ebb::test
