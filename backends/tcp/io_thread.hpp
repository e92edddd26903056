// SPDX-License-Identifier: Apache-2.0
// A thread that sleeps on its sockets and wakes the objects they belong to. The tcp backend's work that
// nobody else's thread does happens here.
#pragma once

#include "base/epoll.hpp"
#include "base/event_fd.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headrace::tcp {

/// Something that an I/O thread looks after. Its functions run on that thread, one at a time.
class Watched : public std::enable_shared_from_this<Watched> {
 public:
  static constexpr std::uint64_t never = UINT64_MAX;

  virtual ~Watched() = default;
  /// Its descriptor is ready: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP.
  virtual void on_ready(std::uint32_t events) = 0;
  /// Somebody kicked it.
  virtual void on_kick() {}
  /// What it waits for rings no bell: a look whether it has come.
  enum class Look : std::uint8_t {
    over,   ///< there is nothing to wait for
    idle,   ///< not yet
    moved,  ///< something had come, and there is more to wait for
  };
  virtual Look on_look() { return Look::over; }
  /// The time has come, or may have. Returns when to call again.
  virtual std::uint64_t on_time(std::uint64_t now_ns) = 0;
  /// What on_time would return now, if that is later than what it returned last and cheap to know.
  [[nodiscard]] virtual std::uint64_t due_ns() const { return 0; }
  /// The thread has stopped for good. What the object holds of others that hold it must go.
  virtual void on_stop() {}

 private:
  friend class IoThread;
  std::uint64_t key_ = 0;           // in the thread's table; 0: not watched
  std::uint64_t timer_ns_ = never;  // its entry in the thread's timers; of the thread alone
  std::atomic<bool> kicked_{false};
  std::atomic<bool> looked_after_{false};
};

class IoThread {
 public:
  using Now = std::function<std::uint64_t()>;

  /// `now` is the clock for on_time, as fast as the system's; the thread spins for `spin` after its last work
  /// before it sleeps.
  static Result<std::unique_ptr<IoThread>> open(unsigned number, Now now, std::chrono::nanoseconds spin);
  ~IoThread();
  /// Joins the thread and lets go of what it watched and of functions that did not run.
  void stop();

  // From any thread.

  /// Looks after `object` from now on: on_time comes soon. `fd` -1: time alone.
  Result<void> watch(const std::shared_ptr<Watched>& object, int fd, std::uint32_t events);
  /// What to listen for. Level-triggered.
  Result<void> change(const Watched& object, int fd, std::uint32_t events);
  /// Listens for nothing on the descriptor any more; on_time goes on.
  void deafen(int fd) { (void)epoll_.remove(fd); }
  /// Stops; a call that is under way on the thread may still be running. Before the descriptor is closed.
  void forget(Watched& object, int fd);
  /// Calls object's on_kick soon; several kicks before that count as one.
  void kick(const std::shared_ptr<Watched>& object);
  /// Calls object's on_look again and again, until that says that it is over.
  void look_after(const std::shared_ptr<Watched>& object);
  /// Calls object's on_time soon.
  void hurry(const std::shared_ptr<Watched>& object);
  /// Runs `function` on the thread.
  void run(std::function<void()> function);
  /// When the thread last woke, by `now`.
  [[nodiscard]] std::uint64_t woke_ns() const { return woke_ns_.load(std::memory_order_relaxed); }

 private:
  IoThread(Epoll epoll, EventFd bell, Now now, std::chrono::nanoseconds spin)
      : epoll_(std::move(epoll)),
        bell_(std::move(bell)),
        now_(std::move(now)),
        spin_ns_(static_cast<std::uint64_t>(spin.count())) {}

  void loop();
  void set_timer(Watched& object, std::uint64_t at_ns);
  [[nodiscard]] Deadline next_deadline();
  bool do_queued();
  bool do_looks();
  std::size_t do_ready(Deadline deadline);
  void do_timers();
  void ring();
  std::shared_ptr<Watched> find(std::uint64_t key);

  Epoll epoll_;
  EventFd bell_;
  const Now now_;
  const std::uint64_t spin_ns_;
  std::mutex mutex_;  // of the five below; never held while something of others is called
  std::unordered_map<std::uint64_t, std::shared_ptr<Watched>> table_;
  std::vector<std::shared_ptr<Watched>> kicked_;
  std::vector<std::function<void()>> functions_;
  std::vector<std::shared_ptr<Watched>> looking_;
  std::vector<std::shared_ptr<Watched>> hurried_;
  std::uint64_t next_key_ = 1;
  std::atomic<bool> queued_{false};  // something is in kicked_, functions_ or hurried_
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> woke_ns_{0};
  std::atomic<bool> looks_{false};                            // something is in looking_
  std::set<std::pair<std::uint64_t, std::uint64_t>> timers_;  // when, whose key; of the thread alone
  std::thread thread_;
};

}  // namespace headrace::tcp
