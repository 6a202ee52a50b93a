#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ebb::files {

/// Names longer than this are cut in messages.
inline constexpr std::size_t kShownNameBytes = 160;

/// `text` for one line of a terminal: control characters, invisible and direction-changing ones and
/// bytes that are not UTF-8 become \xNN, the rest stays. At most `limit` bytes of the text are
/// shown.
std::string printable(std::string_view text, std::size_t limit = kShownNameBytes);

/// True if `text` is UTF-8 and shows as itself, so that printable() would change nothing.
bool is_plain_text(std::string_view text) noexcept;

}  // namespace ebb::files
