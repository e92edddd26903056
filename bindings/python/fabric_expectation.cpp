// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/fabric_expectation.hpp"

namespace headrace::python {

const FabricExpectation& PyFabricExpectation::get() const {
  if (home_.is_here()) return expectation_;
  raise_invalid(
      "the expectation belongs to the parent process: open a fabric in this process, after the fork");
}

std::string PyFabricExpectation::described() const {
  const Immediate immediate = expectation_.immediate();
  return "the expectation of immediate " + std::to_string(immediate.value) + " in scope " +
         std::to_string(immediate.scope);
}

void PyFabricExpectation::raise_status(Status status) const {
  if (status.code == Code::timed_out)
    raise(Error{Code::timed_out, described() + ": no round of " +
                                     std::to_string(expectation_.arrivals_each()) +
                                     " arrivals is full; wait again, or check that the peers are alive"});
  if (status.code == Code::canceled)
    raise(Error{Code::canceled, described() + ": it was removed, or the fabric was closed"});
  raise(Error{status.code, described() + ": " + std::string(code_sentence(status.code))});
}

void PyFabricExpectation::wait(const Timeout& timeout) const {
  const FabricExpectation& waited = get();
  const auto wait = [&](std::chrono::nanoseconds time) {
    return without_gil([&] { return waited.wait(time); });
  };
  const Status status = wait_in_slices(timeout, wait, [](Status got) { return got.code == Code::timed_out; });
  if (!status.ok()) raise_status(status);
}

bool PyFabricExpectation::poll() const {
  const Status status = get().wait(std::chrono::nanoseconds(0));
  if (status.ok()) return true;
  if (status.code == Code::timed_out) return false;
  raise_status(status);
}

void PyFabricExpectation::drop_callback() {
  const std::shared_ptr<Callable> before = callback_.lock();
  callback_.reset();
  if (!before) return;
  hooks_->reached.erase(before);
  drop_hook(before);
}

void PyFabricExpectation::on_reached(nb::object callback) {
  const FabricExpectation& expectation = get();
  drop_callback();
  std::function<bool()> reached;
  if (!callback.is_none()) {
    auto hook = hold<Callable>(std::move(callback));
    hooks_->reached.insert(hook);
    callback_ = hook;
    reached = [hook, weak = std::weak_ptr(hooks_)] {
      const bool goes_on = call_hook(hook, [] { return nb::make_tuple(); });
      if (!goes_on)
        call_for_fabric([&] {
          if (const auto hooks = weak.lock()) hooks->reached.erase(hook);
          drop_hook(hook);
        });
      return goes_on;
    };
  }
  without_gil([&] { expectation.on_reached(std::move(reached)); });
}

std::uint64_t PyFabricExpectation::remove() {
  const FabricExpectation& expectation = get();
  const std::uint64_t rest = without_gil([&] { return expectation.remove(); });
  drop_callback();
  return rest;
}

}  // namespace headrace::python
