#include "tests/staging/count_allocations.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace {
bool is_counting = false;
std::uint64_t n_allocations = 0;
}  // namespace

void* operator new(std::size_t bytes) {
  if (is_counting) ++n_allocations;
  if (void* const memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace ebb::test {

void count_allocations(bool on) { is_counting = on; }
std::uint64_t take_allocations() { return std::exchange(n_allocations, 0); }

}  // namespace ebb::test
