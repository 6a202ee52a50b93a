#pragma once

#include "core/api/result.h"

namespace ebb::cli {

inline constexpr int kDone = 0;
inline constexpr int kSomeFailed = 1;     ///< the run is complete, some of its requests failed
inline constexpr int kBadInput = 2;       ///< command line, manifest, model or input file
inline constexpr int kDoesNotFit = 3;     ///< a memory limit or allocation
inline constexpr int kFault = 4;          ///< device or run-time fault
inline constexpr int kNoReader = 141;     ///< who read standard output has gone; said to nobody
inline constexpr int kInterrupted = 130;  ///< SIGINT or SIGTERM; finished results are kept

int exit_status(Errc code);

/// Name of a code as results spell it: "invalid_argument".
const char* errc_name(Errc code);

/// Prints "ebb: MESSAGE" to stderr (every line of the message so) and returns its exit status.
int report(const Error& error);

/// The status of a command from what its body returned: an exit status or an Error.
int finish(const Result<int>& outcome);

}  // namespace ebb::cli
