// SPDX-License-Identifier: Apache-2.0
// What a backend is to the public face: one communicator, to which calls with checked arguments are given.
#pragma once

#include "base/clock.hpp"
#include "base/fork_guard.hpp"
#include "collectives/coalescer.hpp"
#include "collectives/group.hpp"
#include "collectives/hooks.hpp"
#include "collectives/kept_call.hpp"
#include "collectives/registrations.hpp"
#include "collectives/work_state.hpp"

#include <headrace/comm.hpp>
#include <headrace/comm_window.hpp>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {
namespace collectives {

/// Who a communicator is. Fixed when it opens.
struct Identity {
  int rank = 0, size = 1;
  std::string name;
  std::vector<int> ranks;  ///< those of this communicator in the one that was opened first
  Device device = {};      ///< where the elements of its calls lie
};

}  // namespace collectives

/// Derived classes are the backends.
///   threads  any
class Comm::Core : public std::enable_shared_from_this<Comm::Core> {
 public:
  Core(collectives::Identity identity, std::shared_ptr<collectives::Hooks> hooks);
  virtual ~Core() = default;
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  [[nodiscard]] int rank() const { return identity_.rank; }
  [[nodiscard]] int size() const { return identity_.size; }
  [[nodiscard]] const std::vector<int>& ranks() const { return identity_.ranks; }
  [[nodiscard]] const std::string& name() const { return identity_.name; }
  [[nodiscard]] Device device() const { return identity_.device; }
  [[nodiscard]] bool on_gpu() const { return identity_.device.kind != Device::Kind::cpu; }
  [[nodiscard]] const std::shared_ptr<collectives::Hooks>& hooks() const { return hooks_; }

  /// Whether this is a forked child's copy: it has none of the threads, and the memory is its parent's.
  [[nodiscard]] bool forked() const { return fork_guard_.forked(); }
  [[nodiscard]] Error why_not_in_child() const;
  [[nodiscard]] Error why_closed() const;
  /// The error of a call that has no number, with rank, operation and communicator before it.
  [[nodiscard]] Error refused(std::string_view operation, Error error) const;
  [[nodiscard]] Error refused(CommOperation operation, Error error) const {
    return refused(comm_operation_name(operation), std::move(error));
  }
  /// Begins an operation, between the hooks; or keeps it, if this thread coalesces its calls.
  ///   owns  `owner` until the operation has ended
  Result<Work> call(CommCall& call, std::shared_ptr<const void> owner);
  /// Begins messages as one operation, between the hooks.
  Result<Work> batch(std::span<const collectives::KeptCall> messages, const OpOptions& options);

  Result<void> start_coalescing();
  Result<Work> end_coalescing(bool async);
  Result<void> cancel_coalescing(std::string_view reason);
  /// The work of the calls that this thread keeps; null: it keeps none.
  [[nodiscard]] std::shared_ptr<Work::State> coalesces() const { return coalescer_.mine(); }
  /// No call is kept any more: the communicator is left.
  void close_coalescing() { coalescer_.close(); }

  [[nodiscard]] virtual std::string_view backend() const = 0;
  [[nodiscard]] virtual std::string_view backend_version() const = 0;
  [[nodiscard]] virtual CommOptions options() const = 0;
  virtual void set_timeout(Timeout timeout) = 0;
  virtual Result<void> set_hints(const std::map<std::string, std::string>& hints) = 0;
  /// Null: this rank is in no group.
  virtual Result<std::shared_ptr<Core>> split(std::span<const int> ranks, const std::string& name,
                                              const SplitOptions& changes) = 0;
  /// This rank as reconfigure takes it.
  virtual Result<std::string> init_handle();
  virtual Result<std::shared_ptr<Core>> reconfigure(const std::string& uuid,
                                                    std::span<const std::string> handles,
                                                    const SplitOptions& changes);
  virtual Result<std::shared_ptr<Core>> shrink(std::span<const int> excluded, const SplitOptions& changes);
  virtual Result<Window> new_window();
  /// Keeps the owner of memory that calls use again and again. Its arguments have been checked. Here: the
  /// backend is told nothing.
  ///   owns  `owner` until tensor_deregister, or the end of the communicator
  virtual Result<void> tensor_register(const Elements& tensor, std::shared_ptr<const void> owner);
  virtual Result<void> tensor_deregister(const Elements& tensor);
  virtual Result<void> suspend();
  virtual Result<void> resume();
  [[nodiscard]] virtual bool suspended() const { return false; }
  virtual void abort(std::string_view reason) = 0;
  [[nodiscard]] virtual bool ended() const = 0;
  virtual Result<void> finalize() = 0;
  /// Aborts what is under way, and leaves.
  virtual void close() = 0;

  /// Makes progress once with what no thread drives.
  virtual void poll() {}
  /// Waits for a work of this communicator; false: it is late.
  virtual bool wait(Work::State& work, Deadline deadline) = 0;
  /// Makes later work of a stream wait for a work of this communicator, which is on a GPU. Here: the host
  /// waits.
  virtual Result<void> wait_on(Work::State& work, void* stream);

 protected:
  /// The options of a communicator of the ranks `group`, in which this one is number `mine`.
  [[nodiscard]] CommOptions options_of_split(std::span<const int> group, int mine, const std::string& name,
                                             const SplitOptions& changes) const;
  /// The group's ranks as those of the communicator that was opened first.
  [[nodiscard]] std::vector<int> first_ranks(std::span<const int> group) const;
  /// Begins an operation: gives it its number, and tells the hooks that it is scheduled, started and
  /// completed.
  virtual Result<Work> issue(CommCall& call, std::shared_ptr<const void> owner) = 0;
  /// Refuses calls after the end.
  [[nodiscard]] virtual Result<void> check_open() = 0;
  /// Refuses a collective that cannot be kept among coalesced calls.
  [[nodiscard]] Result<void> check_not_coalescing() const;
  /// The memory that is registered.
  [[nodiscard]] collectives::Registrations& registrations() { return registrations_; }
  /// Why this backend has no such function.
  [[nodiscard]] Error not_in_backend(std::string_view what) const;
  /// Refuses what `issue` refuses for its arguments: a call that is kept must not fail later.
  [[nodiscard]] virtual Result<void> check(const CommCall&) const { return {}; }
  /// Begins calls that end as one, in this order, and adds each to the group. Without `async` the caller
  /// waits by wait_in_call. Here: one after another.
  virtual void issue_all(std::span<const collectives::KeptCall> calls, bool async, collectives::Group& group);
  /// Waits for a work in the call that began it. On a GPU no call waits.
  virtual Result<void> wait_in_call(const std::shared_ptr<Work::State>& work);

 private:
  [[nodiscard]] std::shared_ptr<Work::State> make_group(CommOperation operation,
                                                        std::shared_ptr<const void> owner);
  [[nodiscard]] Result<void> check_stream(CommOperation operation, const void* stream) const;
  Result<Work> keep(CommCall& call, std::shared_ptr<const void> owner,
                    const std::shared_ptr<Work::State>& work);
  Result<Work> keep_batch(std::span<const collectives::KeptCall> messages,
                          const std::shared_ptr<const void>& owner, const std::shared_ptr<Work::State>& work);
  /// `call`: of the group, as hooks get it.
  Result<Work> issue_group(CommCall& call, std::span<const collectives::KeptCall> calls,
                           const std::shared_ptr<Work::State>& work);

  const collectives::Identity identity_;
  const ForkGuard fork_guard_;
  const std::shared_ptr<collectives::Hooks> hooks_;
  collectives::Coalescer coalescer_;
  collectives::Registrations registrations_;
  std::atomic<std::uint64_t> group_number_{0};  // of batches and coalesced calls
};

}  // namespace headrace
