// SPDX-License-Identifier: Apache-2.0
// The public face of windows, and what a window does through its registrations.
#include <headrace/comm_window.hpp>

#include "base/errors.hpp"
#include "collectives/window_state.hpp"

#include <array>
#include <utility>

namespace headrace {

using collectives::HostWindow;
using collectives::TimeLimit;
using collectives::WindowCall;
using collectives::WindowMemory;

std::string_view window_access_name(WindowAccess access) noexcept {
  constexpr std::array names{"unified", "separate"};
  const auto index = static_cast<std::size_t>(access);
  return index < names.size() ? names[index] : "unknown";
}

// ------------------------------------------------------------------ the registrations

Window::State::State(std::shared_ptr<HostComm> core, std::uint64_t number)
    : core_(std::move(core)), number_(number), comm_(core_->window_comm()) {
  comm_.look = [this, look = std::move(comm_.look)]() -> Result<void> {
    if (dropped_) return Error{Code::canceled, "the window was dropped"};
    return look();
  };
  comm_.refused = [this](CommOperation operation, Error error) {
    return this->refused(comm_operation_name(operation), std::move(error));
  };
}

Result<std::shared_ptr<HostWindow>> Window::State::current() const {
  const std::scoped_lock lock(mutex_);
  if (registered_ && !registered_->closed()) return registered_;
  return make_error(Code::invalid_argument,
                    "no memory is registered: call tensor_register or allocate on all ranks first");
}

TimeLimit Window::State::limit_of_caller(Timeout timeout) const {
  TimeLimit limit(timeout);
  limit.interrupt = collectives::Interrupt(comm_.interrupted);
  return limit;
}

Result<void> Window::State::open(WindowMemory memory) {
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
Result<void> Window::State::close() {
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

Result<void> Window::State::wait_for_queue(const TimeLimit& limit) {
  if (queue_.empty()) return {};
  WindowCall own(comm_, core_->rank(), limit);
  return own.until([this]() -> Result<bool> { return queue_.empty(); },
                   [&] {
                     return fmt::format("asynchronous operations of this rank are under way after {}",
                                        limit.text());
                   });
}

// ------------------------------------------------------------------ the public functions

namespace {

CommCall one_sided(CommOperation operation, int peer, bool async, Timeout timeout) {
  CommCall call;
  call.operation = operation;
  call.peer = peer;
  call.async = async;
  call.timeout = timeout;
  return call;
}

}  // namespace

Window::Window(std::unique_ptr<State> state) : state_(std::move(state)) {}
Window::Window(Window&&) noexcept = default;
Window& Window::operator=(Window&& other) noexcept {
  if (this != &other) {
    let_go();
    state_ = std::move(other.state_);
  }
  return *this;
}
Window::~Window() { let_go(); }
/// In a forked child it stays, as its communicator.
void Window::let_go() {
  if (state_ && state_->forked()) static_cast<void>(state_.release());
  state_.reset();
}

Result<void> Window::tensor_register(const Elements& tensor, std::shared_ptr<const void> owner) {
  return state_->open({tensor, false, std::move(owner)});
}

Result<Elements> Window::allocate(std::size_t count, DType dtype) {
  HEADRACE_TRY_VOID(state_->open({{nullptr, count, dtype}, true, nullptr}));
  return tensor();
}

Result<void> Window::tensor_deregister() { return state_->close(); }

Result<Elements> Window::tensor() const {
  auto window = state_->current();
  if (!window) return state_->refused("tensor", std::move(window).error());
  return (*window)->elements();
}

Result<Work> Window::put(const ConstElements& tensor, int dst_rank, std::size_t target_offset_nelems,
                         const WindowOptions& options) {
  CommCall call = one_sided(CommOperation::put, dst_rank, options.async, options.timeout);
  call.inputs = {&tensor, 1};
  return state_->start(
      call, options.owner,
      [&](const HostWindow& window) { return window.check_range(dst_rank, tensor, target_offset_nelems); },
      [=](HostWindow& window, const TimeLimit& limit) {
        return window.put(tensor, dst_rank, target_offset_nelems, limit);
      });
}

Result<Work> Window::get(const Elements& tensor, int src_rank, std::size_t source_offset_nelems,
                         const WindowOptions& options) {
  CommCall call = one_sided(CommOperation::get, src_rank, options.async, options.timeout);
  call.outputs = {&tensor, 1};
  return state_->start(
      call, options.owner,
      [&](const HostWindow& window) { return window.check_range(src_rank, tensor, source_offset_nelems); },
      [=](HostWindow& window, const TimeLimit& limit) {
        return window.get(tensor, src_rank, source_offset_nelems, limit);
      });
}

Result<Work> Window::signal(int peer_rank, const Signal& signal, const WindowOptions& options) {
  CommCall call = one_sided(CommOperation::signal, peer_rank, options.async, options.timeout);
  return state_->start(
      call, options.owner, [&](const HostWindow& window) { return window.check_signal(peer_rank, signal); },
      [=](HostWindow& window, const TimeLimit& limit) { return window.signal(peer_rank, signal, limit); });
}

Result<std::uint64_t> Window::wait_signal(int peer_rank, Timeout timeout) {
  CommCall call = one_sided(CommOperation::wait_signal, peer_rank, false, timeout);
  return state_->now(call, State::Turn::at_once, [&](HostWindow& window, const TimeLimit& limit) {
    return window.wait_signal(peer_rank, std::nullopt, limit);
  });
}

Result<std::uint64_t> Window::wait_signal(int peer_rank, const SignalCondition& condition, Timeout timeout) {
  CommCall call = one_sided(CommOperation::wait_signal, peer_rank, false, timeout);
  return state_->now(call, State::Turn::at_once, [&](HostWindow& window, const TimeLimit& limit) {
    return window.wait_signal(peer_rank, condition, limit);
  });
}

Result<std::int64_t> Window::atomic_add(int dst_rank, std::size_t target_offset_nelems, std::int64_t value,
                                        Timeout timeout) {
  CommCall call = one_sided(CommOperation::atomic_add, dst_rank, false, timeout);
  return state_->now(call, State::Turn::after_queued, [&](HostWindow& window, const TimeLimit& limit) {
    return window.atomic_add(dst_rank, target_offset_nelems, value, limit);
  });
}

Result<void> Window::flush(Timeout timeout) {
  CommCall call = one_sided(CommOperation::flush, -1, false, timeout);
  return state_->now(call, State::Turn::after_queued,
                     [](HostWindow&, const TimeLimit&) { return Result<void>(); });
}

Result<RemoteTensor> Window::map_remote_tensor(int rank) {
  auto window = state_->current();
  if (!window) return state_->refused("map_remote_tensor", std::move(window).error());
  auto mapped = (*window)->map(rank);
  if (!mapped) return state_->refused("map_remote_tensor", std::move(mapped).error());
  return mapped;
}

Result<WindowAttr> Window::get_attr(int peer_rank) const {
  auto window = state_->current();
  if (!window) return state_->refused("get_attr", std::move(window).error());
  auto attr = (*window)->attr(peer_rank);
  if (!attr) return state_->refused("get_attr", std::move(attr).error());
  return attr;
}

}  // namespace headrace
