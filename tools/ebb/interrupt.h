#pragma once

#include <atomic>
#include <thread>

namespace ebb::cli {

/// SIGINT and SIGTERM as a question that is asked between steps. Before arm(), when there is
/// nothing to keep, a signal ends the process at once; after it, the first signal only makes
/// requested() true, and a second one ends the process. The status is kInterrupted either way.
/// Make it before any other thread starts: they inherit the blocked signals. One per process.
class Interrupt {
 public:
  Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();

  void arm() { is_armed_ = true; }
  bool requested() const { return is_requested_; }

 private:
  void watch();

  std::atomic<bool> is_armed_ = false;
  std::atomic<bool> is_requested_ = false;
  std::atomic<bool> is_over_ = false;
  std::thread watcher_;
};

}  // namespace ebb::cli
