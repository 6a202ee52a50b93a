#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace ebb::cli {

/// How far a batch has come, on stderr: on a terminal one line that is drawn over and over, with a
/// bar and the time left; elsewhere one line per finished request. Work is measured in the caller's
/// unit (bytes of input lines), so that the time left counts long prompts as long.
class Progress {
 public:
  /// `n_requests` and `work` in total; `is_terminal` as isatty(2) says.
  Progress(std::int64_t n_requests, std::uint64_t work, bool is_terminal);
  /// Leaves the cursor on a fresh line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Of the request `id`, which is `work` in all, `fed` of `n_tokens` tokens are fed.
  void feeding(std::string_view id, std::uint64_t work, std::int64_t fed, std::int64_t n_tokens);
  /// A request is through; `line` says how, for those who read lines.
  void finished(std::uint64_t work, std::string_view line);

  /// The drawn line, for `elapsed` seconds; at most 79 characters.
  std::string draw(double elapsed) const;

 private:
  void redraw(bool now);

  std::int64_t n_requests_;
  std::int64_t n_finished_ = 0;
  std::uint64_t work_;
  double done_ = 0;     // work of finished requests
  double partial_ = 0;  // and of the one being fed
  std::string feeding_;
  bool is_terminal_;
  bool is_drawn_ = false;
  std::chrono::steady_clock::time_point start_, drawn_;
};

/// "0:07", "12:34", "3:02:05".
std::string format_duration(double seconds);

}  // namespace ebb::cli
