// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/fabric_handle.hpp"

#include <stdexcept>
#include <string>

namespace headrace::python {
namespace {

/// The open fabrics of this process. Access needs the GIL.
std::set<PyFabric*>& open_fabrics() {
  static std::set<PyFabric*>& the = *new std::set<PyFabric*>;
  return the;
}

struct HeldException final : Held {
  explicit HeldException(nb::object value) : value(std::move(value)) {}
  nb::object value;
};

/// That of the callback which has just raised on this thread, on its way through the fabric to `on_error`.
thread_local std::shared_ptr<HeldException> raised_here;

/// Makes an exception of C++ from that of Python. Needs the GIL.
[[noreturn]] void pass_on(const nb::python_error& error) {
  if (error.traceback().is_valid()) PyException_SetTraceback(error.value().ptr(), error.traceback().ptr());
  raised_here = hold<HeldException>(nb::borrow(error.value()));
  throw std::runtime_error(shown(error.value()));
}

void print_as_unraisable(const nb::object& exception) {
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  PyErr_WriteUnraisable(nullptr);
}

/// The fabric calls it on its callback thread, after a callback that has thrown.
void tell_error(const FabricHooks& hooks, const Error& error) {
  const std::shared_ptr<HeldException> raised = std::exchange(raised_here, nullptr);
  const CallbackScope scope;
  if (!scope) return;
  try {
    const nb::object exception = raised ? raised->value : to_exception(error);
    const std::shared_ptr<Callable> told = hooks.on_error;
    if (!told) return print_as_unraisable(exception);
    const nb::object function = told->object;
    function(exception);
  } catch (nb::python_error& again) {
    again.discard_as_unraisable("the on_error callback of a headrace.Fabric");
  }
}

}  // namespace

void drop_hook(const std::shared_ptr<Callable>& hook) {
  if (!hook) return;
  hook->dropped = true;
  const nb::object function = std::move(hook->object);  // its end may run any code
}

void FabricHooks::drop() {
  const auto gone = std::exchange(reached, {});
  const auto unexpected = std::exchange(on_unexpected, nullptr);
  for (const auto& hook : gone) drop_hook(hook);
  drop_hook(unexpected);
}

bool call_for_fabric(const std::function<void()>& call) {
  const CallbackScope scope;
  if (!scope) return false;
  try {
    call();
  } catch (const nb::python_error& error) {
    pass_on(error);
  }
  return true;
}

bool call_hook(const std::shared_ptr<Callable>& hook, const std::function<nb::object()>& make_arguments) {
  bool goes_on = false;
  call_for_fabric([&] {
    if (hook->dropped) return;
    const nb::object function = hook->object;  // it may be dropped meanwhile
    const nb::object arguments = make_arguments();
    const nb::object answer = nb::steal(PyObject_CallObject(function.ptr(), arguments.ptr()));
    if (!answer.is_valid()) throw nb::python_error();
    goes_on = answer.ptr() != Py_False;
  });
  return goes_on;
}

// ------------------------------------------------------------------ works

void FabricWorkEnds::add(const FabricWork& work, std::function<void()> call) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (!over_) {
      first = calls_.empty();
      calls_.push_back(std::move(call));
      call = nullptr;
    }
  }
  if (call) work.on_done([call = std::move(call)](Status) { call(); });
  if (first) work.on_done([self = shared_from_this(), work](Status) { self->run(work); });
}

/// Each goes to the fabric by itself, so that one that raises ends no other.
void FabricWorkEnds::run(const FabricWork& work) {
  std::vector<std::function<void()>> calls;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    calls.swap(calls_);
  }
  if (calls.size() == 1) return calls.front()();
  for (auto& call : calls) work.on_done([call = std::move(call)](Status) { call(); });
}

const FabricWork& PyFabricWork::work() const {
  if (home_.is_here()) return work_;
  raise_invalid("the work belongs to the parent process: open a fabric in this process, after the fork");
}

bool PyFabricWork::ended() const {
  const RequestState state = work().state();
  return state != RequestState::posted && state != RequestState::canceling;
}

void PyFabricWork::wait(const Timeout& timeout) const {
  const auto wait = [&](std::chrono::nanoseconds time) {
    return without_gil([&] { return work_.wait(time); });
  };
  const auto running = [&](Status status) { return status.code == Code::timed_out && !ended(); };
  if (!ended() && running(wait_in_slices(timeout, wait, running)))
    raise(
        Error{Code::timed_out, "still in flight when the timeout of wait expired: wait again, or cancel it"});
  if (const Error error = work_.error(); error.code != Code::ok) raise(error);
}

void PyFabricWork::on_end(std::function<void()> call) const {
  const FabricWork& ending = work();
  without_gil([&] { ends_->add(ending, std::move(call)); });
}

// ------------------------------------------------------------------ the fabric

PyFabric::PyFabric(const FabricOptions& options)
    : fabric_(std::make_shared<headrace::Fabric>(
          python::take(without_gil([&] { return headrace::Fabric::open(options); })))) {
  fabric_->on_error([hooks = hooks_](const Error& error) { tell_error(*hooks, error); });
  open_fabrics().insert(this);
}

PyFabric::~PyFabric() {
  close();
  drop_hook(std::exchange(hooks_->on_error, nullptr));
  without_gil([this] { home_.release(fabric_); });
  free_laid_aside();
}

headrace::Fabric& PyFabric::fabric() const {
  if (home_.is_here()) return *fabric_;
  raise_invalid("the fabric belongs to the parent process: open one in this process, after the fork");
}

/// After the close of the C++ fabric it needs no `this`: another thread may have freed it meanwhile.
void PyFabric::close() {
  closed_ = true;
  open_fabrics().erase(this);
  const auto hooks = hooks_;
  const auto keepers = std::exchange(keepers_, {});
  without_gil([home = home_, fabric = fabric_]() mutable {
    if (home.is_here()) fabric->close();
    home.release(fabric);
  });
  hooks->drop();
  for (const auto& keeper : keepers) keeper->object.reset();
  free_laid_aside();
}

PyFabricMemory PyFabric::register_memory(const MemoryRange& range, std::shared_ptr<const void> object,
                                         FabricAccess access, std::optional<std::size_t> group) {
  PyFabricMemory made{ask([&](headrace::Fabric& f) { return f.register_memory(range, access, group); }),
                      std::make_shared<FabricKeeper>(std::move(object))};
  if (closed_) made.keeper->object.reset();
  if (made.keeper->object) keepers_.insert(made.keeper);
  return made;
}

void PyFabric::deregister(const PyFabricMemory& memory) {
  ask([&](headrace::Fabric& f) { return f.deregister(memory.memory); });
  if (!memory.keeper) return;
  memory.keeper->object.reset();
  keepers_.erase(memory.keeper);
  free_laid_aside();
}

void PyFabric::on_unexpected(nb::object callback) {
  auto hook = callback.is_none() ? nullptr : hold<Callable>(std::move(callback));
  headrace::Fabric& here = fabric();
  const auto before = std::exchange(hooks_->on_unexpected, hook);
  std::function<void(Immediate, std::uint64_t)> told;
  if (hook)
    told = [hook](Immediate immediate, std::uint64_t arrivals) {
      call_hook(hook, [&] { return nb::make_tuple(immediate.value, immediate.scope, arrivals); });
    };
  without_gil([&] { here.on_unexpected(std::move(told)); });
  drop_hook(before);
}

void close_all_fabrics() {
  const std::set<PyFabric*> fabrics = open_fabrics();  // a copy: close() erases, and may run any code
  for (PyFabric* fabric : fabrics)
    if (open_fabrics().contains(fabric)) fabric->close();
}

}  // namespace headrace::python
