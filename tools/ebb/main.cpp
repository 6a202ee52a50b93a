// The program: one file per sub-command, this one puts them together.

#include <fcntl.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <system_error>

#include "core/api/module.h"
#include "ebb_abi.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/tell.h"

namespace {

// Of a descriptor that is closed at the start, the next file that is opened would take the number:
// messages would go into the results. A stand-in that cannot be used in that direction keeps it.
void occupy_standard_streams() {
  for (const int stream : {0, 1, 2}) {
    if (::fcntl(stream, F_GETFD) == -1)
      (void)::open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
  }
}

// The status of a command, if what it printed has arrived.
int with_output(int status) {
  using namespace ebb::cli;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  if (errno == EPIPE) return kNoReader;
  tell("ebb: standard output cannot be written\n");
  return kFault;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ebb::cli;
  occupy_standard_streams();
  ::signal(SIGPIPE, SIG_IGN);  // a reader who leaves stderr ends no run; stdout is looked at below
  ::signal(SIGXFSZ, SIG_IGN);  // a file over the limit (ulimit -f) is one that cannot be written
  CLI::App app{
      "Runs DeepSeek-V4-class GGUF models; every part is a module that a TOML manifest names."};
  app.name("ebb");
  app.set_version_flag("--version", "ebb " EBB_VERSION " (module ABI " EBB_ABI ")");
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  app.footer(
      "Exit status: 0 done, 1 some requests failed, 2 bad input, 3 does not fit in memory,\n"
      "4 device or run-time fault, 130 interrupted (finished results are kept).\n"
      "`ebb COMMAND --help` says more about one command.");
  int status = kDone;
  add_run(app, status);
  add_generate(app, status);
  add_plan(app, status);
  add_ab(app, status);
  add_check(app, status);
  add_inspect(app, status);
  add_modules(app, status);
  add_replay(app, status);
  add_eval(app, status);
  add_bench(app, status);
  add_dump(app, status);
  try {
    app.parse(argc, argv);
    return with_output(status);
  } catch (const CLI::ParseError& thrown) {
    if (app.exit(thrown) != 0) return kBadInput;
    std::cout.flush();  // help goes there
    return with_output(kDone);
  } catch (const std::bad_alloc&) {
    tell("ebb: out of memory\n");
    return kDoesNotFit;
  } catch (const std::system_error& thrown) {
    if (thrown.code().value() == EPIPE) return kNoReader;
    if (std::ferror(stdout) != 0) return with_output(kFault);  // fmt::print found it out first
    tell("ebb: {}\n", thrown.what());
    return kFault;
  } catch (const std::exception& thrown) {
    tell("ebb: {}\n", thrown.what());
    return kFault;
  }
}
