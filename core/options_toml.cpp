#include "core/options_toml.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

#include "core/text.h"

// Reading a table never stops at a mistake: a getter that finds one notes it, with the position the
// value had in its own file, and answers with the default. finish() adds the keys that no getter
// asked for, and fails if anything was noted. toml++ keeps positions with the nodes, through moves
// and merges, so nothing here has to track them.

namespace ebb {
namespace {

// toml++ 3.3 recurses once per part of a dotted key and does not bound that depth, only that of
// nested values; a tree can be no deeper than that and the dots of its text. No manifest has more.
constexpr std::ptrdiff_t kMaxDots = 4096;

// "64KiB" or "512" as bytes; nothing if it is no size or exceeds 64 bits.
std::optional<std::uint64_t> parse_size(std::string_view text) {
  constexpr std::string_view kPrefixes = "kMGT";
  std::uint64_t bytes = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc{}) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(rest - text.data()));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.empty() || unit == "B") return bytes;
  const std::size_t power = kPrefixes.find(unit[0] == 'K' ? 'k' : unit[0]);
  unit.remove_prefix(1);
  if (power == kPrefixes.npos || (unit != "B" && unit != "iB")) return std::nullopt;
  for (std::size_t i = 0; i <= power; ++i) {
    if (__builtin_mul_overflow(bytes, unit == "B" ? 1000u : 1024u, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::optional<std::string> text_of(const toml::node& node) {
  return node.value_exact<std::string>();
}

std::optional<std::string> path_of(const toml::node& node) {
  const auto text = text_of(node);
  if (!text || text->empty() || text->find('\0') != text->npos) return std::nullopt;
  return (std::filesystem::path(folder_of(node.source())) / *text).lexically_normal().string();
}

auto size_in(std::uint64_t low, std::uint64_t high) {
  return [low, high](const toml::node& node) {
    const auto number = node.value_exact<std::int64_t>();
    auto bytes = parse_size(text_of(node).value_or(""));
    if (number && *number >= 0) bytes = static_cast<std::uint64_t>(*number);
    return bytes && *bytes >= low && *bytes <= high ? bytes : std::nullopt;
  };
}

auto int_in(std::int64_t low, std::int64_t high) {
  return [low, high](const toml::node& node) {
    const auto value = node.value_exact<std::int64_t>();
    return value && *value >= low && *value <= high ? value : std::nullopt;
  };
}

// An integer is a number too; NaN is in no range.
auto float_in(double low, double high) {
  return [low, high](const toml::node& node) {
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    return value && *value >= low && *value <= high ? value : std::nullopt;
  };
}

template <class Number>
std::string want(std::string_view what, Number low, Number high) {
  using Limits = std::numeric_limits<Number>;
  const bool any_low = low <= Limits::lowest();
  const bool any_high = high >= Limits::max();
  std::string text = fmt::format("want {}", what);
  if (!any_low && !any_high) return text + fmt::format(" {}..{}", low, high);
  if (!any_low) text += fmt::format(", at least {}", low);
  if (!any_high) text += fmt::format(", at most {}", high);
  return text;
}

class TomlOptions final : public Options {
 public:
  TomlOptions(std::string section, std::shared_ptr<const toml::table> table)
      : section_(std::move(section)), table_(std::move(table)) {}

  bool get_bool(std::string_view key, bool fallback) noexcept override {
    return read<bool>(key, fallback, "want true or false",
                      [](const toml::node& node) { return node.value_exact<bool>(); });
  }

  std::int64_t get_int(std::string_view key, std::int64_t fallback, std::int64_t low,
                       std::int64_t high) noexcept override {
    return read<std::int64_t>(key, fallback, want("an integer", low, high), int_in(low, high));
  }

  std::int64_t get_int_or_auto(std::string_view key, std::int64_t fallback, std::int64_t low,
                               std::int64_t high) noexcept override {
    return read<std::int64_t>(key, fallback, want("\"auto\" or an integer", low, high),
                              [&](const toml::node& node) {
                                return text_of(node) == "auto" ? 0 : int_in(low, high)(node);
                              });
  }

  double get_float(std::string_view key, double fallback, double low,
                   double high) noexcept override {
    return read<double>(key, fallback, want("a number", low, high), float_in(low, high));
  }

  std::uint64_t get_size(std::string_view key, std::uint64_t fallback, std::uint64_t low,
                         std::uint64_t high) noexcept override {
    return read<std::uint64_t>(key, fallback,
                               want("bytes (512, \"64KiB\", \"16GiB\", \"5GB\")", low, high),
                               size_in(low, high));
  }

  std::string get_string(std::string_view key, std::string_view fallback) noexcept override {
    return read<std::string>(key, std::string(fallback), "want text in quotes", text_of);
  }

  std::size_t get_choice(std::string_view key, std::size_t fallback,
                         const std::vector<std::string_view>& allowed) noexcept override {
    const auto index_of = [&allowed](const toml::node& node) -> std::optional<std::size_t> {
      const auto found = std::find(allowed.begin(), allowed.end(), text_of(node).value_or(""));
      if (found == allowed.end()) return std::nullopt;
      return static_cast<std::size_t>(found - allowed.begin());
    };
    return read<std::size_t>(key, fallback, fmt::format("want one of {}", fmt::join(allowed, ", ")),
                             index_of);
  }

  std::string get_path(std::string_view key) noexcept override {
    return read<std::string>(key, "", "want a file path", path_of);
  }

  std::vector<std::int64_t> get_int_list(std::string_view key,
                                         const std::vector<std::int64_t>& fallback,
                                         std::int64_t low, std::int64_t high) noexcept override {
    asked_.emplace(key);
    const toml::node* node = table_->get(key);
    if (!node) return fallback;
    const std::string wanted = want("an integer", low, high);
    const toml::array* array = node->as_array();
    if (!array) note(*node, key, fmt::format("{}, as a list", wanted));
    if (!array) return fallback;
    std::vector<std::int64_t> values;
    for (const toml::node& element : *array) {
      const auto value = int_in(low, high)(element);
      if (!value) note(element, fmt::format("{}[{}]", key, values.size()), wanted);
      if (!value) return fallback;
      values.push_back(*value);
    }
    return values;
  }

  bool has(std::string_view key) const noexcept override { return table_->contains(key); }

  std::string where(std::string_view key) const noexcept override {
    return label(table_->get(key), key);
  }

  Status finish() noexcept override {
    for (const auto& [key, value] : *table_) {
      if (asked_.contains(key.str())) continue;
      mistakes_.insert(fmt::format("{}: [{}] {}: unknown key; known: {}", position(key.source()),
                                   section_, printable(key.str(), 60), fmt::join(asked_, ", ")));
    }
    if (mistakes_.empty()) return ok_status();
    return Error{Errc::invalid_argument, fmt::format("{}", fmt::join(mistakes_, "\n"))};
  }

 private:
  std::string label(const toml::node* value, std::string_view key) const {
    return fmt::format("{}: [{}] {}", position(value ? value->source() : table_->source()),
                       section_, printable(key, 60));
  }

  void note(const toml::node& value, std::string_view key, std::string_view wanted) {
    mistakes_.insert(fmt::format("{} = {}: {}", label(&value, key), show(value), wanted));
  }

  template <class T, class Reader>
  T read(std::string_view key, T fallback, std::string_view wanted, Reader reader) {
    asked_.emplace(key);
    const toml::node* node = table_->get(key);
    if (!node) return fallback;
    if (std::optional<T> value = reader(*node)) return *std::move(value);
    note(*node, key, wanted);
    return fallback;
  }

  std::string section_;
  std::shared_ptr<const toml::table> table_;
  std::set<std::string, std::less<>> asked_;
  std::set<std::string> mistakes_;
};

}  // namespace

Result<toml::table> parse_toml(std::string_view text, const std::string& source) {
  if (std::count(text.begin(), text.end(), '.') > kMaxDots) {
    return Error{Errc::invalid_argument, fmt::format("{}: more than {} dots: this is no manifest",
                                                     printable(source), kMaxDots)};
  }
  try {
    return toml::parse(text, std::string_view(source));
  } catch (const toml::parse_error& error) {
    return Error{Errc::invalid_argument,
                 fmt::format("{}: {}", position(error.source()), printable(error.description()))};
  }
}

std::string position(const toml::source_region& source) {
  if (!source.path) return "manifest";
  if (source.path->starts_with(kOverridePrefix)) return printable(*source.path);
  return fmt::format("{}:{}:{}", printable(*source.path), source.begin.line, source.begin.column);
}

std::string folder_of(const toml::source_region& source) {
  if (!source.path || source.path->starts_with(kOverridePrefix)) return "";
  return std::filesystem::path(*source.path).parent_path().string();
}

std::string show(const toml::node& value) {
  if (value.is_table()) return "a table";
  std::ostringstream text;
  text << toml::toml_formatter(value, toml::format_flags::allow_unicode_strings);
  return printable(text.view(), 60);
}

std::unique_ptr<Options> make_options(std::string section,
                                      std::shared_ptr<const toml::table> table) {
  return std::make_unique<TomlOptions>(std::move(section), std::move(table));
}

}  // namespace ebb
