#pragma once

#include <string>

#include "tests/tokenizer/fake_host.h"

namespace ebb::test {

/// The metadata of the GGUF file at `path`. Trusts the file, and does not share code with the
/// project's loader, so these tests stand alone. Throws std::runtime_error if it cannot be read.
FakeLoader read_gguf_metadata(const std::string& path);

}  // namespace ebb::test
