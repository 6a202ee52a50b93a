#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/harness.h"
#include "tests/staging/attention_tap/attention_tap.h"

// Engines that swap, and what they compute at every position.

namespace ebb::test {

using Rows = std::vector<std::vector<float>>;
using Overrides = std::vector<std::string>;

inline std::vector<std::int32_t> random_tokens(std::size_t n, unsigned seed,
                                               unsigned n_tokens = 320) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(n);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % n_tokens);
  return tokens;
}

inline Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Overrides swapping(const std::string& policy, const std::string& mode, std::int64_t slots) {
  return {"swap.module=" + policy, "swap.staging=" + mode, "swap.slots=" + std::to_string(slots)};
}

inline bool same_bits(const Rows& a, const Rows& b) {
  if (a.size() != b.size() || a.empty()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
  }
  return true;
}

/// A hash of the attention's output by layer and position, of an engine with attention_tap.
using Attended = std::vector<std::vector<std::uint64_t>>;

/// Of the last step; row i is one of the prompt prompt_of[i].
inline void read_attention(Engine& engine, std::span<const std::size_t> prompt_of,
                           std::vector<Attended>& attended) {
  const auto& tap = static_cast<const AttentionTap&>(engine.attention());
  const auto width = static_cast<std::size_t>(tap.width);
  std::vector<float> out(prompt_of.size() * width);
  for (std::int32_t layer = 0; layer < tap.n_layers; ++layer) {
    require(engine.read(out.data(), tap.outputs + layer * tap.max_rows * tap.width,
                        out.size() * sizeof(float)));
    for (std::size_t row = 0; row < prompt_of.size(); ++row) {
      Attended& of_prompt = attended[prompt_of[row]];
      of_prompt.resize(static_cast<std::size_t>(tap.n_layers));
      of_prompt[static_cast<std::size_t>(layer)].push_back(
          XXH3_64bits(out.data() + row * width, width * sizeof(float)));
    }
  }
}

/// Logits by prompt, of the tokens that `wants(prompt, place)` names: all prompts run in one
/// engine, each as soon as there is room for it. `bite(prompt, n_fed)` says how many of its tokens
/// are in the next step, as far as there are so many; it may say 0. `attended`, if that is wanted,
/// gets one for each prompt.
inline std::vector<Rows> feed_together(
    Engine& engine, std::span<const std::vector<std::int32_t>> prompts,
    const std::function<std::size_t(std::size_t, std::size_t)>& bite,
    const std::function<bool(std::size_t, std::size_t)>& wants,
    std::vector<Attended>* attended = nullptr) {
  const std::size_t n = prompts.size();
  std::vector<Rows> got(n);
  if (attended != nullptr) attended->assign(n, {});
  std::vector<std::size_t> fed(n, 0);
  std::vector<std::int32_t> sequence(n, -1);
  for (std::size_t done = 0, next = 0; done < n;) {
    std::vector<StepRow> rows;
    std::vector<std::size_t> prompt_of, owner;  // of rows; of those whose logits are wanted
    for (std::size_t k = 0; k < next; ++k) {
      if (sequence[k] < 0) continue;
      const std::size_t end = std::min(fed[k] + bite(k, fed[k]), prompts[k].size());
      for (; fed[k] < end; ++fed[k]) {
        rows.push_back({sequence[k], prompts[k][fed[k]], wants(k, fed[k])});
        prompt_of.push_back(k);
        if (rows.back().wants_logits) owner.push_back(k);
      }
    }
    if (!rows.empty()) require(engine.step(rows));
    for (std::size_t i = 0; i < owner.size(); ++i) {
      const auto logits = require(engine.logits(static_cast<std::int32_t>(i)));
      got[owner[i]].emplace_back(logits.begin(), logits.end());
    }
    if (attended != nullptr && !rows.empty()) read_attention(engine, prompt_of, *attended);
    for (std::size_t k = 0; k < next; ++k) {
      if (sequence[k] < 0 || fed[k] < prompts[k].size()) continue;
      engine.close_sequence(sequence[k]);
      sequence[k] = -1;
      ++done;
    }
    if (next == n) continue;
    const Result<std::int32_t> opened = engine.open_sequence();
    if (opened || done == next) sequence[next++] = require(opened);
  }
  return got;
}

/// Logits of every position: a prompt in steps of `chunk`, the rest token by token.
inline Rows feed(Engine& engine, std::span<const std::int32_t> tokens, std::size_t prompt,
                 std::size_t chunk, Attended* attended = nullptr) {
  const std::vector<std::int32_t> all(tokens.begin(), tokens.end());
  std::vector<Attended> one;
  const auto bite = [=](std::size_t, std::size_t fed) {
    return fed < prompt ? std::min(chunk, prompt - fed) : 1;
  };
  std::vector<Rows> rows = feed_together(
      engine, {&all, 1}, bite, [](std::size_t, std::size_t) { return true; },
      attended != nullptr ? &one : nullptr);
  if (attended != nullptr) *attended = std::move(one[0]);
  return std::move(rows[0]);
}

}  // namespace ebb::test
