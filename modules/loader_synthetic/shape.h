#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/api/loader.h"
#include "core/api/options.h"
#include "modules/deepseek4/config.h"

namespace ebb::synthetic {

/// What to make: the model's configuration and the stored types.
struct Shape {
  deepseek4::Config config;
  DType dense = DType::q8_0;          ///< projections, shared expert, head
  DType experts_in = DType::iq2_xxs;  ///< gate and up
  DType experts_down = DType::q2_k;
  DType other = DType::f16;  ///< embedding, compressors, indexer, router, mixing
  std::uint64_t seed = 0;
};

/// One tensor to make. rms is that of its values; base is added to them (norm weights: 1).
struct Plan {
  std::string name;
  DType type = DType::f32;
  std::vector<std::int64_t> ne;
  float rms = 1;
  float base = 0;
};

/// Reads and checks the manifest's keys; calls options.finish().
Result<Shape> read_shape(Options& options);

/// Every tensor of the model, in file order.
std::vector<Plan> plan_tensors(const Shape& shape);

/// The metadata that a GGUF file of this shape would carry.
std::vector<std::pair<std::string, MetaValue>> make_metadata(const Shape& shape);

}  // namespace ebb::synthetic
