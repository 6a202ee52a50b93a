#pragma once

#include <cstdint>
#include <span>

#include "core/api/memory.h"
#include "core/api/swap.h"

namespace ebb::cli {

/// The counters by name, in the order of reports.
struct SwapField {
  const char* name;
  std::uint64_t SwapCounters::*value;
};
inline constexpr SwapField kSwapFields[] = {
    {"selections", &SwapCounters::selections},
    {"distinct", &SwapCounters::distinct},
    {"hits", &SwapCounters::hits},
    {"misses", &SwapCounters::misses},
    {"pool_reads", &SwapCounters::pool_reads},
    {"born", &SwapCounters::born},
    {"promotions", &SwapCounters::promotions},
    {"prefetched", &SwapCounters::prefetched},
    {"prefetch_used", &SwapCounters::prefetch_used},
    {"prefetch_wasted", &SwapCounters::prefetch_wasted},
    {"evictions", &SwapCounters::evictions},
    {"freed", &SwapCounters::freed},
    {"stores", &SwapCounters::stores},
    {"h2d_bytes", &SwapCounters::h2d_bytes},
    {"prefetch_bytes", &SwapCounters::prefetch_bytes},
    {"d2h_bytes", &SwapCounters::d2h_bytes},
    {"refused", &SwapCounters::refused},
    {"stall_us", &SwapCounters::stall_us},
};

struct MemoryField {
  const char* name;
  std::uint64_t MemoryCounters::*value;
};
inline constexpr MemoryField kMemoryFields[] = {
    {"refreshes", &MemoryCounters::refreshes}, {"scored", &MemoryCounters::scored},
    {"kept", &MemoryCounters::kept},           {"nan", &MemoryCounters::nan},
    {"wait_us", &MemoryCounters::wait_us},
};

inline MemoryCounters difference(MemoryCounters after, const MemoryCounters& before) {
  for (const MemoryField& field : kMemoryFields) after.*field.value -= before.*field.value;
  return after;
}

/// Sum over layers, less `before`.
inline SwapCounters total(std::span<const SwapCounters> layers, const SwapCounters& before = {}) {
  SwapCounters sum;
  for (const SwapField& field : kSwapFields) {
    for (const SwapCounters& layer : layers) sum.*field.value += layer.*field.value;
    sum.*field.value -= before.*field.value;
  }
  return sum;
}

}  // namespace ebb::cli
