// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/fabric_words.hpp"

#include "bindings/python/bind_fabric.hpp"
#include "bindings/python/convert.hpp"

#include <headrace/device/fabric.cuh>

#include <chrono>
#include <string>

namespace headrace::python {

std::unique_ptr<PyFabricFlag> flag_of(const PyFabricExpectation& expectation,
                                      const std::optional<int>& device, nb::handle memory) {
  const FabricExpectation& of = expectation.get();
  FabricFlagPlace place{.device = device};
  std::shared_ptr<const void> keeper;
  if (!memory.is_none()) {
    GivenFabricMemory given = given_fabric_memory(memory);
    if (given.range.kind != MemoryKind::vram || given.range.length_bytes < sizeof(std::uint64_t))
      raise_invalid("a flag in memory of the caller needs 8 bytes of GPU memory: give a tensor on a GPU");
    if (device && *device != given.range.device)
      raise_invalid("the memory is of GPU " + std::to_string(given.range.device) + ": leave `device` out");
    place.device = given.range.device;
    place.gpu_memory = reinterpret_cast<std::uintptr_t>(given.range.address);
    keeper = std::move(given.keeper);
  }
  return std::make_unique<PyFabricFlag>(take(without_gil([&] { return of.flag(place); })), std::move(keeper));
}

// ------------------------------------------------------------------ watched words

const FabricWatcher& PyFabricWatcher::watcher() const {
  if (home_.is_here()) return *watcher_;
  raise_invalid("the word belongs to the parent process: open a fabric in this process, after the fork");
}

void PyFabricWatcher::stop() {
  const FabricWatcher& here = watcher();
  without_gil([&] { here.stop(); });
  const std::shared_ptr<Callable> callback = callback_.lock();
  if (!callback) return;
  hooks_->reached.erase(callback);
  drop_hook(callback);
}

// ------------------------------------------------------------------ queues of commands

namespace {

/// Runs Python's handlers of signals ten times a second. The exception of one stays set, and ends the wait.
class EndedBySignal {
 public:
  bool operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return false;
    next_ = now + interval;
    return interrupted_by_signal();
  }

 private:
  static constexpr auto interval = std::chrono::milliseconds(100);
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + interval;
};

}  // namespace

const FabricCommandQueue& PyFabricCommandQueue::queue() const {
  if (home_.is_here()) return *queue_;
  raise_invalid("the queue belongs to the parent process: open a fabric in this process, after the fork");
}

const FabricCommandQueue& PyFabricCommandQueue::of_threads() const {
  const FabricCommandQueue& here = queue();
  if (!here.device()) return here;
  raise_invalid("the commands of this queue are those of kernels of GPU " + std::to_string(*here.device()) +
                ": make a queue without `device` for threads");
}

std::uint64_t PyFabricCommandQueue::post(nb::handle write, nb::handle first, nb::handle count) const {
  const FabricCommandQueue& here = of_threads();
  const std::uint32_t number = to_u32(write, "the write");
  const std::uint32_t from = to_u32(first, "the first unit");
  std::uint32_t units = number < units_.size() && from <= units_[number] ? units_[number] - from : 0;
  if (!count.is_none()) units = to_u32(count, "the number of units");
  const device::Commands commands(reinterpret_cast<headrace_fabric_queue_v1*>(here.address()));
  const std::uint64_t posted =
      without_gil([&] { return commands.post<device::Scope::thread>(number, from, units, EndedBySignal()); });
  if (posted != 0) return posted;
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  if (!commands.closed())
    raise(
        Error{Code::timed_out, "the queue was full for its timeout: wait for commands, or check the peers"});
  raise(Error{Code::canceled, "the queue is closed"});
}

void PyFabricCommandQueue::wait(std::uint64_t number) const {
  const FabricCommandQueue& here = of_threads();
  const device::Commands commands(reinterpret_cast<headrace_fabric_queue_v1*>(here.address()));
  const device::Waited waited =
      without_gil([&] { return commands.wait<device::Scope::thread>(number, EndedBySignal()); });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  if (waited == device::Waited::late)
    raise(Error{Code::timed_out, "command " + std::to_string(number) +
                                     " has not ended: wait again, or check that the peers are alive"});
  if (waited == device::Waited::closed) raise(Error{Code::canceled, "the queue is closed"});
}

}  // namespace headrace::python
