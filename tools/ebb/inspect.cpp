// ebb inspect: what a model file holds, read by the same module that loads it; or a file of
// scorers; or a trace.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>

#include "core/host.h"
#include "core/module_loader.h"
#include "core/text.h"
#include "tools/ebb/commands.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/inspect_safetensors.h"
#include "tools/ebb/inspect_trace.h"
#include "tools/ebb/path_option.h"
#include "tools/ebb/session.h"
#include "tools/ebb/validators.h"
#include "tools/trace/reader.h"

namespace ebb::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kShownElements = 6;
constexpr std::size_t kShownText = 60;

struct InspectArgs {
  std::string file;
  std::string loader = "loader_gguf";
  bool json = false, full = false, verbose = false;
};

struct TypeTotal {
  std::int64_t n_tensors = 0;
  std::int64_t n_values = 0;
  std::uint64_t bytes = 0;
};

std::int64_t n_values(const TensorView& tensor) {
  return tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3];
}

const char* type_name(DType type) {
  const DTypeTraits* traits = dtype_traits(type);
  return traits != nullptr ? traits->name : "?";
}

std::map<std::string, TypeTotal> totals(const Loader& loader) {
  std::map<std::string, TypeTotal> by_type;
  for (const TensorView& tensor : loader.tensors()) {
    TypeTotal& total = by_type[type_name(tensor.type)];
    ++total.n_tensors;
    total.n_values += n_values(tensor);
    total.bytes += tensor.n_bytes;
  }
  return by_type;
}

std::string show_one(const std::string& text, std::size_t limit) {
  return fmt::format("\"{}\"", printable(text, limit));
}
template <class T>
std::string show_one(const T& value, std::size_t) {
  return fmt::format("{}", value);
}

// One line for a value; a list is cut after a few elements unless `full`.
std::string show(const MetaValue& value, bool full) {
  const std::size_t text_limit = full ? std::string::npos : kShownText;
  return std::visit(
      [full, text_limit](const auto& held) {
        if constexpr (requires { held.begin(); } &&
                      !std::is_same_v<std::decay_t<decltype(held)>, std::string>) {
          const std::size_t shown = full ? held.size() : std::min(held.size(), kShownElements);
          std::string text = "[";
          for (std::size_t i = 0; i < shown; ++i) {
            const typename std::decay_t<decltype(held)>::value_type element = held[i];
            text += (i > 0 ? ", " : "") + show_one(element, text_limit);
          }
          if (shown < held.size()) text += fmt::format(", ... {} in all", held.size());
          return text + "]";
        } else {
          return show_one(held, text_limit);
        }
      },
      value);
}

std::string shape(const TensorView& tensor) {
  std::string text = "[";
  for (std::int32_t d = 0; d < tensor.n_dims; ++d) {
    text += fmt::format("{}{}", d > 0 ? ", " : "", tensor.ne[static_cast<std::size_t>(d)]);
  }
  return text + "]";
}

void print_text(const Loader& loader, bool full) {
  fmt::print("{}\ndigest {}\n\n{} keys\n", printable(loader.source()), loader.digest(),
             loader.keys().size());
  for (const std::string& key : loader.keys()) {
    fmt::print("  {} = {}\n", printable(key), show(*loader.meta(key), full));
  }
  fmt::print("\n{} tensors\n", loader.tensors().size());
  for (const TensorView& tensor : loader.tensors()) {
    fmt::print("  {:<36} {:<8} {:<20} {:>12}\n", printable(tensor.name), type_name(tensor.type),
               shape(tensor), format_bytes(tensor.n_bytes));
  }
  fmt::print("\n{:<8} {:>8} {:>16} {:>12}\n", "type", "tensors", "values", "size");
  TypeTotal all;
  for (const auto& [name, total] : totals(loader)) {
    fmt::print("{:<8} {:>8} {:>16} {:>12}\n", name, total.n_tensors, total.n_values,
               format_bytes(total.bytes));
    all.n_tensors += total.n_tensors;
    all.n_values += total.n_values;
    all.bytes += total.bytes;
  }
  fmt::print("{:<8} {:>8} {:>16} {:>12}\n", "in all", all.n_tensors, all.n_values,
             format_bytes(all.bytes));
}

void print_json(const Loader& loader) {
  ordered_json root;
  root["source"] = std::string(loader.source());
  root["digest"] = std::string(loader.digest());
  root["metadata"] = ordered_json::object();
  for (const std::string& key : loader.keys()) {
    root["metadata"][key] =
        std::visit([](const auto& held) { return ordered_json(held); }, *loader.meta(key));
  }
  root["tensors"] = ordered_json::array();
  for (const TensorView& tensor : loader.tensors()) {
    root["tensors"].push_back(
        {{"name", std::string(tensor.name)},
         {"type", type_name(tensor.type)},
         {"shape", std::vector<std::int64_t>(tensor.ne.begin(), tensor.ne.begin() + tensor.n_dims)},
         {"bytes", tensor.n_bytes},
         {"place", loader.where_tensor(tensor.name)}});
  }
  root["types"] = ordered_json::object();
  for (const auto& [name, total] : totals(loader)) {
    root["types"][name] = {
        {"tensors", total.n_tensors}, {"values", total.n_values}, {"bytes", total.bytes}};
  }
  fmt::print("{}", to_line(root));
}

Result<int> inspect(const InspectArgs& args) {
  if (trace::is_trace(args.file)) return inspect_trace(args.file, args.json);
  if (is_safetensors(args.file)) return inspect_safetensors(args.file, args.json, args.full);
  LogGate gate(args.verbose);
  HostServices host(gate.sink(), 0);
  PathOption options(args.file);
  const ModuleChoice choice{Loader::kKind, args.loader, "", "--loader"};
  EBB_ASSIGN(
      const ModulePtr<Loader> loader,
      ModuleLoader(modules_folder()).load<Loader>(choice, host.host_for(args.loader), options));
  gate.release();
  if (args.json) {
    print_json(*loader.get());
  } else {
    print_text(*loader.get(), args.full);
  }
  return kDone;
}

}  // namespace

void add_inspect(CLI::App& app, int& status) {
  CLI::App* const command =
      app.add_subcommand("inspect", "Show what is in a GGUF or safetensors file or in a trace");
  const auto args = std::make_shared<InspectArgs>();
  command->add_option("FILE", args->file, "The file; of a split model, its first part")
      ->required()
      ->check(file_name())
      ->type_name("FILE");
  command->add_flag("--json", args->json, "One JSON object with everything, lists in full");
  command->add_flag("--full", args->full, "Do not cut long lists and texts");
  command->add_option("--loader", args->loader, "The loader module that reads it")
      ->capture_default_str()
      ->type_name("MODULE");
  command->add_flag("-v,--verbose", args->verbose, "Show what the loader has to say, on stderr");
  command->footer(
      "Shapes are in the file's order: of GGUF the first number is the contiguous dimension, of\n"
      "safetensors the last.\n"
      "\n"
      "Example:\n"
      "  ebb inspect config/demo/ds4-mini-q8_0.gguf");
  command->callback([args, &status] { status = finish(inspect(*args)); });
}

}  // namespace ebb::cli
