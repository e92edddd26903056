// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/comm_hooks.hpp"

#include "bindings/python/convert.hpp"

#include <headrace/comm.hpp>

#include <algorithm>
#include <utility>

namespace headrace::python {
namespace {

template <class List>
std::vector<PyElements> copied(const List& lists) {
  std::vector<PyElements> copies;
  for (const auto& elements : lists)
    copies.push_back({reinterpret_cast<std::uintptr_t>(elements.data), elements.count, elements.dtype});
  return copies;
}

nb::object exception_or_none(const Error& error) {
  return error.code == Code::ok ? nb::object(nb::none()) : to_exception(error);
}

nb::object called(const nb::object& function, const nb::tuple& arguments) {
  nb::object result = nb::steal(PyObject_CallObject(function.ptr(), arguments.ptr()));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

}  // namespace

PyCall::PyCall(const headrace::CommCall& call)
    : id{call.operation, call.number},
      inputs(copied(call.inputs)),
      outputs(copied(call.outputs)),
      input_splits(call.input_splits.begin(), call.input_splits.end()),
      output_splits(call.output_splits.begin(), call.output_splits.end()),
      op(call.op),
      peer(call.peer),
      tag(call.tag),
      async_op(call.async),
      timeout(call.timeout) {}

bool HookFunctions::removed() const {
  return std::ranges::none_of(functions, [](const nb::object& function) { return function.is_valid(); });
}

void HookFunctions::call(Event event, const MakeArguments& arguments) const {
  const CallbackScope scope;
  if (!scope || !functions[event].is_valid()) return;
  const nb::object function = functions[event];  // another thread may remove it meanwhile
  const nb::error_scope keep_error;              // a signal handler's, which the call will raise
  try {
    (void)called(function, arguments());
  } catch (nb::python_error& error) {
    error.discard_as_unraisable(function);
  }
}

Result<void> HookFunctions::ask(const headrace::CommCall& call) const {
  const CallbackScope scope;
  if (!scope || !functions[before].is_valid()) return {};
  const nb::object function = functions[before];
  try {
    (void)called(function, nb::make_tuple(PyCall(call)));
    return {};
  } catch (nb::python_error& error) {
    error.restore();
    return Error{Code::canceled, "a function of Comm.add_hooks(before=) has refused the operation"};
  }
}

CommHooks HookFunctions::hooks(const std::shared_ptr<HookFunctions>& functions) {
  CommHooks hooks;
  const auto given = [&functions](Event event) { return functions->functions[event].is_valid(); };
  if (given(before))
    hooks.before = [functions](const headrace::CommCall& call) { return functions->ask(call); };
  if (given(scheduled))
    hooks.scheduled = [functions](const headrace::CommCall& call) {
      functions->call(scheduled, [&] { return nb::make_tuple(PyCall(call)); });
    };
  if (given(started))
    hooks.started = [functions](const CommCallId& call) {
      functions->call(started, [&] { return nb::make_tuple(call); });
    };
  if (given(completed))
    hooks.completed = [functions](const CommCallId& call, const Error& error) {
      functions->call(completed, [&] { return nb::make_tuple(call, exception_or_none(error)); });
    };
  if (given(after))
    hooks.after = [functions](const headrace::CommCall& call, const Result<Work>& result) {
      functions->call(after, [&] {
        return nb::make_tuple(PyCall(call), result ? nb::object(nb::none()) : to_exception(result.error()));
      });
    };
  if (given(aborted))
    hooks.aborted = [functions](const Error& cause) {
      functions->call(aborted, [&] { return nb::make_tuple(to_exception(cause)); });
    };
  return hooks;
}

void PyCommHook::remove() {
  without_gil([this] {
    hook.remove();
    return true;
  });
  if (functions) functions->functions = {};
}

}  // namespace headrace::python
