// SPDX-License-Identifier: Apache-2.0
// The backend `host`: orders operations, runs them on the caller's thread or its own, and ends all of them
// when one fails.
#pragma once

#include "base/errors.hpp"
#include "collectives/core.hpp"
#include "collectives/exchange.hpp"
#include "collectives/host_call.hpp"
#include "collectives/members.hpp"
#include "collectives/messages.hpp"
#include "collectives/operation.hpp"
#include "collectives/settings.hpp"
#include "collectives/window_call.hpp"
#include "collectives/work_state.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::collectives {

/// The settings of a communicator that another one makes, from its options with the changes.
[[nodiscard]] Result<Settings> settings_of_split(const CommOptions& options, const SplitOptions& changes);

class HostComm final : public Comm::Core, public Watch {
 public:
  /// With options that check_options allows.
  static Result<std::shared_ptr<Core>> open(const CommOptions& options);
  /// The same with the hint lazy.
  static Result<std::shared_ptr<Core>> open_lazily(const CommOptions& options);
  /// `ranks`: those of this communicator in the first one.
  HostComm(CommOptions options, Settings settings, std::unique_ptr<Members> members, std::vector<int> ranks);
  ~HostComm() override;

  [[nodiscard]] std::string_view backend() const override { return backend_; }
  [[nodiscard]] std::string_view backend_version() const override;
  [[nodiscard]] CommOptions options() const override;
  void set_timeout(Timeout timeout) override;
  Result<void> set_hints(const std::map<std::string, std::string>& hints) override;
  Result<std::shared_ptr<Core>> split(std::span<const int> ranks, const std::string& name,
                                      const SplitOptions& changes) override;
  Result<std::string> init_handle() override;
  Result<std::shared_ptr<Core>> reconfigure(const std::string& uuid, std::span<const std::string> handles,
                                            const SplitOptions& changes) override;
  Result<std::shared_ptr<Core>> shrink(std::span<const int> excluded, const SplitOptions& changes) override;

  Result<Window> new_window() override;
  /// What a window uses. The communicator outlives it.
  [[nodiscard]] WindowComm window_comm();
  /// Gives a one-sided operation its number.
  ///   errors  invalid_argument (the communicator is closed)
  Result<Call> begin_one_sided(CommCall& call);

  void abort(std::string_view reason) override;
  [[nodiscard]] bool ended() const override {
    return ended_.load(std::memory_order_acquire) || members_->ended();
  }
  Result<void> finalize() override;
  void close() override;

  void poll() override {
    if (!forked() && messages_.pending()) messages_.progress();
  }
  bool wait(Work::State& work, Deadline deadline) override;

  Result<void> look(const Call& call, const Exchange& waiting) override;

 protected:
  Result<Work> issue(CommCall& call, std::shared_ptr<const void> owner) override;
  [[nodiscard]] Result<void> check_open() override;
  [[nodiscard]] Result<void> check(const CommCall& call) const override;
  void issue_all(std::span<const KeptCall> calls, bool async, Group& group) override;
  Result<void> wait_in_call(const std::shared_ptr<Work::State>& work) override;

 private:
  using QueuedBody = std::function<Result<void>(Exchange&)>;
  struct Task {
    std::shared_ptr<Work::State> work;
    std::string card;
    QueuedBody body;
  };
  [[nodiscard]] Tuning tuning() const;
  [[nodiscard]] Seat own_seat(std::string metadata) const;
  /// Makes a communicator of ranks that have exchanged their cards. Waits for all, unless it is lazy.
  ///   place  where they have met: a lazy one keeps it open, because others may still read what they need
  static Result<std::shared_ptr<Core>> of_cards(const CommOptions& options, Settings settings,
                                                std::unique_ptr<Members> members, std::vector<int> ranks,
                                                const std::vector<std::string>& cards, Deadline deadline,
                                                std::shared_ptr<CommStore> place = {});
  Result<void> meet_all(Deadline deadline);
  /// Connects to a rank, and to all, when they are used first.
  Result<void> reach(const Call& call, int peer);
  Result<void> reach_all(const Call& call);
  Result<void> reach_peer_of(const CommCall& call);
  /// Puts a communicator of these agents together. `ranks`: what they are in the first one.
  Result<std::shared_ptr<Core>> assemble(std::uint64_t key, const std::vector<Seat>& seats,
                                         std::vector<int> ranks, const SplitOptions& changes);
  /// Gives the call its number. order_ is held.
  [[nodiscard]] Call begin(CommCall& call);
  /// Runs `body(exchange)` in order of call: on this thread if nothing is before it, else on the
  /// communicator's.
  ///   card  what other ranks compare with their calls; empty: nothing
  template <class Body>
  Result<Work> collective(CommCall& call, std::string card, const std::shared_ptr<const void>& owner,
                          Body body);
  /// The card of a call if the ranks compare them.
  [[nodiscard]] std::string card_of(const CommCall& call, const HostPlan* plan) const;
  /// Compares the calls of all ranks. Where they differ the communicator goes on: every rank knows.
  Result<void> compare(const Call& call, const std::string& card);
  /// One of the communicator itself.
  template <class Body>
  Result<void> own_collective(CommOperation operation, Timeout timeout, const Body& body) {
    CommCall call;
    call.operation = operation;
    call.timeout = timeout;
    auto done = collective(call, card_of(call, nullptr), nullptr, body);
    return done ? Result<void>() : std::move(done).error();
  }
  template <class Body>
  Result<void> run(const Call& call, const std::string& card, const Body& body);
  /// Puts a collective into the queue. order_ is held.
  Result<std::shared_ptr<Work::State>> enqueue(CommCall& call, std::string card,
                                               std::shared_ptr<const void> owner, QueuedBody body);
  /// A collective that runs later, with a copy of the call.
  [[nodiscard]] static QueuedBody body_of(const HostPlan& plan, const CommCall& call);
  Result<Work> message(CommCall& call, std::shared_ptr<const void> owner);
  /// order_ is held.
  Result<std::shared_ptr<Work::State>> begin_message(CommCall& call, std::shared_ptr<const void> owner);
  void issue_one(const KeptCall& kept, bool async, Group& group);  // order_ is held
  void post(const CommCall& call, const std::shared_ptr<Work::State>& work);
  Result<void> start_worker();  // order_ is held
  void work();
  void drive_messages(Waiter& waiter);
  void end_stuck_messages();
  [[nodiscard]] bool may_come(const std::vector<int>& ranks) const;
  /// Why an operation that waits for these ranks does not go on.
  [[nodiscard]] Error missing(const Call& call, const std::vector<int>& ranks) const;
  [[nodiscard]] Error why_ended();
  /// Ends the communicator on all ranks, once.
  void end_all(Error cause, std::string_view farewell);
  void fail(const Call& call, const Error& error);
  /// Ends it because the caller does not wait any longer.
  Error interrupt(const Call& call);
  [[nodiscard]] Result<void> usable() const;  // order_ is held
  [[nodiscard]] Result<void> still_open() const {
    const std::scoped_lock lock(order_);
    return usable();
  }

  const std::string_view backend_;
  const std::uint32_t spins_;
  const bool check_;
  const std::function<bool()> interrupted_;
  std::shared_ptr<CommStore> place_;  // of a lazy one
  std::unique_ptr<Members> members_;
  Messages messages_;
  Exchange exchange_;  // used by the thread that has set running_

  mutable std::mutex order_;
  CommOptions options_;
  Settings settings_;
  std::uint64_t number_ = 0;          // of collectives: the same on all ranks
  std::uint64_t message_number_ = 0;  // of sends and receives
  std::uint64_t one_sided_number_ = 0;
  std::uint64_t windows_ = 0;
  bool running_ = false;  // a collective runs
  bool closing_ = false;
  bool stop_ = false;
  std::deque<Task> queue_;
  std::condition_variable changed_;
  std::thread worker_;

  std::atomic<bool> ended_{false};
  std::mutex cause_mutex_;
  std::optional<Error> cause_;
};

template <class Body>
Result<void> HostComm::run(const Call& call, const std::string& card, const Body& body) {
  hooks()->started(call.id());
  if (ended()) return why_ended();
  HEADRACE_TRY_VOID(reach_all(call));
  if (!card.empty()) HEADRACE_TRY_VOID(compare(call, card));
  exchange_.begin(call, operation_tag(call.operation, call.number), tuning().chunk_bytes);
  Result<void> result = body(exchange_);
  if (!result) fail(call, result.error());
  return result;
}

template <class Body>
Result<Work> HostComm::collective(CommCall& call, std::string card, const std::shared_ptr<const void>& owner,
                                  Body body) {
  std::unique_lock lock(order_);
  if (auto open = usable(); !open) return std::move(open).error();
  const bool at_once = !call.async && !running_ && queue_.empty();
  if (at_once) {
    Call running = begin(call);
    running_ = true;
    running.interrupt = Interrupt(interrupted_);
    lock.unlock();
    Result<void> result = run(running, card, body);
    lock.lock();
    running_ = false;
    if (!queue_.empty() || closing_) changed_.notify_all();
    lock.unlock();
    Error error = result ? Error{Code::ok, {}} : described(*this, running, std::move(result).error());
    hooks()->completed(running.id(), error);
    if (error.code != Code::ok) return error;
    return Work();
  }
  HEADRACE_TRY(work, enqueue(call, std::move(card), owner, std::move(body)));
  lock.unlock();
  if (!call.async) HEADRACE_TRY_VOID(wait_in_call(work));
  return Work(std::move(work));
}

}  // namespace headrace::collectives
