// SPDX-License-Identifier: Apache-2.0
// A communicator: orders its operations, runs them on the caller's thread or its own, and ends all of them
// when one fails.
#pragma once

#include "base/errors.hpp"
#include "base/fork_guard.hpp"
#include "collectives/exchange.hpp"
#include "collectives/members.hpp"
#include "collectives/messages.hpp"
#include "collectives/operation.hpp"
#include "collectives/settings.hpp"
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

namespace headrace {

class Comm::Core final : public collectives::Watch, public std::enable_shared_from_this<Comm::Core> {
 public:
  using Operation = collectives::Operation;
  using Call = collectives::Call;
  using Exchange = collectives::Exchange;

  static Result<std::shared_ptr<Core>> open(const CommOptions& options);
  /// `ranks`: those of this communicator in the first one.
  Core(CommOptions options, collectives::Settings settings, std::unique_ptr<collectives::Members> members,
       std::vector<int> ranks);
  ~Core() override;
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  [[nodiscard]] int rank() const { return members_->rank(); }
  [[nodiscard]] int size() const { return members_->size(); }
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] CommOptions options() const;
  [[nodiscard]] collectives::Settings settings() const;
  [[nodiscard]] collectives::Tuning tuning() const;
  void set_timeout(Timeout timeout);
  Result<void> set_hints(const std::map<std::string, std::string>& hints);

  /// Runs `body(exchange)` in order of call: on this thread if nothing is before it, else on the
  /// communicator's.
  template <class Body>
  Result<Work> collective(Operation operation, const OpOptions& options, Body body);
  Result<Work> send(const ConstElements& input, int to, const MessageOptions& options);
  Result<Work> receive(const Elements& output, int from, const MessageOptions& options);
  Result<std::shared_ptr<Core>> split(std::span<const int> ranks, const std::string& name,
                                      const SplitOptions& changes);

  void abort(std::string_view reason);
  [[nodiscard]] bool ended() const { return ended_.load(std::memory_order_acquire) || members_->ended(); }
  Result<void> finalize();
  /// Aborts what is under way, and leaves.
  void close();

  /// Whether this is a forked child's copy: it has none of the threads, and the memory is its parent's.
  [[nodiscard]] bool forked() const { return fork_guard_.forked(); }
  [[nodiscard]] Error why_not_in_child() const;
  [[nodiscard]] Error no_such_hint(Operation operation, const std::string& hint) const;

  /// Makes progress with sends and receives once.
  void poll() {
    if (!forked() && messages_.pending()) messages_.progress();
  }
  /// Waits for a work of this communicator; false: it is late.
  bool wait(Work::State& work, Deadline deadline);

  Result<void> look(const Call& call, int awaited) override;

 private:
  using QueuedBody = std::function<Result<void>(Exchange&)>;
  struct Task {
    std::shared_ptr<Work::State> work;
    Operation operation;
    QueuedBody body;
  };
  [[nodiscard]] Call new_call(Operation operation, Timeout timeout);  // order_ is held
  template <class Run>
  Result<void> run(const Call& call, Operation operation, const Run& body);
  Result<Work> message(Operation operation, int peer, const MessageOptions& options,
                       const std::function<void(const std::shared_ptr<Work::State>&)>& post);
  /// Waits for a work in the call that began it.
  Result<void> wait_in_call(const std::shared_ptr<Work::State>& work);
  Result<void> enqueue(Task task);  // order_ is held
  Result<void> start_worker();      // order_ is held
  void work();
  void drive_messages(collectives::Waiter& waiter);
  void end_stuck_messages();
  [[nodiscard]] Error why_ended();
  /// Ends the communicator on all ranks, once.
  void end_all(Error cause, std::string_view farewell);
  void fail(const Call& call, const Error& error);
  /// Ends it because the caller does not wait any longer.
  Error interrupt(const Call& call);
  [[nodiscard]] Result<void> usable() const;  // order_ is held

  const ForkGuard fork_guard_;
  const std::string name_;
  const std::vector<int> ranks_;
  const std::uint32_t spins_;
  const std::function<bool()> interrupted_;
  std::unique_ptr<collectives::Members> members_;
  collectives::Messages messages_;
  Exchange exchange_;  // used by the thread that has set running_

  mutable std::mutex order_;
  CommOptions options_;
  collectives::Settings settings_;
  std::uint64_t number_ = 0;          // of collectives: the same on all ranks
  std::uint64_t message_number_ = 0;  // of sends and receives
  bool running_ = false;              // a collective runs
  bool closing_ = false;
  bool stop_ = false;
  std::deque<Task> queue_;
  std::condition_variable changed_;
  std::thread worker_;

  std::atomic<bool> ended_{false};
  std::mutex cause_mutex_;
  std::optional<Error> cause_;
};

template <class Run>
Result<void> Comm::Core::run(const Call& call, Operation operation, const Run& body) {
  if (ended()) return why_ended();
  exchange_.begin(call, collectives::operation_tag(operation, call.number), tuning().chunk_bytes);
  Result<void> result = body(exchange_);
  if (!result) fail(call, result.error());
  return result;
}

template <class Body>
Result<Work> Comm::Core::collective(Operation operation, const OpOptions& options, Body body) {
  if (forked()) return why_not_in_child();
  if (operation != Operation::all_reduce && !options.hints.empty())
    return no_such_hint(operation, options.hints.begin()->first);
  std::unique_lock lock(order_);
  if (auto open = usable(); !open) return std::move(open).error();
  Call call = new_call(operation, options.timeout);
  if (!options.async && !running_ && queue_.empty()) {
    running_ = true;
    call.interrupt = collectives::Interrupt(interrupted_);
    lock.unlock();
    Result<void> result = run(call, operation, body);
    lock.lock();
    running_ = false;
    if (!queue_.empty() || closing_) changed_.notify_all();
    if (!result) return collectives::described(*this, call, std::move(result).error());
    return Work();
  }
  auto state = std::make_shared<Work::State>(shared_from_this(), call, options.owner);
  if (auto queued = enqueue({state, operation, std::move(body)}); !queued) return std::move(queued).error();
  lock.unlock();
  if (!options.async) HEADRACE_TRY_VOID(wait_in_call(state));
  return Work(std::move(state));
}

}  // namespace headrace
