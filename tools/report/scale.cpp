#include "tools/report/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ebb::report {
namespace {

// The least of 1, 2, 5 times a power of ten that is not below `step`.
double round_step(double step) {
  const double power = std::pow(10, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

int digits_of(double step) {
  return std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9);
}

}  // namespace

std::string grouped(double value, int digits) {
  std::string text = fmt::format("{:.{}f}", std::abs(value), digits);
  std::size_t at = std::min(text.find('.'), text.size());
  while (at > 3) text.insert(at -= 3, 1, ',');
  const bool is_zero = text.find_first_not_of("0.") == text.npos;
  return value < 0 && !is_zero ? '-' + text : text;
}

Scale::Scale(const Axis& axis, std::span<const double> values, std::size_t n_marks)
    : unit_(axis.unit), is_log_(axis.is_log) {
  bool is_any = false;
  for (const double value : values) {
    if (!std::isfinite(value) || (is_log_ && value <= 0)) continue;
    low_ = is_any ? std::min(low_, value) : value;
    high_ = is_any ? std::max(high_, value) : value;
    is_any = true;
  }
  if (!is_any && is_log_) low_ = 1, high_ = 2;
  // Powers of two say nothing where there is hardly one.
  if (is_log_ && high_ / low_ < 4) is_log_ = false;
  if (is_log_) {
    log();
  } else {
    linear(n_marks, axis.from_zero, axis.is_whole);
  }
}

void Scale::linear(std::size_t n_marks, bool from_zero, bool is_whole) {
  if (from_zero) low_ = std::min(low_, 0.0), high_ = std::max(high_, 0.0);
  if (high_ == low_) {
    // One value gets the middle, or all of what lies above zero.
    const double around = high_ == 0 ? 1 : std::abs(high_) * 0.1;
    if (!from_zero) low_ -= around;
    high_ += around;
  }
  const double factor = unit_ == Unit::percent ? 100 : 1;
  step_ = round_step((high_ - low_) * factor / static_cast<double>(n_marks)) / factor;
  if (is_whole) step_ = std::max(1.0, step_);
  // Axes of counts begin and end where their values do.
  if (!is_whole) {
    low_ = std::floor(low_ / step_ + 1e-9) * step_;
    high_ = std::ceil(high_ / step_ - 1e-9) * step_;
  }
  for (double i = std::ceil(low_ / step_ - 1e-9); i * step_ <= high_ + step_ * 1e-6; ++i) {
    marks_.push_back(i * step_);
  }
}

void Scale::log() {
  const double first = std::ceil(std::log2(low_) - 1e-9);
  const double last = std::floor(std::log2(high_) + 1e-9);
  const double stride = std::max(1.0, std::ceil((last - first + 1) / 10));
  for (double i = first; i <= last; i += stride) marks_.push_back(std::exp2(i));
}

double Scale::place(double value) const {
  if (is_log_) return (std::log2(value) - std::log2(low_)) / (std::log2(high_) - std::log2(low_));
  return (value - low_) / (high_ - low_);
}

std::string Scale::label(double mark) const {
  switch (unit_) {
    case Unit::percent:
      return grouped(100 * mark, digits_of(100 * step_)) + " %";
    case Unit::tokens:
      if (mark >= 1024 && std::fmod(mark, 1024) == 0) return grouped(mark / 1024, 0) + "K";
      break;
    case Unit::number:
      break;
  }
  return grouped(mark, is_log_ ? digits_of(std::min(1.0, low_)) : digits_of(step_));
}

}  // namespace ebb::report
