#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/loader.h"

namespace ebb::deepseek4 {

/// Typed reads of "deepseek4.*" keys with their ranges. Names are given without that prefix.
/// A read that fails gives an Error that begins with the key's place and states what was found and
/// what is allowed. Integers may be stored with any width and sign.
class Metadata {
 public:
  explicit Metadata(const Loader& loader) : loader_(loader) {}

  bool has(std::string_view name) const;

  Result<std::int64_t> integer(std::string_view name, std::int64_t low, std::int64_t high) const;
  Result<std::int64_t> integer_or(std::string_view name, std::int64_t fallback, std::int64_t low,
                                  std::int64_t high) const;
  /// Reads into a 32-bit field; high must fit it.
  Status read(std::string_view name, std::int32_t low, std::int32_t high,
              std::int32_t& target) const;
  /// Finite and in [low, high].
  Result<double> number(std::string_view name, double low, double high) const;
  Result<bool> boolean(std::string_view name) const;
  Result<std::string> text(std::string_view name) const;
  /// The first `n` values of an array that has at least n.
  Result<std::vector<std::int64_t>> integers(std::string_view name, std::size_t n) const;
  /// The same for numbers in [low, high]; a scalar stands for n equal values.
  Result<std::vector<float>> numbers(std::string_view name, std::size_t n, double low,
                                     double high) const;

  /// An Error about key `name`: its place, then `text`.
  Error error(std::string_view name, std::string_view text,
              Errc code = Errc::invalid_argument) const;

 private:
  Result<const MetaValue*> require(std::string_view name) const;
  Error wrong_type(std::string_view name, const MetaValue& value, const char* want) const;

  const Loader& loader_;
};

}  // namespace ebb::deepseek4
