#include "tools/ebb/ab_passes.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <unordered_map>

#include "tools/ebb/swap_counters.h"

namespace ebb::cli {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::size_t first_side(std::int32_t round) {
  return static_cast<std::size_t>(std::popcount(static_cast<std::uint32_t>(round - 1)) % 2);
}

Result<std::optional<AbPass>> run_pass(Engine& engine, const std::vector<Job>& jobs,
                                       const std::function<bool()>& stopped) {
  AbPass pass;
  pass.samples.resize(jobs.size());
  std::unordered_map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    places[jobs[i].id] = i;
    pass.samples[i].n_prompt = static_cast<std::int64_t>(jobs[i].prompt.size());
    // Nothing grows while the clock runs.
    const auto most = static_cast<std::size_t>(
        std::min(jobs[i].settings.max_tokens, engine.session().max_context));
    pass.samples[i].token_seconds.reserve(most);
    pass.samples[i].text_ends.reserve(most);
  }
  std::vector<Clock::time_point> last(jobs.size());
  std::size_t next = 0;
  Hooks hooks;
  hooks.next = [&]() -> Result<std::optional<Job>> {
    if (next == jobs.size()) return std::optional<Job>();
    return std::optional<Job>(jobs[next++]);
  };
  hooks.token = [&](const Job& job, Generation& generation) {
    const std::size_t i = places[job.id];
    const Clock::time_point now = Clock::now();
    if (generation.tokens().size() > 1) {
      pass.samples[i].token_seconds.push_back(std::chrono::duration<double>(now - last[i]).count());
    }
    pass.samples[i].text_ends.push_back(generation.text().size());
    last[i] = now;
  };
  hooks.finished = [&](const Job& job, const Generation& generation, const Timings& timings) {
    AbSample& sample = pass.samples[places[job.id]];
    sample.tokens = generation.tokens();
    sample.text = generation.text();
    sample.finish = generation.finish();
    sample.timings = timings;
    return ok_status();
  };
  hooks.failed = [&](const Job& job, const Error& why) {
    AbSample& sample = pass.samples[places[job.id]];
    sample = {};
    sample.error = why.message;
    return ok_status();
  };
  hooks.stopped = stopped;
  EBB_ASSIGN(const std::span<const SwapCounters> counters, engine.swap_counters());
  const SwapCounters before = total(counters);
  const bool swaps = !counters.empty();
  const Memory* const memory = engine.memory();
  const MemoryCounters memory_before = memory ? memory->counters() : MemoryCounters{};
  const Clock::time_point begin = Clock::now();
  EBB_ASSIGN(const bool is_through, run_jobs(engine, hooks));
  pass.wall = std::chrono::duration<double>(Clock::now() - begin).count();
  if (!is_through) return std::optional<AbPass>();
  EBB_ASSIGN(const std::span<const SwapCounters> after, engine.swap_counters());
  if (swaps) pass.swap = total(after, before);
  if (memory) pass.memory = difference(memory->counters(), memory_before);
  return std::optional<AbPass>(std::move(pass));
}

Status warm_up(Engine& engine, const std::vector<Job>& jobs, const std::function<bool()>& stopped) {
  constexpr std::int64_t kTokens = 8;
  Job job = *std::min_element(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return a.prompt.size() < b.prompt.size();
  });
  job.settings.max_tokens = std::min(job.settings.max_tokens, kTokens);
  EBB_ASSIGN(const std::optional<AbPass> pass, run_pass(engine, {std::move(job)}, stopped));
  (void)pass;
  return ok_status();
}

}  // namespace ebb::cli
