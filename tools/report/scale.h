#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::report {

/// How the values of an axis are written.
enum class Unit {
  number,   ///< 1,250 or 0.85
  tokens,   ///< 64K, K being 1024
  percent,  ///< of a share: 0.25 is 25 %
};

struct Axis {
  std::string label = {};  ///< with its unit: "decode, tokens/s"
  Unit unit = Unit::number;
  bool is_log = false;     ///< to base 2; values above 0
  bool from_zero = false;  ///< what grows from nothing; else the axis begins near the least value
  bool is_whole = false;   ///< only whole numbers are marked
};

/// Places values of an axis on 0..1 and says where its marks go.
class Scale {
 public:
  /// Covers all finite `values`, with a margin to the next mark or a bit less. Without any: 0..1.
  Scale(const Axis& axis, std::span<const double> values, std::size_t n_marks = 6);

  double low() const { return low_; }
  double high() const { return high_; }
  double place(double value) const;
  const std::vector<double>& marks() const { return marks_; }
  std::string label(double mark) const;

 private:
  void linear(std::size_t n_marks, bool from_zero, bool is_whole);
  void log();

  Unit unit_;
  bool is_log_;
  double low_ = 0, high_ = 1;
  double step_ = 1;
  std::vector<double> marks_;
};

/// 1234567.5 with `digits` behind the point: "1,234,567.5".
std::string grouped(double value, int digits);

}  // namespace ebb::report
