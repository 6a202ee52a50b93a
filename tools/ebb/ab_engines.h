#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tools/ebb/ab_sides.h"

namespace ebb::cli {

/// The engines of both sides. Every turn has a new one, so that where its memory and threads happen
/// to lie is drawn anew: of two that stay, one may be faster by a percent for as long as it is
/// open, in every round alike, which no interval over rounds can tell from a difference between the
/// sides. Or both stay open, if they are to and memory has room for both.
class AbEngines {
 public:
  /// `opened` hears of each side's first opening, when its facts are noted.
  AbEngines(AbSides& sides, bool verbose, std::function<Status(AbSide&, Engine&)> opened)
      : sides_(sides), verbose_(verbose), opened_(std::move(opened)) {}

  /// Opens A and then B, and notes their facts. `keep_open`: both stay open, if they fit.
  Status open(bool keep_open);

  struct Use {
    Engine* engine;
    bool is_fresh;  ///< it was opened for this call
  };
  /// The engine for a side's turn, 0 or 1; valid until the next call. Errors: those of opening it.
  Result<Use> use(std::size_t side);

  bool both() const { return both_; }
  /// Why they do not stay open though they were to; else empty.
  const std::string& why_not_kept() const { return why_not_kept_; }

 private:
  Status open_side(std::size_t side);

  AbSides& sides_;
  const bool verbose_;
  const std::function<Status(AbSide&, Engine&)> opened_;
  std::unique_ptr<Engine> engines_[2];
  bool known_[2] = {false, false};
  bool both_ = true;
  std::string why_not_kept_;
};

}  // namespace ebb::cli
