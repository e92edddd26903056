// SPDX-License-Identifier: Apache-2.0
// An expectation of a fabric for Python.
#pragma once

#include "bindings/python/fabric_handle.hpp"

#include <memory>
#include <string>
#include <utility>

namespace headrace::python {

class PyFabricExpectation {
 public:
  PyFabricExpectation(FabricExpectation expectation, std::shared_ptr<FabricHooks> hooks)
      : expectation_(std::move(expectation)), hooks_(std::move(hooks)) {}
  PyFabricExpectation(const PyFabricExpectation&) = delete;
  PyFabricExpectation& operator=(const PyFabricExpectation&) = delete;

  /// Raises in a forked child.
  [[nodiscard]] const FabricExpectation& get() const;
  [[nodiscard]] bool is_here() const { return home_.is_here(); }
  void wait(const Timeout& timeout) const;
  [[nodiscard]] bool poll() const;
  void on_reached(nb::object callback);
  std::uint64_t remove();

 private:
  [[nodiscard]] std::string described() const;
  [[noreturn]] void raise_status(Status status) const;
  void drop_callback();

  HomeProcess home_;
  FabricExpectation expectation_;
  std::shared_ptr<FabricHooks>
      hooks_;  ///< they own the callback, so that the fabric shows it to the collector
  std::weak_ptr<Callable> callback_;
};

}  // namespace headrace::python
