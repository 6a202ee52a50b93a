#pragma once

#include <string>

#include "core/api/result.h"

namespace ebb::cli {

// A file or folder that is to appear whole is made under another name beside its own. Whoever makes
// it holds a lock on it, and the system takes that away when the process ends, however it ends: so
// what a killed one left can be told from what is being made.

/// "PATH.PID.tmp".
std::string temporary_name(const std::string& path);

/// Takes away what processes that ended without it have left beside `path`: files called like that,
/// and folders that hold nothing but files. Returns whether a living one is making something there.
/// What cannot be told, on a file system without locks, stays.
bool remove_leftovers(const std::string& path);

/// Waits for the lock on a file or folder that was just made; it ends with the descriptor. False if
/// somebody took it for a leftover in between: then it has to be made again.
bool hold_temporary(int descriptor, const std::string& temporary);

/// For a temporary name that is taken although leftovers were removed.
Error temporary_exists(const std::string& temporary);

/// Whether `path` is the name of what is open.
bool is_named(int descriptor, const std::string& path);

}  // namespace ebb::cli
