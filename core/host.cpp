#include "core/host.h"

#include <cstdio>
#include <cstdlib>

#include "core/text.h"

// One small Host per module carries the module's name; everything else is shared and outlives it.

namespace ebb {
namespace {

class ModuleHost final : public Host {
 public:
  ModuleHost(HostServices& services, std::string_view name) : services_(services), name_(name) {}

  void log(LogLevel level, std::string_view text) noexcept override {
    services_.log(level, name_, text);
  }
  void assert_thread([[maybe_unused]] ThreadTag tag) noexcept override {
#ifndef NDEBUG
    if (services_.on_thread(tag)) return;
    constexpr const char* kNames[] = {"startup", "decode", "copy"};
    std::fprintf(stderr, "ebb: %s was called on a thread that is not [%s]\n", name_.c_str(),
                 kNames[static_cast<int>(tag)]);
    std::abort();
#endif
  }
  std::uint64_t seed() const noexcept override { return services_.seed(); }
  Loader* loader() noexcept override { return services_.parts().loader; }
  Compute* compute() noexcept override { return services_.parts().compute; }
  Comm* comm() noexcept override { return services_.parts().comm; }
  Attention* attention() noexcept override { return services_.parts().attention; }
  Staging* staging() noexcept override { return services_.parts().staging; }
  Memory* memory() noexcept override { return services_.parts().memory; }
  bool is_rehearsal() const noexcept override { return services_.is_rehearsal(); }

 private:
  HostServices& services_;
  std::string name_;
};

}  // namespace

HostServices::HostServices(LogSink sink, std::uint64_t seed, bool is_rehearsal)
    : sink_(std::move(sink)), seed_(seed), is_rehearsal_(is_rehearsal) {
  bind_thread(ThreadTag::startup);
  bind_thread(ThreadTag::decode);
}

Host& HostServices::host_for(std::string_view name) {
  return *hosts_.emplace_back(std::make_unique<ModuleHost>(*this, name));
}

void HostServices::log(LogLevel level, std::string_view module, std::string_view text) noexcept {
  if (sink_) sink_(level, printable(std::string(module).append(": ").append(text), 4000));
}

void HostServices::bind_thread(ThreadTag tag) noexcept {
  threads_[static_cast<int>(tag)] = std::this_thread::get_id();
}

bool HostServices::on_thread(ThreadTag tag) const noexcept {
  return threads_[static_cast<int>(tag)] == std::this_thread::get_id();
}

}  // namespace ebb
