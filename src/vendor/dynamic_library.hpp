// SPDX-License-Identifier: Apache-2.0
// A shared library that may be absent: loaded at first need, its functions bound by name.
#pragma once

#include "base/errors.hpp"

#include <initializer_list>
#include <string>

namespace headrace {

/// An opened library. It is never unloaded: the libraries in use leave handlers and threads that would
/// outlive it.
class DynamicLibrary {
 public:
  /// Opens the first of `names` that the system finds. `what` and `debian_package` are for the error
  /// sentence.
  ///   errors   not_supported
  [[nodiscard]] static Result<DynamicLibrary> open(std::initializer_list<const char*> names, const char* what,
                                                   const char* debian_package);

  /// Sets `function` to the function `name` of the library.
  ///   errors   not_supported (the library is older than the function)
  template <class Function>
  [[nodiscard]] Result<void> bind(const char* name, Function*& function) const {
    HEADRACE_TRY(address, symbol(name));
    function = reinterpret_cast<Function*>(address);
    return {};
  }

  /// The name with which it was found.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  DynamicLibrary(void* handle, const char* name) : handle_(handle), name_(name) {}
  Result<void*> symbol(const char* name) const;

  void* handle_;
  std::string name_;
};

}  // namespace headrace
