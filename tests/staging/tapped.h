#pragma once

#include <dlfcn.h>

#include <memory>
#include <string>

#include "core/api/module.h"

namespace ebb::test {

/// A module that another one stands in front of, to hear what it is asked.
template <class Interface>
using Tapped = std::unique_ptr<Interface, void (*)(Module*) noexcept>;

/// Makes the module of a file, whose kind is Interface's. Its library stays loaded.
/// Errors: not_found, and those of making it.
template <class Interface>
Result<Tapped<Interface>> make_tapped(const std::string& file, Host& host, Options& options) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const void* const symbol = library != nullptr ? dlsym(library, "ebb_module") : nullptr;
  if (symbol == nullptr) return make_error(Errc::not_found, "no %s", file.c_str());
  const auto* const module = static_cast<const ModuleDescriptor*>(symbol);
  EBB_ASSIGN(Module* const made, module->create(host, options));
  return Tapped<Interface>(static_cast<Interface*>(made), module->destroy);
}

}  // namespace ebb::test
