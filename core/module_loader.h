#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/module.h"
#include "core/manifest.h"

namespace ebb {

/// A file that passed every check, and what it holds. The descriptor lives in the library.
struct OpenModule {
  std::shared_ptr<void> library;
  const ModuleDescriptor* descriptor = nullptr;
  std::string file;
};

/// Destroys an object through its descriptor; the library is dropped after that.
struct DestroyModule {
  OpenModule from;
  void operator()(Module* module) const noexcept { from.descriptor->destroy(module); }
};

/// Owns a module object together with the library its code lives in.
template <class Interface>
class ModulePtr {
 public:
  ModulePtr() = default;
  explicit ModulePtr(std::unique_ptr<Module, DestroyModule> module) : module_(std::move(module)) {}
  explicit operator bool() const { return module_ != nullptr; }
  Interface* get() const { return static_cast<Interface*>(module_.get()); }
  Interface* operator->() const { return get(); }
  /// Not for an empty pointer.
  const ModuleDescriptor& descriptor() const { return *module_.get_deleter().from.descriptor; }
  const std::string& file() const { return module_.get_deleter().from.file; }

 private:
  std::unique_ptr<Module, DestroyModule> module_;
};

/// Opens modules. A bare name means NAME.so in the modules folder and nowhere else; a name with '/'
/// is a path from the folder of the manifest that spells it. No search path, no current directory.
/// A file is checked in this order, before anything in it is called: regular and whole, opens,
/// exports a descriptor, magic, size, ABI, kind, name equal to the file's.
/// Errors: not_found, or incompatible; they name the file and what was found and wanted, and for a
/// bare name that is not there the modules of its kind that are.
/// Thread: [startup]
class ModuleLoader {
 public:
  explicit ModuleLoader(std::string folder) : folder_(std::move(folder)) {}

  /// Opens and creates. Fails with create's error too, and with mistakes in the options that create
  /// did not report.
  template <class Interface>
  Result<ModulePtr<Interface>> load(const ModuleChoice& choice, Host& host,
                                    Options& options) const {
    EBB_ASSIGN(OpenModule opened, open(choice, Interface::kKind));
    EBB_ASSIGN(Module * made, opened.descriptor->create(host, options));
    if (!made)
      return Error{Errc::internal, opened.file + ": create made nothing, without a reason"};
    ModulePtr<Interface> module({made, DestroyModule{std::move(opened)}});
    EBB_TRY(options.finish());  // create may have forgotten to ask
    return module;
  }

  /// The checks alone.
  Result<OpenModule> open(const ModuleChoice& choice, std::string_view kind) const;

 private:
  std::string folder_;
};

/// Every .so of `folder` in the order of names, each opened and checked, or why it cannot be used.
Result<std::vector<Result<OpenModule>>> list_modules(const std::string& folder);

}  // namespace ebb
