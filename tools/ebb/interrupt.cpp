#include "tools/ebb/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "tools/ebb/exit_status.h"

// The signals are blocked everywhere and taken by one thread that waits for them: no handler, so no
// global that a handler would have to reach.

namespace ebb::cli {
namespace {

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t set = watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  watcher_ = std::thread([this] { watch(); });
}

Interrupt::~Interrupt() {
  is_over_ = true;
  pthread_kill(watcher_.native_handle(), SIGTERM);
  watcher_.join();
}

void Interrupt::watch() {
  const sigset_t set = watched();
  for (int signal = 0; sigwait(&set, &signal) == 0 && !is_over_;) {
    if (!is_armed_ || is_requested_.exchange(true)) ::_exit(kInterrupted);
  }
}

}  // namespace ebb::cli
