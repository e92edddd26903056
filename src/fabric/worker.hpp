// SPDX-License-Identifier: Apache-2.0
// The thread of one group: it takes tasks from any thread, drives the group's NICs, and sleeps when there is
// nothing to do.
#pragma once

#include <headrace/fabric.hpp>

#include "base/epoll.hpp"
#include "base/event_fd.hpp"
#include "fabric/carrier.hpp"
#include "fabric/polled_memory.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace headrace::fabric {

/// Thread-safe.
class Worker {
 public:
  using Task = std::function<void(Carrier&)>;
  struct Setup {
    std::string name;            ///< of the thread
    std::vector<unsigned> cpus;  ///< empty: any
    FabricSpin spin = FabricSpin::brief;
  };
  ///   errors  exhausted, and those of the system for the CPUs
  static Result<std::shared_ptr<Worker>> start(std::unique_ptr<Carrier> carrier, Setup setup);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Runs the task on the worker. False: it is closing.
  bool push(Task task);
  /// The same, and waits for it. False: it has not run; the worker has ended.
  bool run(const Task& task);

  /// Polls it in each turn; after an idle time t again within t/16, at most two milliseconds. False: it is
  /// closing.
  bool poll_memory(std::shared_ptr<PolledMemory> memory);

  /// May be called while it runs and after it, beside the worker.
  [[nodiscard]] Carrier& carrier() { return *carrier_; }

  /// Room for one more post, until `give_back`.
  bool take_room();
  /// The same, also if there is none: for posts whose number has a bound of its own.
  void take_own_room() { ++posts_; }
  void give_back() { --posts_; }

  /// Refuses tasks and asks the thread to end all.
  void begin_close();
  /// Until the thread has ended.
  void wait_closed();
  /// In a forked child there is no thread.
  void leak();

  /// How often it has slept: an idle one sleeps long.
  [[nodiscard]] std::uint64_t sleeps() const { return sleeps_; }

 private:
  Worker(std::unique_ptr<Carrier> carrier, Setup setup, Epoll epoll, EventFd bell);
  Result<void> watch_nics();
  void loop();
  bool take_tasks();
  bool poll_memories();
  bool may_end();
  void sleep();
  void wait_for_events(const Deadline& until);
  [[nodiscard]] Deadline sleep_until() const;

  const Setup setup_;
  const std::unique_ptr<Carrier> carrier_;
  Epoll epoll_;
  const EventFd bell_;
  bool polls_ = false;  // a NIC has no descriptor

  std::mutex mutex_;
  std::condition_variable ended_changed_;
  std::vector<Task> tasks_;
  bool sleeping_ = false;
  bool closing_ = false;
  bool ended_ = false;

  std::atomic<std::uint32_t> posts_ = 0;
  std::atomic<std::uint64_t> sleeps_ = 0;
  // Of the thread.
  std::vector<std::shared_ptr<PolledMemory>> polled_memories_;
  std::uint64_t busy_ns_ = 0;
  std::uint64_t close_by_ns_ = 0;  // 0 until it closes
  std::unique_ptr<std::thread> thread_;
};

}  // namespace headrace::fabric
