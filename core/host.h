#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <thread>

#include "core/api/host.h"

namespace ebb {

/// Receives every log line: level and text "module: what it said", free of control characters. May
/// be called from several threads at once; must not throw.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// The parts that modules may ask for; set one by one in the order of wiring. Not owned.
struct HostParts {
  Loader* loader = nullptr;
  Compute* compute = nullptr;
  Comm* comm = nullptr;
  Attention* attention = nullptr;
  Staging* staging = nullptr;
  Memory* memory = nullptr;
};

/// What the hosts of all modules share. Made by the engine before the first module and destroyed
/// after the last one.
class HostServices {
 public:
  /// The constructing thread is [startup] and, until bind_thread says otherwise, [decode].
  HostServices(LogSink sink, std::uint64_t seed, bool is_rehearsal = false);

  /// The host of the module `name`, which lives as long as this object.   Thread: [startup]
  Host& host_for(std::string_view name);

  HostParts& parts() { return parts_; }
  std::uint64_t seed() const { return seed_; }
  bool is_rehearsal() const { return is_rehearsal_; }
  void log(LogLevel level, std::string_view module, std::string_view text) noexcept;

  /// From now on the calling thread is `tag`.
  void bind_thread(ThreadTag tag) noexcept;
  /// Whether the caller is `tag`'s thread; false for a tag that nobody is bound to.
  bool on_thread(ThreadTag tag) const noexcept;

 private:
  LogSink sink_;
  std::uint64_t seed_;
  bool is_rehearsal_;
  HostParts parts_;
  std::atomic<std::thread::id> threads_[3];  // by ThreadTag
  std::list<std::unique_ptr<Host>> hosts_;
};

}  // namespace ebb
