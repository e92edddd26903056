// SPDX-License-Identifier: Apache-2.0
// A window of the backend `host` through its registrations: what runs at once, and what runs on its thread.
#pragma once

#include "collectives/host_comm.hpp"
#include "collectives/host_window.hpp"
#include "collectives/window_queue.hpp"
#include "collectives/window_state.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

namespace headrace::collectives {

class HostWindowState final : public Window::State {
 public:
  HostWindowState(std::shared_ptr<HostComm> core, std::uint64_t number);
  ~HostWindowState() override { dropped_ = true; }  // what is queued ends soon

  [[nodiscard]] bool forked() const override { return core_->forked(); }
  Result<void> open(WindowMemory memory) override;
  Result<void> close() override;
  [[nodiscard]] Result<Elements> tensor() const override;
  Result<Work> put(const ConstElements& from, int rank, std::size_t at,
                   const WindowOptions& options) override;
  Result<Work> get(const Elements& to, int rank, std::size_t at, const WindowOptions& options) override;
  Result<Work> signal(int rank, const Signal& signal, const WindowOptions& options) override;
  Result<std::uint64_t> wait_signal(int rank, const std::optional<SignalCondition>& condition,
                                    Timeout timeout) override;
  Result<std::int64_t> atomic_add(int rank, std::size_t at, std::int64_t value, Timeout timeout) override;
  Result<void> flush(Timeout timeout) override;
  Result<RemoteTensor> map(int rank) override;
  Result<WindowAttr> attr(int rank) const override;
  [[nodiscard]] Result<const headrace_device_window_v1*> device_window() const override;

 private:
  enum class Turn { after_queued, at_once };

  [[nodiscard]] Result<std::shared_ptr<HostWindow>> current() const;
  /// The error of a call that has no number.
  [[nodiscard]] Error refused(std::string_view function, Error error) const {
    return core_->refused(function, in_window(std::move(error)));
  }
  /// Begins an operation that may be asynchronous. `check` refuses it in the call; `body` carries it out.
  template <class Check, class Body>
  Result<Work> start(CommCall& call, std::shared_ptr<const void> owner, const Check& check, Body body);
  /// Carries out one that returns the result of `body`.
  template <class Body>
  auto now(CommCall& call, Turn turn, const Body& body)
      -> decltype(body(std::declval<HostWindow&>(), std::declval<const TimeLimit&>()));
  template <class T>
  static Result<Work> as_work(const Result<T>& result) {
    if (!result) return result.error();
    return Work();
  }
  [[nodiscard]] Error in_window(Error error) const {
    return std::move(error).within(fmt::format("window {}", number_));
  }
  /// The registration, if nothing refuses the call.
  template <class Check>
  Result<std::shared_ptr<HostWindow>> admit(const CommCall& call, const Check& check);
  template <class Body>
  auto carry_out(CommCall& call, Turn turn, HostWindow& window, const Body& body)
      -> decltype(body(std::declval<HostWindow&>(), std::declval<const TimeLimit&>()));
  template <class Body>
  Result<Work> enqueue(CommCall& call, std::shared_ptr<const void> owner, std::shared_ptr<HostWindow> window,
                       Body body);
  Result<void> wait_for_queue(const TimeLimit& limit);
  [[nodiscard]] TimeLimit limit_of_caller(Timeout timeout) const;

  const std::shared_ptr<HostComm> core_;
  const std::uint64_t number_;
  WindowComm comm_;
  std::atomic<bool> dropped_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<HostWindow> registered_;
  WindowQueue queue_;  // its thread ends before the rest goes
};

template <class Check>
Result<std::shared_ptr<HostWindow>> HostWindowState::admit(const CommCall& call, const Check& check) {
  if (forked()) return core_->why_not_in_child();
  auto window = current();
  Result<void> allowed;
  if (!window)
    allowed = window.error();
  else
    allowed = check(**window);
  if (!allowed) return refused(comm_operation_name(call.operation), std::move(allowed).error());
  if (core_->hooks()->any()) HEADRACE_TRY_VOID(core_->hooks()->before(call));
  return window;
}

template <class Body>
auto HostWindowState::carry_out(CommCall& call, Turn turn, HostWindow& window, const Body& body)
    -> decltype(body(std::declval<HostWindow&>(), std::declval<const TimeLimit&>())) {
  HEADRACE_TRY(running, core_->begin_one_sided(call));
  core_->hooks()->started(running.id());
  const TimeLimit limit = limit_of_caller(running.timeout);
  const auto run = [&]() -> decltype(body(window, limit)) {
    if (turn == Turn::after_queued) HEADRACE_TRY_VOID(wait_for_queue(limit));
    return body(window, limit);
  };
  auto result = run();
  if (!result) result = described(*core_, running, in_window(std::move(result).error()));
  core_->hooks()->completed(running.id(), result ? Error{Code::ok, {}} : result.error());
  return result;
}

template <class Body>
Result<Work> HostWindowState::enqueue(CommCall& call, std::shared_ptr<const void> owner,
                                      std::shared_ptr<HostWindow> window, Body body) {
  HEADRACE_TRY(running, core_->begin_one_sided(call));
  auto work = std::make_shared<Work::State>(core_, running, std::move(owner));
  work->await(call.peer);
  const TimeLimit limit(running.timeout);
  auto queued = queue_.add([this, work, limit, window = std::move(window), body = std::move(body)] {
    core_->hooks()->started(work->call().id());
    work->begin();
    Result<void> done = body(*window, limit);
    if (!done) done = in_window(std::move(done).error());
    work->end(std::move(done));
  });
  if (!queued) {
    work->end(std::move(queued));
    return work->error();
  }
  return Work(std::move(work));
}

template <class Check, class Body>
Result<Work> HostWindowState::start(CommCall& call, std::shared_ptr<const void> owner, const Check& check,
                                    Body body) {
  HEADRACE_TRY(window, admit(call, check));
  const bool at_once = !call.async || (window->is_mapped(call.peer) && queue_.empty());
  Result<Work> result = at_once ? as_work(carry_out(call, Turn::after_queued, *window, body))
                                : enqueue(call, std::move(owner), std::move(window), std::move(body));
  if (core_->hooks()->any()) core_->hooks()->after(call, result);
  return result;
}

template <class Body>
auto HostWindowState::now(CommCall& call, Turn turn, const Body& body)
    -> decltype(body(std::declval<HostWindow&>(), std::declval<const TimeLimit&>())) {
  HEADRACE_TRY(window, admit(call, [](const HostWindow&) { return Result<void>(); }));
  auto result = carry_out(call, turn, *window, body);
  if (core_->hooks()->any()) core_->hooks()->after(call, as_work(result));
  return result;
}

}  // namespace headrace::collectives
