#include "tools/ebb/ab_engines.h"

#include <chrono>

#include "tools/ebb/session.h"

namespace ebb::cli {

Status AbEngines::open(bool keep_open) {
  EBB_TRY(open_side(0));
  if (!keep_open) {
    both_ = false;
    engines_[0].reset();
    return open_side(1);
  }
  const Status beside = open_side(1);
  if (beside || beside.error().code != Errc::out_of_memory) return beside;
  both_ = false;
  why_not_kept_ = beside.error().message;
  engines_[0].reset();
  return open_side(1);
}

Result<AbEngines::Use> AbEngines::use(std::size_t side) {
  if (both_) return Use{engines_[side].get(), false};
  for (std::unique_ptr<Engine>& engine : engines_) engine.reset();
  EBB_TRY(open_side(side));
  return Use{engines_[side].get(), true};
}

Status AbEngines::open_side(std::size_t i) {
  AbSide& side = sides_[i];
  SessionArgs args;
  args.verbose = verbose_;
  const auto begin = std::chrono::steady_clock::now();
  Result<std::unique_ptr<Engine>> engine = open_engine(side.manifest, args);
  if (!engine) {
    return make_error(engine.error().code, "side %c: %s", side.name,
                      engine.error().message.c_str());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  engines_[i] = *std::move(engine);
  if (known_[i]) return ok_status();
  known_[i] = true;
  EBB_ASSIGN(side.facts, facts_of(*engines_[i], seconds.count()));
  return opened_(side, *engines_[i]);
}

}  // namespace ebb::cli
