#include "core/module_loader.h"

#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#define BOOST_DLL_USE_STD_FS  // else Boost.DLL wants Boost.Filesystem linked
#include <boost/dll/shared_library.hpp>

#include "core/text.h"

// Opening a library runs its static initialisers, and get<T>() checks no type: so a file is looked
// at before it is opened, and the descriptor's frozen head (magic, size, ABI) before the rest is
// believed. Nothing in the module runs until all of it fits.

namespace ebb {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxName = 64;

bool is_bare_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == name.npos;
}

// Whether a file has an ELF header and reaches as far as that says. The dynamic linker checks only
// the header, and a library cut off behind it ends the process by SIGBUS.
bool is_whole_library(const fs::path& path) {
  Elf64_Ehdr header{};
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  if (!file || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return false;
  file.seekg(0, std::ios::end);
  const std::uint64_t table = std::uint64_t{header.e_shnum} * header.e_shentsize;
  const auto size = static_cast<std::uint64_t>(file.tellg());
  return table <= size && header.e_shoff <= size - table;
}

template <class... Args>
Error refuse(const fs::path& path, fmt::format_string<Args...> why, Args&&... args) {
  return Error{Errc::incompatible,
               printable(path.string()) + ": " + fmt::format(why, std::forward<Args>(args)...)};
}

// `kind` is the one wanted, "" for any.
Result<OpenModule> open_file(const fs::path& path, std::string_view kind) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return Error{Errc::not_found, printable(path.string()) + ": no such file"};
  }
  if (status.type() != fs::file_type::regular) return refuse(path, "not a regular file");
  if (!is_whole_library(path)) return refuse(path, "not a shared object, or cut short");
  try {
    auto library = std::make_shared<boost::dll::shared_library>(
        fs::absolute(path), boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
    if (!library->has("ebb_module")) return refuse(path, "exports no ebb_module: not a module");
    const auto& found = library->get<const ModuleDescriptor>("ebb_module");
    if (found.magic != kModuleMagic) {
      return refuse(path, "magic {:#010x}, want {:#010x}: not a module", found.magic, kModuleMagic);
    }
    if (found.size != sizeof(ModuleDescriptor)) {
      return refuse(path, "descriptor of {} bytes, want {}: build it again", found.size,
                    sizeof(ModuleDescriptor));
    }
    if (!found.abi || std::strcmp(found.abi, EBB_ABI) != 0) {
      return refuse(path, "made for ABI {}, want {}: build it again",
                    printable(found.abi ? found.abi : "(none)", 80), EBB_ABI);
    }
    if (!kind.empty() && kind != found.kind) {
      return refuse(path, "kind {}, want {}", printable(found.kind, kMaxName), kind);
    }
    if (found.name != path.stem().string()) {
      return refuse(path, "the module in it is named {}, want the file's name {}",
                    printable(found.name, kMaxName), path.stem().string());
    }
    return OpenModule{std::move(library), &found, path.string()};
  } catch (const std::exception& thrown) {
    return refuse(path, "{}", printable(thrown.what()));
  }
}

// For the error of a file that is not there: what could be meant instead.
std::string alternatives(const std::string& folder, std::string_view kind) {
  const Result<std::vector<Result<OpenModule>>> all = list_modules(folder);
  if (!all) return "; " + all.error().message;
  std::string names;
  for (const Result<OpenModule>& module : *all) {
    if (!module || module->descriptor->kind != kind) continue;
    names += (names.empty() ? "" : ", ") + std::string(module->descriptor->name);
  }
  return fmt::format("; {} modules in that folder: {}", kind, names.empty() ? "none" : names);
}

}  // namespace

Result<OpenModule> ModuleLoader::open(const ModuleChoice& choice, std::string_view kind) const {
  const std::string where = fmt::format("{} = \"{}\"", choice.where, printable(choice.name, 80));
  const bool is_path = choice.name.find('/') != choice.name.npos;
  const fs::path path =
      is_path ? fs::path(choice.folder) / choice.name : fs::path(folder_) / (choice.name + ".so");
  if (!is_bare_name(path.stem().string()) || path.extension() != ".so" ||
      choice.name.find('\0') != choice.name.npos) {
    return Error{Errc::invalid_argument,
                 where + ": want a name of a-z, 0-9 and _, or a path (with /) to such a name.so"};
  }
  Result<OpenModule> opened = open_file(path.lexically_normal(), kind);
  if (opened) return opened;
  Error error{opened.error().code, where + ": " + opened.error().message};
  // Elsewhere than in the modules folder there may be libraries that are none of ours to open.
  if (error.code == Errc::not_found && !is_path) error.message += alternatives(folder_, kind);
  return error;
}

Result<std::vector<Result<OpenModule>>> list_modules(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".so") files.push_back(entry->path());
  }
  if (error) return Error{Errc::not_found, printable(folder) + ": " + error.message()};
  std::sort(files.begin(), files.end());
  std::vector<Result<OpenModule>> modules;
  for (const fs::path& file : files) modules.push_back(open_file(file, ""));
  return modules;
}

}  // namespace ebb
