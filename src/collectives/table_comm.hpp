// SPDX-License-Identifier: Apache-2.0
// A communicator whose backend is a C table: numbers and mirrors its calls, and ends their works when the
// backend says so, when they are late, and when the communicator ends. A backend that breaks its word gets an
// error or is ignored.
#pragma once

#include "collectives/core.hpp"
#include "collectives/table_store.hpp"

#include <headrace/plugin/comm_v1.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace headrace::collectives {

struct TableHost;

class TableComm final : public Comm::Core {
 public:
  /// `table`: checked by check_comm_table.
  static Result<std::shared_ptr<Core>> open(const headrace_comm_backend_v1& table,
                                            const CommOptions& options);
  TableComm(const headrace_comm_backend_v1& table, CommOptions options, std::vector<int> ranks);
  ~TableComm() override;

  [[nodiscard]] std::string_view backend() const override { return table_.name; }
  [[nodiscard]] std::string_view backend_version() const override { return table_.version; }
  [[nodiscard]] CommOptions options() const override;
  void set_timeout(Timeout timeout) override;
  Result<void> set_hints(const std::map<std::string, std::string>& hints) override;
  Result<std::shared_ptr<Core>> split(std::span<const int> ranks, const std::string& name,
                                      const SplitOptions& changes) override;
  Result<std::shared_ptr<Core>> shrink(std::span<const int> excluded, const SplitOptions& changes) override;
  Result<std::string> init_handle() override;
  Result<std::shared_ptr<Core>> reconfigure(const std::string& uuid, std::span<const std::string> handles,
                                            const SplitOptions& changes) override;
  Result<void> tensor_register(const Elements& tensor, std::shared_ptr<const void> owner) override;
  Result<void> tensor_deregister(const Elements& tensor) override;
  Result<void> suspend() override;
  Result<void> resume() override;
  [[nodiscard]] bool suspended() const override { return suspended_; }
  Result<Window> new_window() override;
  void abort(std::string_view reason) override;
  [[nodiscard]] bool ended() const override { return ended_.load(std::memory_order_acquire); }
  Result<void> finalize() override;
  void close() override;
  void poll() override;
  bool wait(Work::State& work, Deadline deadline) override;
  Result<void> wait_on(Work::State& work, void* stream) override;

  // What its windows ask for.

  /// Registers memory of a window.
  ///   owns  `owner` until window_close succeeds, or the end of the communicator
  Result<void> window_open(headrace_comm_window_v1& window, std::shared_ptr<const void> owner);
  Result<void> window_close(std::uint64_t window);
  /// Begins an operation of a window, which is this one of the communicator. `call`: as hooks get it;
  /// `table_call`: as the backend does, but for the limit.
  ///   owns  `owner` until it has ended
  Result<std::shared_ptr<Work::State>> window_issue(std::uint64_t window, CommCall& call,
                                                    headrace_comm_window_call_v1 table_call,
                                                    std::shared_ptr<const void> owner);
  /// Waits for one in the call that began it. An interrupt ends the wait alone.
  Result<void> wait_for_one_sided(Work::State& work);

  // What the backend tells.
  void work_ended(std::uint64_t id, Result<void> result, int source);
  void comm_ended(const Error& cause);

 protected:
  Result<Work> issue(CommCall& call, std::shared_ptr<const void> owner) override;
  [[nodiscard]] Result<void> check_open() override;
  void issue_all(std::span<const KeptCall> calls, bool async, Group& group) override;

 private:
  /// A work that the backend has not ended.
  struct Begun {
    std::shared_ptr<Work::State> work;  ///< null: ended without the backend, which may still use the memory
    std::shared_ptr<const void> owner;
    Deadline deadline = Deadline::never();
    bool ending = false;  ///< take has given the work to the thread that ends it
  };

  /// Calls `open(host, setup, &comm, why)` of the table, and starts the thread.
  template <class Open>
  [[nodiscard]] Result<void> start(const Open& open);
  [[nodiscard]] Call begin(CommCall& call, std::uint64_t& last);
  [[nodiscard]] Result<void> usable() const;
  /// Refuses calls between suspend and resume.
  [[nodiscard]] Result<void> awake() const;
  [[nodiscard]] Result<int> index_of_handle(std::span<const std::string> handles) const;
  /// Refuses while a message is under way.
  [[nodiscard]] Result<void> no_message() const;
  ///   errors  invalid_argument (this thread is in the backend)
  [[nodiscard]] Result<void> outside() const;
  /// The number of the last operation of this kind.
  [[nodiscard]] std::uint64_t& last_number(CommOperation operation);
  /// Begins a work by `issue(running, id, why)` of the table.
  template <class Issue>
  Result<std::shared_ptr<Work::State>> begin_work(CommCall& call, std::shared_ptr<const void> owner,
                                                  const Issue& issue, std::uint64_t window = 0);
  /// Gives a call to the backend. With the lock of its order.
  Result<std::shared_ptr<Work::State>> begin_call(CommCall& call, std::shared_ptr<const void> owner);
  /// Makes a communicator of some ranks, by `open(host, setup, &comm, why)` of the table.
  /// `key`: of its store.
  template <class Open>
  [[nodiscard]] Result<std::shared_ptr<TableComm>> make_part(std::span<const int> group, int mine,
                                                             const std::string& name, std::string key,
                                                             const SplitOptions& changes, const Open& open);
  /// Runs body(timeout), which calls the backend, in the order of collectives, when those of this rank have
  /// ended. `check` refuses it before it has a number.
  template <class Check, class Body>
  Result<void> run_quietly(CommOperation operation, const Check& check, const Body& body);
  /// The lock of the order of collectives, once none of this rank is under way. If one is late the
  /// communicator ends: other ranks are in the operation.
  template <class Check>
  [[nodiscard]] Result<std::unique_lock<std::mutex>> quiet_order(CommOperation operation, Timeout timeout,
                                                                 Deadline deadline, const Check& check);
  /// Waits for a collective that is under way, which may fail.
  [[nodiscard]] Result<void> wait_for_call(Work::State& work, Timeout timeout, Deadline deadline);
  /// A collective of this rank that is under way; null: there is none.
  [[nodiscard]] std::shared_ptr<Work::State> any_collective() const { return any_call(false); }
  /// The same of messages, or of collectives.
  [[nodiscard]] std::shared_ptr<Work::State> any_call(bool message) const;
  /// Whether a work that is begun now has been added; false: the communicator is being closed.
  bool add(std::uint64_t id, std::shared_ptr<Work::State> work, std::shared_ptr<const void> owner);
  /// The work with this id, which is then the caller's to end; null: there is none, or it has ended.
  /// It stays among those that finalize waits for until end_taken.
  [[nodiscard]] std::shared_ptr<Work::State> take(std::uint64_t id);
  void end_taken(std::uint64_t id, Work::State& work, Result<void> result);
  /// Waits for a work in the call that began it.
  Result<void> wait_in_call(const std::shared_ptr<Work::State>& work) override;
  /// The communicator's own thread: ends what is late, tells the backend of an abort, makes progress.
  void watch();
  /// Makes progress once; whether something moved.
  bool drive();
  void end_late();
  /// What the backend says of a late work, behind a colon; empty: nothing.
  [[nodiscard]] std::string what_it_waits_for(std::uint64_t id);
  [[nodiscard]] bool any_works() const;
  /// Ends the communicator on this rank, once. Its thread tells the backend.
  void end_all(const Error& cause);
  void fail(const Call& call, Error error);
  /// Logs a failure that no call may return before its streams go on.
  void tell_of_streams(const Error& cause) const;
  /// Ends what is under way, and the thread; whether the caller is to end the backend.
  bool leave();
  /// When no thread is inside it.
  void end_backend();
  [[nodiscard]] Error why_ended() const;

  const headrace_comm_backend_v1 table_;
  const std::function<bool()> interrupted_;
  const std::shared_ptr<TableHost> host_;
  void* comm_ = nullptr;  // the backend's handle

  std::mutex order_, message_order_;  // held while a collective, or a message, is begun
  std::uint64_t number_ = 0, message_number_ = 0, one_sided_number_ = 0, windows_ = 0;
  std::string handle_;  // with order_: of this rank, for the next reconfigure
  std::atomic<std::uint64_t> last_work_{0};
  std::mutex progress_;  // held while the backend makes progress
  bool closed_ = false;  // with progress_: the handle is gone

  mutable std::mutex mutex_;  // held for what follows; never while the backend or a hook is called
  CommOptions options_;
  std::map<std::uint64_t, Begun> works_;
  std::map<std::uint64_t, std::shared_ptr<const void>> window_owners_;  // by the backend's number
  std::optional<Error> cause_;
  bool backend_knows_ = false;              // of the cause
  bool closing_ = false;                    // no call begins
  bool stop_ = false;                       // the thread ends with the last work
  bool left_to_watcher_ = false;            // it closes the backend at its end
  Deadline next_look_ = Deadline::never();  // of the thread that watches
  std::condition_variable changed_;
  std::atomic<bool> ended_{false};  // cause_ is set
  std::atomic<bool> suspended_{false};
  std::thread watcher_;
};

}  // namespace headrace::collectives
