#pragma once

#include <algorithm>
#include <array>
#include <random>
#include <vector>

// Factors that have so many values each; a choice takes one of every factor, as its number.

namespace ebb::test {

template <std::size_t N>
using ChoiceOf = std::array<std::size_t, N>;

template <std::size_t N>
std::vector<ChoiceOf<N>> all_choices(const ChoiceOf<N>& sizes) {
  std::vector<ChoiceOf<N>> all;
  ChoiceOf<N> choice{};
  for (;;) {
    all.push_back(choice);
    std::size_t f = 0;
    while (f < N && ++choice[f] == sizes[f]) choice[f++] = 0;
    if (f == N) return all;
  }
}

/// Few choices, in which every two values of two factors meet: greedily, the one with most new
/// pairs next.
template <std::size_t N>
std::vector<ChoiceOf<N>> pairwise(const ChoiceOf<N>& sizes) {
  std::vector<ChoiceOf<N>> left = all_choices(sizes), chosen;
  std::mt19937 random(1);
  std::shuffle(left.begin(), left.end(), random);
  const std::size_t most_values = *std::max_element(sizes.begin(), sizes.end());
  std::vector<char> met(N * most_values * N * most_values, 0);
  const auto each_new = [&](const ChoiceOf<N>& choice, const auto& found) {
    for (std::size_t f = 0; f < N; ++f) {
      for (std::size_t g = 0; g < f; ++g) {
        const std::size_t a = f * most_values + choice[f], b = g * most_values + choice[g];
        char& one = met[a * N * most_values + b];
        if (one == 0) found(one);
      }
    }
  };
  for (;;) {
    const ChoiceOf<N>* best = nullptr;
    std::size_t most = 0;
    for (const ChoiceOf<N>& choice : left) {
      std::size_t n = 0;
      each_new(choice, [&n](char) { ++n; });
      if (n > most) {
        most = n;
        best = &choice;
      }
    }
    if (most == 0) return chosen;
    chosen.push_back(*best);
    each_new(*best, [](char& one) { one = 1; });
  }
}

}  // namespace ebb::test
