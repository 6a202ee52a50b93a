// A library to be preloaded into `ebb` (LD_PRELOAD): one call of write, fwrite to a file, fsync,
// rename or ftruncate goes wrong. What goes wrong stands in EBB_FAULT, "CALL:NUMBER:HOW", NUMBER
// from 1:
//   kill_before, kill_after   the process dies by SIGKILL before or after the call
//   kill_torn                 it dies when half of a write is written
//   short                     half is written, and the call says so
//   enospc, eio               this call and all later ones of its kind fail
//   enospc_torn               half is written; all later calls fail
// With EBB_FAULT_LOG, the calls are counted there instead: one letter for each, w F f r t.

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Fault {
  char call[16] = "";
  long number = 0;
  char how[16] = "";
};

Fault read_fault() {
  Fault fault;
  const char* const text = getenv("EBB_FAULT");
  if (text == nullptr) return fault;
  const char* const colon = strchr(text, ':');
  if (colon == nullptr || colon - text >= 16) abort();
  memcpy(fault.call, text, static_cast<std::size_t>(colon - text));
  char* end = nullptr;
  fault.number = strtol(colon + 1, &end, 10);
  if (*end != ':' || strlen(end + 1) >= 16) abort();
  strcpy(fault.how, end + 1);
  return fault;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void count(const char* letter) {
  const char* const path = getenv("EBB_FAULT_LOG");
  if (path == nullptr) return;
  const int log = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
  if (next<ssize_t(int, const void*, std::size_t)>("write")(log, letter, 1) != 1) abort();
  close(log);
}

void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

/// Runs `call` as the fault has it; `half` does half of it, if that is possible.
template <class Call, class Half>
ssize_t run(const char* name, Call call, Half half) {
  static const Fault fault = read_fault();
  static long n_calls = 0;  // one per call that is instantiated, and so per kind
  if (strcmp(fault.call, name) != 0) return call();
  const long number = ++n_calls;
  const auto is = [](const char* how) { return strcmp(fault.how, how) == 0; };
  const bool fails = number > fault.number || (number == fault.number && !is("enospc_torn"));
  if (fails && (is("enospc") || is("eio") || is("enospc_torn"))) {
    errno = is("eio") ? EIO : ENOSPC;
    return -1;
  }
  if (number != fault.number) return call();
  if (is("kill_before")) die();
  if (is("kill_torn")) half(), die();
  if (is("short") || is("enospc_torn")) return half();
  const ssize_t result = call();
  if (is("kill_after")) die();
  return result;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ssize_t write(int descriptor, const void* bytes, std::size_t n) {
  static const auto real = next<ssize_t(int, const void*, std::size_t)>("write");
  count("w");
  return run(
      "write", [=] { return real(descriptor, bytes, n); },
      [=] { return real(descriptor, bytes, (n + 1) / 2); });
}

std::size_t fwrite(const void* bytes, std::size_t size, std::size_t n, FILE* file) {
  static const auto real =
      next<std::size_t(const void*, std::size_t, std::size_t, FILE*)>("fwrite");
  if (file == stdout || file == stderr) return real(bytes, size, n, file);
  count("F");
  const auto part = [=](std::size_t items) {
    return static_cast<ssize_t>(real(bytes, size, items, file));
  };
  const ssize_t done = run(
      "fwrite", [=] { return part(n); },
      [=] {
        part(n / 2);
        fflush(file);
        errno = ENOSPC;  // as the library leaves it
        return static_cast<ssize_t>(n / 2);
      });
  return done < 0 ? 0 : static_cast<std::size_t>(done);
}

int fsync(int descriptor) {
  static const auto real = next<int(int)>("fsync");
  count("f");
  const auto call = [=] { return static_cast<ssize_t>(real(descriptor)); };
  return static_cast<int>(run("fsync", call, call));
}

int rename(const char* from, const char* to) noexcept {
  static const auto real = next<int(const char*, const char*)>("rename");
  count("r");
  const auto call = [=] { return static_cast<ssize_t>(real(from, to)); };
  return static_cast<int>(run("rename", call, call));
}

int ftruncate(int descriptor, off_t length) noexcept {
  static const auto real = next<int(int, off_t)>("ftruncate");
  count("t");
  const auto call = [=] { return static_cast<ssize_t>(real(descriptor, length)); };
  return static_cast<int>(run("ftruncate", call, call));
}

}  // extern "C"
#pragma GCC visibility pop
