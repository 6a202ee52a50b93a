#include "tools/ebb/exit_status.h"

#include <string_view>

#include "tools/ebb/lines.h"
#include "tools/ebb/tell.h"

namespace ebb::cli {

int exit_status(Errc code) {
  switch (code) {
    case Errc::invalid_argument:
    case Errc::not_found:
    case Errc::incompatible:
      return kBadInput;
    case Errc::out_of_memory:
      return kDoesNotFit;
    case Errc::device:
    case Errc::io:
    case Errc::internal:
      break;
  }
  return kFault;
}

const char* errc_name(Errc code) {
  switch (code) {
    case Errc::invalid_argument:
      return "invalid_argument";
    case Errc::not_found:
      return "not_found";
    case Errc::incompatible:
      return "incompatible";
    case Errc::out_of_memory:
      return "out_of_memory";
    case Errc::device:
      return "device";
    case Errc::io:
      return "io";
    case Errc::internal:
      break;
  }
  return "internal";
}

int report(const Error& error) {
  std::string_view rest = error.message;
  while (!rest.empty()) tell("ebb: {}\n", take_line(rest));
  return exit_status(error.code);
}

int finish(const Result<int>& outcome) { return outcome ? *outcome : report(outcome.error()); }

}  // namespace ebb::cli
