// ebb modules: what is installed, and the keys each module understands.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string_view>

#include "core/module_loader.h"
#include "core/text.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/lines.h"
#include "tools/ebb/session.h"

namespace ebb::cli {
namespace {

std::string indented(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (!line.empty()) out += "    ";
    out.append(line) += '\n';
  }
  return out;
}

Result<int> modules(const std::string& folder, bool is_brief) {
  using Modules = std::vector<Result<OpenModule>>;
  EBB_ASSIGN(const Modules all, list_modules(folder));
  for (const Result<OpenModule>& module : all) {
    if (!module) continue;
    const ModuleDescriptor& descriptor = *module->descriptor;
    fmt::print("{:<20} {:<10} {:<8} {}\n", descriptor.name, descriptor.kind, descriptor.version,
               printable(module->file));
    if (!is_brief && *descriptor.options != '\0') fmt::print("{}\n", indented(descriptor.options));
  }
  for (const Result<OpenModule>& module : all) {
    if (!module) fmt::print("cannot be used: {}\n", module.error().message);
  }
  if (all.empty()) fmt::print("no module in {}\n", printable(folder));
  return kDone;
}

}  // namespace

void add_modules(CLI::App& app, int& status) {
  struct Args {
    std::string folder = modules_folder();
    bool is_brief = false;
  };
  CLI::App* const command =
      app.add_subcommand("modules", "List the installed modules with their keys and defaults");
  const auto args = std::make_shared<Args>();
  command->add_option("--folder", args->folder, "Where to look; default: modules, beside ebb")
      ->type_name("DIR");
  command->add_flag("--brief", args->is_brief, "One line a module, without keys");
  command->footer(
      "The keys stand as in a manifest: they go into the section that has the module's kind for a\n"
      "name. Files that cannot be used come last, with the reason.");
  command->callback([args, &status] { status = finish(modules(args->folder, args->is_brief)); });
}

}  // namespace ebb::cli
