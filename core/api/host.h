#pragma once

#include <cstdint>
#include <string_view>

namespace ebb {

class Attention;
class Comm;
class Compute;
class Loader;
class Memory;
class Staging;

enum class LogLevel { debug, info, warning, error };

/// Symbolic threads. [startup] before the first step, single thread; [decode] the one thread that
/// drives the engine; [copy] the staging thread; [any] reentrant.
enum class ThreadTag { startup, decode, copy };

/// Services a module may use; handed to create and valid until the module is destroyed.
/// The parts are wired in the order loader, tokenizer, compute, comm, swap, attention,
/// decoder, scorers, memory:
/// each of them may ask for the ones before it. A part that is not wired yet is nullptr.
class Host {
 public:
  virtual ~Host() = default;

  /// Writes one line, with the module's name in front. Never called in the decode step.
  /// Thread: [any]
  virtual void log(LogLevel level, std::string_view text) noexcept = 0;
  /// Stops the process in debug builds if the caller is on another thread than `tag` says.
  /// Thread: [any]
  virtual void assert_thread(ThreadTag tag) noexcept = 0;
  /// The engine's seed ([engine] seed), for modules that draw random numbers. Thread: [any]
  virtual std::uint64_t seed() const noexcept = 0;

  virtual Loader* loader() noexcept = 0;
  virtual Compute* compute() noexcept = 0;
  virtual Comm* comm() noexcept = 0;
  virtual Attention* attention() noexcept = 0;
  /// nullptr when every chunk row stays in compute memory.
  virtual Staging* staging() noexcept = 0;
  /// nullptr when no scorer is asked; plan() has returned.
  virtual Memory* memory() noexcept = 0;

  /// Memory is counted and not taken: no step will run, so nothing that grows with model or session
  /// need be allocated, read or written.
  virtual bool is_rehearsal() const noexcept { return false; }
};

}  // namespace ebb
