#include "tools/ebb/inspect_safetensors.h"

#include <fmt/format.h>

#include <map>

#include "core/text.h"
#include "modules/safetensors/safetensors.h"
#include "tools/ebb/exit_status.h"
#include "tools/ebb/fields.h"
#include "tools/ebb/session.h"

namespace ebb::cli {
namespace {

constexpr std::size_t kShownText = 60;

struct TypeTotal {
  std::int64_t n_tensors = 0;
  std::int64_t n_values = 0;
  std::uint64_t bytes = 0;

  void add(const safetensors::Tensor& tensor) {
    ++n_tensors;
    n_values += tensor.n_values();
    bytes += tensor.bytes.size();
  }
};

std::map<std::string, TypeTotal> totals(const safetensors::File& file) {
  std::map<std::string, TypeTotal> by_type;
  for (const safetensors::Tensor& tensor : file.tensors()) {
    by_type[std::string(tensor.type)].add(tensor);
  }
  return by_type;
}

void print_json(const safetensors::File& file) {
  nlohmann::ordered_json root;
  root["source"] = file.label();
  root["metadata"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : file.metadata()) root["metadata"][key] = value;
  root["tensors"] = nlohmann::ordered_json::array();
  for (const safetensors::Tensor& tensor : file.tensors()) {
    root["tensors"].push_back({{"name", tensor.name},
                               {"type", std::string(tensor.type)},
                               {"shape", tensor.shape},
                               {"bytes", tensor.bytes.size()},
                               {"offset", tensor.offset}});
  }
  root["types"] = nlohmann::ordered_json::object();
  for (const auto& [name, total] : totals(file)) {
    root["types"][name] = {
        {"tensors", total.n_tensors}, {"values", total.n_values}, {"bytes", total.bytes}};
  }
  fmt::print("{}", to_line(root));
}

void print_text(const safetensors::File& file, bool full) {
  const std::size_t limit = full ? std::string::npos : kShownText;
  fmt::print("{}\n\n{} keys\n", file.label(), file.metadata().size());
  for (const auto& [key, value] : file.metadata()) {
    fmt::print("  {} = \"{}\"\n", printable(key), printable(value, limit));
  }
  fmt::print("\n{} tensors\n", file.tensors().size());
  for (const safetensors::Tensor& tensor : file.tensors()) {
    fmt::print("  {:<36} {:<8} {:<20} {:>12}\n", printable(tensor.name), tensor.type,
               safetensors::show_shape(tensor.shape), format_bytes(tensor.bytes.size()));
  }
  fmt::print("\n{:<8} {:>8} {:>16} {:>12}\n", "type", "tensors", "values", "size");
  TypeTotal all;
  for (const auto& [name, total] : totals(file)) {
    fmt::print("{:<8} {:>8} {:>16} {:>12}\n", name, total.n_tensors, total.n_values,
               format_bytes(total.bytes));
  }
  for (const safetensors::Tensor& tensor : file.tensors()) all.add(tensor);
  fmt::print("{:<8} {:>8} {:>16} {:>12}\n", "in all", all.n_tensors, all.n_values,
             format_bytes(all.bytes));
}

}  // namespace

bool is_safetensors(const std::string& path) {
  if (path.ends_with(".safetensors")) return true;
  const Result<files::MappedFile> file = files::MappedFile::open(path);
  return file && safetensors::begins_like_one(file->bytes());
}

Result<int> inspect_safetensors(const std::string& path, bool is_json, bool full) {
  EBB_ASSIGN(const safetensors::File file, safetensors::File::open(path));
  if (is_json) {
    print_json(file);
  } else {
    print_text(file, full);
  }
  return kDone;
}

}  // namespace ebb::cli
