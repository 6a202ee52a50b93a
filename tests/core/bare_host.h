#pragma once

#include "core/api/host.h"

namespace ebb::test {

/// A host without services; a test overrides what its module asks for.
class BareHost : public Host {
 public:
  void log(LogLevel, std::string_view) noexcept override {}
  void assert_thread(ThreadTag) noexcept override {}
  std::uint64_t seed() const noexcept override { return 0; }
  Loader* loader() noexcept override { return nullptr; }
  Compute* compute() noexcept override { return nullptr; }
  Comm* comm() noexcept override { return nullptr; }
  Attention* attention() noexcept override { return nullptr; }
  Staging* staging() noexcept override { return nullptr; }
  Memory* memory() noexcept override { return nullptr; }
};

}  // namespace ebb::test
