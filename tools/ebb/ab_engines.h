#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tools/ebb/ab_sides.h"

namespace ebb::cli {

/// The engines of both sides: open at the same time where memory has room for both, so that each is
/// opened once; else one at a time, opened anew whenever the other side's turn has passed.
class AbEngines {
 public:
  /// `opened` hears of each side's first opening, when its facts are noted.
  AbEngines(AbSides& sides, bool verbose, std::function<Status(AbSide&, Engine&)> opened)
      : sides_(sides), verbose_(verbose), opened_(std::move(opened)) {}

  /// Opens A and then B, both if they fit and `one_at_a_time` does not forbid it. Side B is open
  /// afterwards in any case.
  Status open(bool one_at_a_time);

  struct Use {
    Engine* engine;
    bool is_fresh;  ///< it was opened for this call
  };
  /// The engine of a side, 0 or 1. Errors: those of opening it.
  Result<Use> use(std::size_t side);

  bool both() const { return both_; }
  /// Why only one at a time is open.
  const std::string& why_one() const { return why_one_; }

 private:
  Status open_side(std::size_t side);

  AbSides& sides_;
  const bool verbose_;
  const std::function<Status(AbSide&, Engine&)> opened_;
  std::unique_ptr<Engine> engines_[2];
  bool known_[2] = {false, false};
  bool both_ = true;
  std::string why_one_;
};

}  // namespace ebb::cli
