// ebb plan: what a manifest takes, before anything of it is taken. The engine is opened in a
// rehearsal, in which modules count what they would allocate; so the figures are those of the code
// that allocates.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "core/text.h"
#include "tools/ebb/bench_plan.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/plan_report.h"
#include "tools/ebb/tell.h"
#include "tools/ebb/validators.h"

namespace ebb::cli {
namespace {

constexpr std::int64_t kMaxSequences = 1024;  // [engine] max_sequences
constexpr std::int64_t kContextUnit = 128;

struct PlanArgs {
  SessionArgs session;
  std::string contexts;
  std::uint64_t device_memory = 0;
  bool json = false;
};

// Two sequences more or less by one: what a part takes for each.
Result<PlannedContext> count_context(const Rehearsal& rehearsal, std::vector<std::string> set) {
  PlannedContext planned;
  const auto with = [&set](std::int64_t n) {
    std::vector<std::string> more = set;
    more.push_back(setting("engine.max_sequences", n));
    return more;
  };
  // Sizes are of interest beyond the limit of the pool too; a swap module may have no such key.
  const auto count = [&](std::int64_t n) {
    std::vector<std::string> more = with(n);
    more.emplace_back("swap.host_limit=1024TiB");
    Result<Footprint> unlimited = rehearsal.count(more);
    return unlimited ? std::move(unlimited) : rehearsal.count(with(n));
  };
  EBB_ASSIGN(planned.one, count(1));
  EBB_ASSIGN(const Footprint two, count(2));
  planned.per_sequence = difference(two, planned.one);
  planned.n_sequences = largest_that_fits(1, kMaxSequences, 1,
                                          [&](std::int64_t n) { return rehearsal.fits(with(n)); });
  const Result<Footprint> next =
      rehearsal.count(with(std::min(planned.n_sequences + 1, kMaxSequences)));
  planned.by_host_limit = !next && next.error().code == Errc::out_of_memory;
  return planned;
}

Result<std::vector<ContextRow>> count_contexts(const Rehearsal& rehearsal, const Manifest& manifest,
                                               const std::string& list) {
  std::vector<ContextRow> rows;
  if (list.empty()) return rows;
  EBB_ASSIGN(const std::vector<std::int64_t> contexts, parse_lengths(list));
  const ModuleChoice* const swap = manifest.module("swap");
  for (const std::int64_t context : contexts) {
    ContextRow row{context, {}, {}};
    const std::string length = setting("engine.max_context", context);
    std::vector<std::string> resident{length};
    if (swap != nullptr) resident.emplace_back("swap.staging=resident");
    EBB_ASSIGN(row.resident, count_context(rehearsal, resident));
    // As the manifest swaps; if it does not, by default.
    EBB_ASSIGN(PlannedContext swapped, count_context(rehearsal, {length}));
    if (!swapped.one.swap) {
      EBB_ASSIGN(swapped, count_context(rehearsal,
                                        {length, "swap.module=" + (swap ? swap->name : "swap_lru"),
                                         "swap.staging=zero_copy"}));
    }
    if (swapped.one.swap) row.swapped = std::move(swapped);
    rows.push_back(std::move(row));
  }
  return rows;
}

Result<int> plan(const PlanArgs& args) {
  EBB_ASSIGN(const Manifest manifest, load_manifest(args.session));
  const Room room{args.device_memory};
  const Rehearsal rehearsal(args.session, room);
  PlanReport report;
  report.room = room;
  Result<Footprint> counted = rehearsal.count();
  if (counted) {
    report.footprint = *counted;
    report.complaint = room.complaint(*counted);
  } else if (counted.error().code == Errc::out_of_memory) {
    report.complaint = counted.error().message;
    const std::string prefix = manifest.path() + ": ";
    if (report.complaint.starts_with(prefix)) report.complaint.erase(0, prefix.size());
  } else {
    return counted.error();
  }
  if (counted) {
    // Of one sequence, by one more, or where there can be no more, by one less.
    const std::int64_t n = manifest.engine().max_sequences;
    EBB_ASSIGN(
        const Footprint other,
        rehearsal.count({setting("engine.max_sequences", n < kMaxSequences ? n + 1 : n - 1)}));
    report.per_sequence =
        n < kMaxSequences ? difference(other, *counted) : difference(*counted, other);
    report.longest_context =
        largest_that_fits(1, std::min<std::int64_t>(counted->model.context_length, 1 << 24),
                          kContextUnit, [&](std::int64_t length) {
                            return rehearsal.fits({setting("engine.max_context", length)});
                          });
  }
  EBB_ASSIGN(report.contexts, count_contexts(rehearsal, manifest, args.contexts));
  if (!report.complaint.empty()) report.suggestions = suggest(rehearsal, manifest);
  const std::string text = args.json ? format_json(report) : format_text(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (report.complaint.empty()) return kDone;
  tell("ebb: {}: does not fit: {}\n", printable(manifest.path()), report.complaint);
  for (const Suggestion& suggestion : report.suggestions) {
    tell("ebb: it would fit with {} ({})\n", as_options(suggestion.set),
         format_bytes(suggestion.bytes));
  }
  if (report.suggestions.empty()) {
    tell(
        "ebb: nothing that was tried makes it fit: less context, fewer sequences, smaller steps, "
        "smaller rows and keys, swapping\n");
  }
  return kDoesNotFit;
}

}  // namespace

void add_plan(CLI::App& app, int& status) {
  CLI::App* const command = app.add_subcommand(
      "plan", "Count what a manifest takes, by part, without taking it; suggest what would fit");
  const auto args = std::make_shared<PlanArgs>();
  add_session_args(*command, args->session);
  command
      ->add_option(
          "--contexts", args->contexts,
          "Also a table of these contexts, in tokens: bytes of one sequence, and how many\n"
          "sequences fit, with and without swapping")
      ->type_name("8K,64K,...");
  command
      ->add_option("--device-memory", args->device_memory,
                   "Plan for a device of this size, weights included, instead of this machine")
      ->transform(CLI::AsSizeValue(false))
      ->transform(size_number())
      ->type_name("SIZE");
  command->add_flag("--json", args->json, "One JSON object instead of text");
  command->footer(
      "The figures are exact for the parts named: the modules count what they would allocate. No\n"
      "weight is read. Status 3 and suggestions, each of them counted too, if it does not fit: in\n"
      "[compute] memory_limit, the device, or this machine with all weights; or, if given, in\n"
      "--device-memory.\n"
      "\n"
      "Examples:\n"
      "  ebb plan config/demo/demo.toml --contexts 2K,8K,20K\n"
      "  ebb plan config/synthetic_v4_flash_cuda.toml --device-memory 140GiB --contexts 64K,1M\n"
      "      --set compute.module=compute_cpu       where there is no such device");
  command->callback([args, command, &status] {
    if (command->count("--device-memory") > 0 && args->device_memory == 0) {
      throw CLI::ValidationError("--device-memory", "want 1 byte or more");
    }
    status = finish(plan(*args));
  });
}

}  // namespace ebb::cli
