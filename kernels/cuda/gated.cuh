#pragma once

namespace ebb::cuda {

/// min(gate, clamp) * sigmoid(gate) * clamp(up, -clamp, clamp); NaN stays NaN.
__device__ __forceinline__ float gated(float gate, float up, float clamp) {
  gate = gate > clamp ? clamp : gate;
  up = up > clamp ? clamp : up;
  up = up < -clamp ? -clamp : up;
  float negative = -gate;
  negative = negative > 88.0f ? 88.0f : negative;
  return gate * (1.0f / (1.0f + expf(negative))) * up;
}

}  // namespace ebb::cuda
