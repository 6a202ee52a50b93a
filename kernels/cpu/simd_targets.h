#pragma once

// Instruction sets that the SIMD files are compiled for; include before any Highway header.
// One generic build for old machines, AVX2, AVX-512, and AVX-512 with the extensions of Ice Lake
// and later (VNNI among them). SSSE3 and SSE4 machines run the generic code: compile time is worth
// more than their speed. Kernels keep vectors in arrays, which SVE's sizeless types do not allow,
// so ARM runs on NEON.
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
