#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/scorers/reference.h"
#include "tests/scorers/safetensors_bytes.h"

// Scorers with random weights, in a file and as the reference wants them.

namespace ebb::test {

/// Values of a tensor, and their bytes as a stored type has them.
struct Stored {
  std::vector<double> values;
  std::string bytes;
};

/// Spreads evenly between -size and size around mean, quickly: some tensors have 10^8 values.
inline Stored stored_values(std::uint64_t seed, std::int64_t n, const std::string& type,
                            double size, double mean = 0) {
  Stored out;
  out.values.resize(static_cast<std::size_t>(n));
  const std::size_t width = type == "F32" ? 4 : 2;
  out.bytes.resize(out.values.size() * width);
  std::uint64_t state = seed * 2654435761 + 12345;
  for (std::size_t i = 0; i < out.values.size(); ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const double value = mean + size * (static_cast<double>(state >> 40) / (1 << 23) - 1);
    if (type == "F32") {
      const auto single = static_cast<float>(value);
      std::memcpy(&out.bytes[4 * i], &single, 4);
      out.values[i] = single;
    } else {
      const bool is_f16 = type == "F16";
      const std::uint16_t half =
          is_f16 ? reference::double_to_f16(value) : reference::double_to_bf16(value);
      std::memcpy(&out.bytes[2 * i], &half, 2);
      out.values[i] = is_f16 ? reference::f16_to_double(half) : reference::bf16_to_double(half);
    }
  }
  return out;
}

struct RetrieverShape {
  std::int64_t d_model, rank;
  std::int32_t n_heads, d, n_pairs;
  std::string type = "F32";
};

/// Random weights, of sizes that keep the parts of a query about 1, added to a file.
inline reference::Retriever random_retriever(const RetrieverShape& shape, const std::string& prefix,
                                             std::uint64_t seed, SafetensorsFile& file) {
  reference::Retriever r{
      shape.d_model, shape.rank, shape.n_heads, shape.d, shape.n_pairs, {}, {}, {}, {}};
  const auto add = [&](const char* name, std::vector<std::int64_t> extents, double size,
                       double mean) {
    std::int64_t n = 1;
    for (const std::int64_t extent : extents) n *= extent;
    Stored stored = stored_values(++seed, n, shape.type, size, mean);
    file.add(prefix + name, shape.type, extents, stored.bytes);
    return std::move(stored.values);
  };
  // Evenly spread between -s and s has variance s^2 / 3.
  const double in = std::sqrt(3.0 / static_cast<double>(shape.d_model));
  const double rank = std::sqrt(3.0 / static_cast<double>(shape.rank));
  const std::int64_t width = std::int64_t{shape.n_heads} * shape.d;
  r.wq_a = add("wq_a.weight", {shape.rank, shape.d_model}, in, 0);
  r.q_norm = add("q_norm_weight", {shape.rank}, 0.5, 1);
  r.wq_b = add("wq_b.weight", {width, shape.rank}, rank, 0);
  r.weights = add("weights_proj.weight", {shape.n_heads, shape.d_model}, in, 0);
  return r;
}

}  // namespace ebb::test
