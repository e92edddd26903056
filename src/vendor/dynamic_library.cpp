// SPDX-License-Identifier: Apache-2.0
#include "vendor/dynamic_library.hpp"

#include <dlfcn.h>

namespace headrace {
namespace {

std::string loader_says() {
  const char* text = ::dlerror();  // a buffer of this thread
  return text == nullptr ? "no reason given" : text;
}

}  // namespace

Result<DynamicLibrary> DynamicLibrary::open(std::initializer_list<const char*> names, const char* what,
                                            const char* debian_package) {
  std::string reasons;
  for (const char* name : names) {
    // Local: its symbols serve our table only and cannot collide with another version in the program.
    if (void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return DynamicLibrary(handle, name);
    reasons += (reasons.empty() ? "" : "; ") + loader_says();
  }
  return make_error(Code::not_supported, "{} could not be loaded ({}): install the Debian package {}", what,
                    reasons, debian_package);
}

Result<void*> DynamicLibrary::symbol(const char* name) const {
  ::dlerror();
  if (void* address = ::dlsym(handle_, name)) return address;
  return make_error(Code::not_supported,
                    "{} has no function {} ({}): a newer version of the library is needed", name_, name,
                    loader_says());
}

}  // namespace headrace
