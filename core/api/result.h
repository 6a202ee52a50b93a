#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>

namespace ebb {

/// What went wrong, coarse enough to choose an exit status by.
enum class Errc {
  invalid_argument,  ///< the user's input: manifest, file, prompt
  not_found,         ///< a named file, module, key or tensor is absent
  incompatible,      ///< the parts do not fit: ABI, architecture, shapes
  out_of_memory,     ///< a limit or an allocation does not allow the size asked for
  device,            ///< the compute device failed; the session is over
  io,                ///< reading or writing failed for a reason outside the input's content
  internal,          ///< a broken promise of our own code
};

/// One expected failure. `message` is one line that a user can act on: it names the file, key or
/// tensor, the value found and the range allowed.
struct Error {
  Errc code = Errc::internal;
  std::string message;
};

/// Makes an Error from a printf format.
[[gnu::format(printf, 2, 3)]] inline Error make_error(Errc code, const char* format, ...) {
  std::va_list args;
  va_start(args, format);
  std::va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string text(length > 0 ? static_cast<std::size_t>(length) : 0, '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return Error{code, std::move(text)};
}

/// A value or an Error; the members are named as in std::expected, which g++ 12 lacks in C++20.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }

  Error& error() & noexcept { return *std::get_if<1>(&state_); }
  const Error& error() const& noexcept { return *std::get_if<1>(&state_); }
  Error&& error() && noexcept { return std::move(*std::get_if<1>(&state_)); }

 private:
  std::variant<T, Error> state_;
};

/// Success or an Error.
using Status = Result<std::monostate>;
inline Status ok_status() { return std::monostate{}; }

}  // namespace ebb

/// Returns the error of `expression` (a Result or Status) from the enclosing function, if it has
/// one.
#define EBB_TRY(expression)                                        \
  do {                                                             \
    auto ebb_try_result = (expression);                            \
    if (!ebb_try_result) return std::move(ebb_try_result).error(); \
  } while (false)

#define EBB_CONCAT_INNER(a, b) a##b
#define EBB_CONCAT(a, b) EBB_CONCAT_INNER(a, b)

/// Declares or assigns `target` from a Result's value, or returns its error.
#define EBB_ASSIGN(target, expression) \
  EBB_ASSIGN_INNER(target, expression, EBB_CONCAT(ebb_assign_, __LINE__))
#define EBB_ASSIGN_INNER(target, expression, temporary) \
  auto temporary = (expression);                        \
  if (!temporary) return std::move(temporary).error();  \
  target = *std::move(temporary)

/// Stops the process when our own code broke a promise; live in every build.
#define EBB_ASSERT(condition)                                                                     \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      std::fprintf(stderr, "ebb: broken promise at %s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                               \
    }                                                                                             \
  } while (false)
