#pragma once

// Data from the `gguf` Python package (https://github.com/ggml-org/llama.cpp, gguf-py), MIT
// licence, Copyright (c) 2023 Georgi Gerganov; the licence is in quant_grids.license.txt.
// Written by tools/make_quant_grids.py; do not edit.

#include <cstdint>

namespace ebb::kernels {

// Codebooks of the IQ quantisation types. Entry i holds the values of codeword i as bytes, the
// first value in the least significant byte. Plain arrays with static storage: a device kernel
// reads a copy that its owner uploads.

/// IQ2_XXS: 8 magnitudes out of {8, 25, 43}.
extern const std::uint64_t kGridIq2Xxs[256];

/// IQ2_XS: 8 magnitudes out of {8, 25, 43}.
extern const std::uint64_t kGridIq2Xs[512];

/// IQ2_S: 8 magnitudes out of {8, 25, 43}.
extern const std::uint64_t kGridIq2S[1024];

/// IQ3_XXS: 4 magnitudes out of {4, 12, ..., 52, 62}.
extern const std::uint32_t kGridIq3Xxs[256];

/// IQ3_S: 4 magnitudes out of {1, 3, ..., 15}.
extern const std::uint32_t kGridIq3S[512];

/// IQ1_S and IQ1_M: 8 signed bytes out of {-1, 0, 1}.
extern const std::uint64_t kGridIq1S[2048];

/// Sign byte of a 7-bit sign field: bit i set means value i is negative. Codewords carry an even
/// number of minus signs, so the eighth bit is the parity of the other seven.
constexpr std::uint8_t sign_byte(std::uint32_t field) noexcept {
  std::uint32_t parity = field ^ (field >> 4);
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return static_cast<std::uint8_t>(field | (parity & 1) << 7);
}

}  // namespace ebb::kernels
