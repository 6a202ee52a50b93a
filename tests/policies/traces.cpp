#include "tests/policies/traces.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>
#include <utility>

// All random numbers come from raw mt19937_64 draws: the distributions of the standard library
// differ between implementations, and traces must not.

namespace ebb::test {
namespace {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  std::int32_t below(std::int32_t n) {
    return static_cast<std::int32_t>(uniform() * static_cast<double>(n));
  }
  double gumbel() { return -std::log(-std::log(std::max(uniform(), 0x1p-60))); }
  double normal() {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum - 6;
  }

 private:
  std::mt19937_64 engine_;
};

using Set = std::vector<std::int32_t>;

TestTrace make(std::string name, std::int32_t n_layers, std::int32_t k, std::int32_t n,
               std::int32_t n_steps) {
  TestTrace trace{std::move(name), n_layers, n, k, {}};
  trace.steps.resize(static_cast<std::size_t>(n_steps));
  trace.steps.front().n_born = n;
  for (TraceStep& step : trace.steps) step.selected.resize(static_cast<std::size_t>(n_layers));
  return trace;
}

Set sorted(Set set) {
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  return set;
}

Set loop_set(std::int32_t k, std::int32_t n, std::int64_t step) {
  Set set;
  for (std::int32_t i = 0; i < k; ++i) {
    set.push_back(static_cast<std::int32_t>((step * k + i) % n));
  }
  return sorted(std::move(set));
}

Set scan_set(std::int32_t k, std::int32_t n, std::int64_t step) {
  Set set;
  const std::int32_t half = k / 2;
  for (std::int32_t i = 0; i < half; ++i) set.push_back(i);
  for (std::int32_t i = half; i < k; ++i) {
    set.push_back(half + static_cast<std::int32_t>((step * half + i) % (n - half)));
  }
  return sorted(std::move(set));
}

// One layer's walk.
class Churn {
 public:
  Churn(std::int32_t k, std::int32_t n, std::int32_t churn, std::uint64_t seed)
      : random_(seed), churn_(churn), affinity_(static_cast<std::size_t>(n)) {
    for (double& value : affinity_) value = 1.5 * random_.normal();
    std::vector<std::pair<double, std::int32_t>> order;
    for (std::int32_t c = 0; c < n; ++c) order.push_back({-noisy(c), c});
    std::partial_sort(order.begin(), order.begin() + k, order.end());
    for (std::int32_t i = 0; i < k; ++i) set_.push_back(order[static_cast<std::size_t>(i)].second);
    in_.resize(static_cast<std::size_t>(n));
    for (const std::int32_t c : set_) in_[static_cast<std::size_t>(c)] = true;
  }

  Set next() {
    // Affinities drift slowly towards new values.
    for (std::size_t i = 0; i < affinity_.size() / 64 + 1; ++i) {
      double& value = affinity_[static_cast<std::size_t>(
          random_.below(static_cast<std::int32_t>(affinity_.size())))];
      value = 0.8 * value + 0.9 * random_.normal();
    }
    for (std::int32_t i = 0; i < churn_; ++i) replace_one();
    return sorted(set_);
  }

  double noisy(std::int32_t chunk) {
    return affinity_[static_cast<std::size_t>(chunk)] + random_.gumbel();
  }

 private:
  double affinity(std::int32_t chunk) const { return affinity_[static_cast<std::size_t>(chunk)]; }

  void replace_one() {
    // Out goes the weakest of a few, in comes a chunk that left lately or the best of a few.
    std::size_t out = 0;
    for (int i = 0; i < 4; ++i) {
      const auto at =
          static_cast<std::size_t>(random_.below(static_cast<std::int32_t>(set_.size())));
      if (i == 0 || affinity(set_[at]) < affinity(set_[out])) out = at;
    }
    std::int32_t in = -1;
    if (!dropped_.empty() && random_.uniform() < 0.6) {
      // Newer ones are likelier.
      const double u = random_.uniform();
      const auto at = static_cast<std::size_t>(u * u * static_cast<double>(dropped_.size()));
      in = dropped_[at];
      dropped_.erase(dropped_.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      for (int i = 0; i < 8; ++i) {
        const std::int32_t c = random_.below(static_cast<std::int32_t>(affinity_.size()));
        if (!in_[static_cast<std::size_t>(c)] && (in < 0 || affinity(c) > affinity(in))) in = c;
      }
    }
    if (in < 0 || in_[static_cast<std::size_t>(in)]) return;
    dropped_.push_front(set_[out]);
    if (dropped_.size() > 40 * static_cast<std::size_t>(churn_)) dropped_.pop_back();
    in_[static_cast<std::size_t>(set_[out])] = false;
    in_[static_cast<std::size_t>(in)] = true;
    set_[out] = in;
  }

  Random random_;
  std::int32_t churn_;
  std::vector<double> affinity_;
  Set set_;
  std::vector<bool> in_;
  std::deque<std::int32_t> dropped_;  // newest first
};

// What a good scorer would say every 64 steps: how often each chunk will be selected until the
// next time, with noise.
void add_scores(TestTrace& trace, std::uint64_t seed) {
  constexpr std::size_t kInterval = 64;
  Random noise(seed);
  for (std::size_t t = 0; t < trace.steps.size(); t += kInterval) {
    std::vector<double> uses(static_cast<std::size_t>(trace.n_chunks));
    for (std::size_t u = t; u < std::min(t + kInterval, trace.steps.size()); ++u) {
      for (const Set& set : trace.steps[u].selected) {
        for (const std::int32_t c : set) uses[static_cast<std::size_t>(c)] += 1;
      }
    }
    for (const double n : uses) {
      trace.steps[t].scores.push_back(static_cast<float>(std::log1p(n) + noise.normal()));
    }
  }
}

// Weights of a Zipf law over a shuffled order, as logarithms.
std::vector<double> zipf_weights(std::int32_t n, double exponent, Random& random) {
  std::vector<double> weights;
  for (std::int32_t i = 0; i < n; ++i) weights.push_back(-exponent * std::log(i + 1.0));
  for (std::size_t i = weights.size(); i-- > 1;) {
    std::swap(weights[i],
              weights[static_cast<std::size_t>(random.below(static_cast<std::int32_t>(i) + 1))]);
  }
  return weights;
}

Set zipf_set(std::int32_t k, const std::vector<double>& weights, Random& random) {
  std::vector<std::pair<double, std::int32_t>> order;
  for (std::size_t c = 0; c < weights.size(); ++c) {
    order.push_back({-(weights[c] + random.gumbel()), static_cast<std::int32_t>(c)});
  }
  std::nth_element(order.begin(), order.begin() + k, order.end());
  Set set;
  for (std::int32_t i = 0; i < k; ++i) set.push_back(order[static_cast<std::size_t>(i)].second);
  return sorted(std::move(set));
}

}  // namespace

TestTrace loop_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps) {
  TestTrace trace = make("loop", n_layers, k, n, n_steps);
  for (std::size_t t = 0; t < trace.steps.size(); ++t) {
    for (Set& set : trace.steps[t].selected) set = loop_set(k, n, static_cast<std::int64_t>(t));
  }
  return trace;
}

TestTrace scan_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps) {
  TestTrace trace = make("scan", n_layers, k, n, n_steps);
  for (std::size_t t = 0; t < trace.steps.size(); ++t) {
    for (Set& set : trace.steps[t].selected) set = scan_set(k, n, static_cast<std::int64_t>(t));
  }
  return trace;
}

TestTrace zipf_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps,
                     double exponent, std::uint64_t seed) {
  TestTrace trace = make("zipf " + std::to_string(exponent).substr(0, 3), n_layers, k, n, n_steps);
  Random random(seed);
  std::vector<std::vector<double>> weights;
  for (std::int32_t l = 0; l < n_layers; ++l) weights.push_back(zipf_weights(n, exponent, random));
  for (TraceStep& step : trace.steps) {
    for (std::size_t l = 0; l < step.selected.size(); ++l) {
      step.selected[l] = zipf_set(k, weights[l], random);
    }
  }
  return trace;
}

TestTrace churn_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps,
                      std::int32_t churn, std::uint64_t seed, bool scored) {
  TestTrace trace =
      make("churn " + std::to_string(churn) + (scored ? " scored" : ""), n_layers, k, n, n_steps);
  std::vector<Churn> layers;
  for (std::int32_t l = 0; l < n_layers; ++l) {
    layers.emplace_back(k, n, churn, seed + static_cast<std::uint64_t>(l) * 77);
  }
  for (TraceStep& step : trace.steps) {
    for (std::size_t l = 0; l < layers.size(); ++l) step.selected[l] = layers[l].next();
  }
  if (scored) add_scores(trace, seed + 5);
  return trace;
}

TestTrace phase_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps,
                      std::int32_t phase) {
  TestTrace trace = make("phases", n_layers, k, n, n_steps);
  const TestTrace churn = churn_trace(n_layers, k, n, n_steps, std::max(1, k / 20), 11);
  const TestTrace zipf = zipf_trace(n_layers, k, n, n_steps, 0.8, 12);
  for (std::size_t t = 0; t < trace.steps.size(); ++t) {
    const auto step = static_cast<std::int64_t>(t);
    for (std::size_t l = 0; l < trace.steps[t].selected.size(); ++l) {
      Set& set = trace.steps[t].selected[l];
      switch (step / phase % 4) {
        case 0:
          set = loop_set(k, std::min(n, 3 * k), step);
          break;
        case 1:
          set = churn.steps[t].selected[l];
          break;
        case 2:
          set = scan_set(k, n, step);
          break;
        default:
          set = zipf.steps[t].selected[l];
      }
    }
  }
  return trace;
}

TestTrace bait_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps,
                     std::uint64_t seed) {
  TestTrace trace = make("bait", n_layers, k, n, n_steps);
  Random random(seed);
  for (std::size_t t = 0; t < trace.steps.size(); ++t) {
    const auto step = static_cast<std::int64_t>(t);
    for (Set& set : trace.steps[t].selected) {
      if (step % 200 < 60) {
        set = loop_set(k, std::min(n, 3 * k), step);
        continue;
      }
      // A window that moves on: what is just outside will never come back.
      const auto base = static_cast<std::int32_t>((step * k / 8) % n);
      for (std::int32_t i = 0; i < k; ++i) set.push_back((base + random.below(2 * k)) % n);
      set = sorted(std::move(set));
    }
  }
  return trace;
}

TestTrace mixed_trace(std::int32_t n_layers, std::int32_t k, std::int32_t n, std::int32_t n_steps,
                      std::uint64_t seed) {
  TestTrace trace = make("mixed layers", n_layers, k, n, n_steps);
  for (std::int32_t l = 0; l < n_layers; ++l) {
    const auto at = static_cast<std::size_t>(l);
    Churn slow(k, n, std::max(1, k / 50), seed + at), fast(k, n, std::max(1, k / 8), seed + at);
    Random random(seed + at);
    const std::vector<double> weights = zipf_weights(n, 0.9, random);
    for (std::size_t t = 0; t < trace.steps.size(); ++t) {
      Set& set = trace.steps[t].selected[at];
      switch (l % 4) {
        case 0:
          set = slow.next();
          break;
        case 1:
          set = loop_set(k, std::min(n, 5 * k / 2), static_cast<std::int64_t>(t));
          break;
        case 2:
          set = fast.next();
          break;
        default:
          set = zipf_set(k, weights, random);
      }
    }
  }
  return trace;
}

TestTrace growing(TestTrace trace, std::int32_t n_start, std::int32_t every) {
  trace.name += ", growing";
  std::int32_t n = n_start;
  for (std::size_t t = 0; t < trace.steps.size(); ++t) {
    TraceStep& step = trace.steps[t];
    const bool is_born = t % static_cast<std::size_t>(every) == 0 && n < trace.n_chunks;
    step.n_born = t == 0 ? n_start : is_born ? 1 : 0;
    if (t > 0) n += step.n_born;
    for (Set& set : step.selected) {
      for (std::int32_t& chunk : set) chunk %= n;
      if (is_born && t > 0) set.push_back(n - 1);
      set = sorted(std::move(set));
      if (set.size() > static_cast<std::size_t>(trace.top_k)) set.erase(set.begin());
    }
    if (!step.scores.empty()) step.scores.resize(static_cast<std::size_t>(n));
  }
  return trace;
}

TestTrace with_noise(TestTrace trace, std::uint64_t seed) {
  Random random(seed);
  trace.name += ", noise";
  std::size_t n = 0;
  for (std::size_t t = 0; t < trace.steps.size(); ++t) {
    TraceStep& step = trace.steps[t];
    n += static_cast<std::size_t>(step.n_born);
    step.scores.clear();
    if (t % 64 != 0) continue;
    for (std::size_t c = 0; c < n; ++c) {
      step.scores.push_back(static_cast<float>(3 * random.normal()));
    }
  }
  return trace;
}

// Chunks are completed by steps of prefill, which select nothing that is told.
TestTrace with_prefill(TestTrace trace) {
  TraceStep prefill;
  prefill.n_born = std::exchange(trace.steps.front().n_born, 0);
  prefill.selected.resize(static_cast<std::size_t>(trace.n_layers));
  trace.steps.insert(trace.steps.begin(), std::move(prefill));
  return trace;
}

std::vector<TestTrace> all_traces() {
  constexpr std::int32_t kK = 32, kN = 512, kSteps = 1200;
  std::vector<TestTrace> traces = {
      loop_trace(1, kK, 3 * kK, kSteps),
      loop_trace(3, kK, 6 * kK, kSteps),
      scan_trace(2, kK, kN, kSteps),
      zipf_trace(1, kK, kN, kSteps, 0.6, 1),
      zipf_trace(2, kK, kN, kSteps, 1.0, 2),
      churn_trace(2, kK, kN, kSteps, 1, 3),
      churn_trace(3, kK, kN, kSteps, 2, 4),
      churn_trace(2, kK, kN, kSteps, 4, 5, true),
      churn_trace(1, kK, 4 * kN, kSteps, 3, 6),
      phase_trace(2, kK, kN, kSteps, 150),
      bait_trace(2, kK, kN, kSteps, 7),
      mixed_trace(4, kK, kN, kSteps, 8),
      growing(churn_trace(2, kK, kN, kSteps, 2, 9), 64, 4),
      growing(mixed_trace(4, kK, kN, kSteps, 10), 100, 3),
  };
  for (TestTrace& trace : traces) trace = with_prefill(std::move(trace));
  return traces;
}

}  // namespace ebb::test
