// SPDX-License-Identifier: Apache-2.0
// Python functions that a communicator calls beside its operations.
#pragma once

#include <headrace/comm_hooks.hpp>

#include "bindings/python/interpreter.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace headrace::python {

/// Elements of a call. The memory is the caller's and may be gone when the function has returned.
struct PyElements {
  std::uintptr_t address = 0;
  std::size_t count = 0;
  DType dtype = DType::float32;
};

/// A copy of a call, which a function may keep.
struct PyCall {
  explicit PyCall(const headrace::CommCall& call);

  CommCallId id;
  std::vector<PyElements> inputs, outputs;
  std::vector<std::size_t> input_splits, output_splits;
  ReduceOp op;
  int peer;
  std::uint32_t tag;
  bool async_op;
  Timeout timeout;
};

/// The functions of one Comm.add_hooks. Access needs the GIL. The communicator keeps it; the Comm object
/// shows it to the garbage collector, because a function that uses its communicator is a cycle.
class HookFunctions final : public Held {
 public:
  enum Event : std::size_t { before, scheduled, started, completed, after, aborted, event_count };
  std::array<nb::object, event_count> functions;  ///< none once the hooks are removed

  [[nodiscard]] bool removed() const;
  /// The C++ hooks that call the functions.
  static CommHooks hooks(const std::shared_ptr<HookFunctions>& functions);

 private:
  using MakeArguments = std::function<nb::tuple()>;
  /// Calls the function of an event, if there is one. An exception of it goes to sys.unraisablehook.
  void call(Event event, const MakeArguments& arguments) const;
  /// Calls `before`. An exception of it stays set on this thread, for take_uninterrupted.
  Result<void> ask(const headrace::CommCall& call) const;
};

/// What Comm.add_hooks and FlightRecorder.attach return.
struct PyCommHook {
  CommHook hook;
  std::shared_ptr<HookFunctions> functions;  ///< null: they are in C++

  void remove();
};

}  // namespace headrace::python
