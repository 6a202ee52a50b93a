#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "core/api/options.h"
#include "core/api/result.h"
#include "ebb_abi.h"  // EBB_ABI: made by cmake/EbbAbi.cmake from the interfaces, compiler and flags

namespace ebb {

class Host;

/// Base of everything a module hands out. The module that created it destroys it, through the
/// descriptor's `destroy`; the core never deletes a module object itself.
class Module {
 public:
  virtual ~Module() = default;
};

inline constexpr std::uint32_t kModuleMagic = 0x45424231;  // "EBB1"

/// The one symbol a module exports, as plain data: the loader reads and checks it before it calls
/// anything. `magic`, `size` and `abi` are frozen and come first; the rest is trusted once they
/// match.
struct ModuleDescriptor {
  std::uint32_t magic;
  std::uint32_t size;   ///< sizeof(ModuleDescriptor)
  const char* abi;      ///< EBB_ABI of the build that made the module
  const char* kind;     ///< Interface::kKind, e.g. "loader"
  const char* name;     ///< equals the folder and the file name
  const char* version;  ///< of the module, for humans
  const char* options;  ///< text of options.toml: keys with defaults, "" if it has none
  Result<Module*> (*create)(Host&, Options&) noexcept;
  void (*destroy)(Module*) noexcept;
};

/// The descriptor of `Class`, which implements `Interface` and has
///   static Result<std::unique_ptr<Class>> create(Host&, Options&);
/// Exceptions of create become Errors here: nothing throws across the boundary.
template <class Interface, class Class>
constexpr ModuleDescriptor describe(const char* name, const char* version, const char* options) {
  return ModuleDescriptor{
      kModuleMagic,
      sizeof(ModuleDescriptor),
      EBB_ABI,
      Interface::kKind,
      name,
      version,
      options,
      [](Host& host, Options& manifest_options) noexcept -> Result<Module*> {
        try {
          Result<std::unique_ptr<Class>> made = Class::create(host, manifest_options);
          if (!made) return std::move(made).error();
          return static_cast<Module*>(static_cast<Interface*>((*made).release()));
        } catch (const std::exception& thrown) {
          return make_error(Errc::internal, "create failed: %s", thrown.what());
        } catch (...) {
          return make_error(Errc::internal, "create failed with an unknown exception");
        }
      },
      [](Module* module) noexcept { delete module; }};
}

}  // namespace ebb

/// Last line of a module: exports its descriptor. EBB_OPTIONS_TOML is generated from options.toml.
#define EBB_MODULE(Interface, Class, name, version)                                   \
  extern "C" [[gnu::visibility("default")]] const ::ebb::ModuleDescriptor ebb_module; \
  const ::ebb::ModuleDescriptor ebb_module =                                          \
      ::ebb::describe<Interface, Class>(name, version, EBB_OPTIONS_TOML)
