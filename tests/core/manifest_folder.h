#pragma once

#include <boost/test/unit_test.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/manifest.h"
#include "tests/core/support.h"

namespace ebb::test {

/// The modules that every manifest has to name.
inline constexpr const char* kModules = R"([loader]
module = "loader_x"
path = "model.gguf"
[compute]
module = "compute_x"
[comm]
module = "comm_x"
[attention]
module = "attention_x"
[decoder]
module = "decoder_x"
)";

/// A folder to write manifests into.
struct ManifestFolder : TempFolder {
  /// Loads `name` and gives the message, "" for success.
  std::string fails(std::string_view name, const std::vector<std::string>& overrides = {}) {
    return message(Manifest::load(*this / name, overrides), *this);
  }
  /// The message for a complete manifest with `text` below the modules.
  std::string with(std::string_view text, const std::vector<std::string>& overrides = {}) {
    write("with.toml", kModules + std::string(text));
    return fails("with.toml", overrides);
  }
  Manifest good(std::string_view name, const std::vector<std::string>& overrides = {}) {
    Result<Manifest> manifest = Manifest::load(*this / name, overrides);
    BOOST_REQUIRE_MESSAGE(manifest, message(manifest, *this));
    return *std::move(manifest);
  }
};

}  // namespace ebb::test
