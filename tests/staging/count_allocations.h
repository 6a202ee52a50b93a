#pragma once

#include <cstdint>

namespace ebb::test {

/// Counts what is allocated by this program and the modules it loads, between true and false.
void count_allocations(bool on);
/// Since the last call.
std::uint64_t take_allocations();

}  // namespace ebb::test
