// SPDX-License-Identifier: Apache-2.0
// What the parts of one backend instance share: the host, the settings, who we are, and what wakes the
// progress thread.
#pragma once

#include "backends/shm/live_table.hpp"
#include "backends/shm/peer_process.hpp"
#include "backends/shm/settings.hpp"
#include "base/epoll.hpp"
#include "base/event_fd.hpp"

#include <headrace/plugin/backend.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace headrace::shm {

class Registry;
class Request;

/// Counts the tasks that lie with the host's pool, so that the instance outlives them.
class TaskGate {
 public:
  void enter() {
    const std::lock_guard lock(mutex_);
    ++running_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) none_.notify_all();  // under the lock: the waiter may free us as soon as it has it
  }
  void wait_for_none() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [&] { return running_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::size_t running_ = 0;
};

/// What an event of the epoll set is about: (serial of the link, 0 for the instance; which of its
/// descriptors).
enum class Watched : std::uint8_t { socket = 0, bell = 1, process = 2 };
inline std::uint64_t watch_key(std::uint32_t serial, Watched what) {
  return (std::uint64_t{serial} << 2) | static_cast<std::uint64_t>(what);
}

struct Instance {
  Instance(plugin::Host its_host, Settings its_settings, Epoll its_epoll, EventFd its_bell);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  plugin::Host host;
  Settings settings;
  std::string name;
  std::uint64_t incarnation = 0;
  std::string runtime_dir;
  std::uint32_t helpers = 1;                   ///< pool threads for one request
  std::unique_ptr<const std::uint64_t> nonce;  ///< at an address that peers are told
  std::unique_ptr<LiveTable> live;
  Epoll epoll;
  EventFd bell;
  std::unique_ptr<Registry> registry;
  TaskGate tasks;

  // Requests that the pool's queue had no room for; progress takes care of them.
  std::mutex stranded_mutex;
  std::vector<Request*> stranded;
  std::atomic<bool> has_stranded{false};

  /// Brings the progress thread back from its sleep.
  void wake() const { bell.signal(); }
  [[nodiscard]] Nonce own_nonce() const { return {reinterpret_cast<std::uintptr_t>(nonce.get()), *nonce}; }
};

}  // namespace headrace::shm
