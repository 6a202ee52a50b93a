#include "tools/ebb/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "tools/ebb/tell.h"

namespace ebb::cli {
namespace {

constexpr auto kRedrawEvery = std::chrono::milliseconds(200);
constexpr std::size_t kBarWidth = 20;
constexpr std::size_t kLineWidth = 79;

}  // namespace

Progress::Progress(std::int64_t n_requests, std::uint64_t work, bool is_terminal)
    : n_requests_(n_requests),
      work_(work),
      is_terminal_(is_terminal),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_ - kRedrawEvery) {
  redraw(true);
}

Progress::~Progress() {
  if (is_drawn_) tell("\n");
}

void Progress::feeding(std::string_view id, std::uint64_t work, std::int64_t fed,
                       std::int64_t n_tokens) {
  partial_ = static_cast<double>(work) * static_cast<double>(fed) / static_cast<double>(n_tokens);
  feeding_ = fmt::format("{}: {} of {} tokens", printable(id, 16), fed, n_tokens);
  redraw(false);
}

void Progress::finished(std::uint64_t work, std::string_view line) {
  ++n_finished_;
  done_ += static_cast<double>(work);
  partial_ = 0;
  if (is_terminal_) {
    redraw(true);
  } else {
    tell("{}/{} {}\n", n_finished_, n_requests_, line);
  }
}

std::string Progress::draw(double elapsed) const {
  const double part =
      work_ > 0 ? std::min((done_ + partial_) / static_cast<double>(work_), 1.0) : 1;
  const auto filled = static_cast<std::size_t>(part * kBarWidth);
  std::string line = fmt::format("[{}{}] {}/{} requests", std::string(filled, '#'),
                                 std::string(kBarWidth - filled, '.'), n_finished_, n_requests_);
  if (part > 0) line += fmt::format(", ETA {}", format_duration(elapsed * (1 - part) / part));
  if (!feeding_.empty()) line += ", " + feeding_;
  return line.substr(0, kLineWidth);
}

void Progress::redraw(bool now) {
  const auto time = std::chrono::steady_clock::now();
  if (!is_terminal_ || (!now && time - drawn_ < kRedrawEvery)) return;
  drawn_ = time;
  is_drawn_ = true;
  tell("\r{:<{}}", draw(std::chrono::duration<double>(time - start_).count()), kLineWidth);
  std::fflush(stderr);
}

std::string format_duration(double seconds) {
  const auto all = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  if (all >= 3600) return fmt::format("{}:{:02}:{:02}", all / 3600, all / 60 % 60, all % 60);
  return fmt::format("{}:{:02}", all / 60, all % 60);
}

}  // namespace ebb::cli
