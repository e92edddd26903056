// SPDX-License-Identifier: Apache-2.0
// A Python object as the place where ranks meet.
#pragma once

#include <headrace/comm.hpp>

#include "bindings/python/interpreter.hpp"

#include <memory>
#include <string>

namespace headrace::python {

/// Calls `set`, `get` and `wait` of an object like torch's Store, and `check` if it has it. The thread that
/// opens the communicator, or makes a part of it, makes these calls, without the GIL.
class PyStore final : public CommStore, public Held {
 public:
  /// Raises InvalidArgument if the object lacks a method.
  ///   lasts  as of CommStore
  static std::shared_ptr<PyStore> open(nb::handle object, bool lasts);

  Result<void> set(const std::string& key, const std::string& value) override;
  Result<std::string> get(const std::string& key) override;
  [[nodiscard]] bool lasts() const override { return lasts_; }

  // With the GIL:
  /// Releases the object: the ranks have met.
  void forget() { store_.reset(); }
  /// What a method of the object raised, if an error of the store ended the meeting.
  [[nodiscard]] const nb::object& raised() const { return raised_; }

 private:
  friend std::shared_ptr<PyStore> hold<PyStore, nb::object&, bool&>(nb::object&, bool&);
  PyStore(const nb::object& store, bool lasts) : store_(store), lasts_(lasts) {}
  template <class Call>
  auto with_gil(const char* method, const Call& call) -> decltype(call());
  Error keep(const char* method, nb::python_error& error);
  bool has_value(const std::string& key);

  nb::object store_, raised_;
  const bool lasts_;
};

}  // namespace headrace::python
