// SPDX-License-Identifier: Apache-2.0
// What a window of the backend `host` does through its registrations.
#include "collectives/host_window_state.hpp"

#include "base/errors.hpp"

#include <utility>

namespace headrace::collectives {
namespace {

CommCall one_sided(CommOperation operation, int peer, const WindowOptions& options) {
  CommCall call;
  call.operation = operation;
  call.peer = peer;
  call.async = options.async;
  call.timeout = options.timeout;
  return call;
}

}  // namespace

// ------------------------------------------------------------------ the registrations

HostWindowState::HostWindowState(std::shared_ptr<HostComm> core, std::uint64_t number)
    : core_(std::move(core)), number_(number), comm_(core_->window_comm()) {
  comm_.look = [this, look = std::move(comm_.look)]() -> Result<void> {
    if (dropped_) return Error{Code::canceled, "the window was dropped"};
    return look();
  };
  comm_.refused = [this](CommOperation operation, Error error) {
    return this->refused(comm_operation_name(operation), std::move(error));
  };
}

Result<std::shared_ptr<HostWindow>> HostWindowState::current() const {
  const std::scoped_lock lock(mutex_);
  if (registered_ && !registered_->closed()) return registered_;
  return make_error(Code::invalid_argument,
                    "no memory is registered: call tensor_register or allocate on all ranks first");
}

TimeLimit HostWindowState::limit_of_caller(Timeout timeout) const {
  TimeLimit limit(timeout);
  limit.interrupt = Interrupt(comm_.interrupted);
  return limit;
}

Result<void> HostWindowState::open(WindowMemory memory) {
  if (forked()) return core_->why_not_in_child();
  constexpr auto operation = CommOperation::tensor_register;
  if (current())
    return comm_.refused(operation, make_error(Code::invalid_argument,
                                               "memory is registered already: call tensor_deregister first"));
  if (auto refused = check_memory(memory); !refused)
    return comm_.refused(operation, std::move(refused).error());
  HEADRACE_TRY(
      opened, HostWindow::open(comm_, std::move(memory), number_, limit_of_caller(core_->options().timeout)));
  const std::scoped_lock lock(mutex_);
  registered_ = std::move(opened);
  return {};
}

/// When the communicator has ended, what is queued ends too, and the memory is taken back all the same.
Result<void> HostWindowState::close() {
  if (forked()) return core_->why_not_in_child();
  constexpr auto operation = CommOperation::tensor_deregister;
  auto window = current();
  if (!window) return comm_.refused(operation, std::move(window).error());
  const TimeLimit limit = limit_of_caller(core_->options().timeout);
  if (auto waited = wait_for_queue(limit); !waited && comm_.look())
    return comm_.refused(operation, std::move(waited).error());
  Result<void> closed = (*window)->close(limit);
  const std::scoped_lock lock(mutex_);
  if (registered_ && registered_->closed()) registered_.reset();
  return closed;
}

Result<void> HostWindowState::wait_for_queue(const TimeLimit& limit) {
  if (queue_.empty()) return {};
  WindowCall own(comm_, core_->rank(), limit);
  return own.until([this]() -> Result<bool> { return queue_.empty(); },
                   [&] {
                     return fmt::format("asynchronous operations of this rank are under way after {}",
                                        limit.text());
                   });
}

// ------------------------------------------------------------------ operations

Result<Elements> HostWindowState::tensor() const {
  auto window = current();
  if (!window) return refused("tensor", std::move(window).error());
  return (*window)->elements();
}

Result<Work> HostWindowState::put(const ConstElements& from, int rank, std::size_t at,
                                  const WindowOptions& options) {
  CommCall call = one_sided(CommOperation::put, rank, options);
  call.inputs = {&from, 1};
  return start(
      call, options.owner, [&](const HostWindow& window) { return window.check_range(rank, from, at); },
      [=](HostWindow& window, const TimeLimit& limit) { return window.put(from, rank, at, limit); });
}

Result<Work> HostWindowState::get(const Elements& to, int rank, std::size_t at,
                                  const WindowOptions& options) {
  CommCall call = one_sided(CommOperation::get, rank, options);
  call.outputs = {&to, 1};
  return start(
      call, options.owner, [&](const HostWindow& window) { return window.check_range(rank, to, at); },
      [=](HostWindow& window, const TimeLimit& limit) { return window.get(to, rank, at, limit); });
}

Result<Work> HostWindowState::signal(int rank, const Signal& signal, const WindowOptions& options) {
  CommCall call = one_sided(CommOperation::signal, rank, options);
  return start(
      call, options.owner,
      [&](const HostWindow& window) -> Result<void> {
        HEADRACE_TRY_VOID(window.check_rank(rank));
        return check_window_signal(signal);
      },
      [=](HostWindow& window, const TimeLimit& limit) { return window.signal(rank, signal, limit); });
}

Result<std::uint64_t> HostWindowState::wait_signal(int rank, const std::optional<SignalCondition>& condition,
                                                   Timeout timeout) {
  CommCall call = one_sided(CommOperation::wait_signal, rank, {.timeout = timeout});
  return now(call, Turn::at_once, [&](HostWindow& window, const TimeLimit& limit) {
    return window.wait_signal(rank, condition, limit);
  });
}

Result<std::int64_t> HostWindowState::atomic_add(int rank, std::size_t at, std::int64_t value,
                                                 Timeout timeout) {
  CommCall call = one_sided(CommOperation::atomic_add, rank, {.timeout = timeout});
  return now(call, Turn::after_queued, [&](HostWindow& window, const TimeLimit& limit) {
    return window.atomic_add(rank, at, value, limit);
  });
}

Result<void> HostWindowState::flush(Timeout timeout) {
  CommCall call = one_sided(CommOperation::flush, -1, {.timeout = timeout});
  return now(call, Turn::after_queued, [](HostWindow&, const TimeLimit&) { return Result<void>(); });
}

Result<RemoteTensor> HostWindowState::map(int rank) {
  auto window = current();
  if (!window) return refused("map_remote_tensor", std::move(window).error());
  auto mapped = (*window)->map(rank);
  if (!mapped) return refused("map_remote_tensor", std::move(mapped).error());
  return mapped;
}

Result<const headrace_device_window_v1*> HostWindowState::device_window() const {
  return refused("get_device_window",
                 make_error(Code::not_supported,
                            "the window has host memory: kernels use windows of backend p2p, on GPUs"));
}

Result<WindowAttr> HostWindowState::attr(int rank) const {
  auto window = current();
  if (!window) return refused("get_attr", std::move(window).error());
  auto attr = (*window)->attr(rank);
  if (!attr) return refused("get_attr", std::move(attr).error());
  return attr;
}

}  // namespace headrace::collectives
