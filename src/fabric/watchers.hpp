// SPDX-License-Identifier: Apache-2.0
// Words that kernels change, and the functions that are told of it.
#pragma once

#include "base/fork_guard.hpp"
#include "fabric/callbacks.hpp"
#include "fabric/host_block.hpp"
#include "fabric/polled_memory.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace::fabric {

class HeldWatcher;
class Watchers;

/// Told of the values of a word and of the value before: before and now.
using Changed = std::function<bool(std::uint64_t, std::uint64_t)>;

/// One word. Thread-safe.
class Watcher : public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(std::shared_ptr<Callbacks> callbacks, Changed changed)
      : callbacks_(std::move(callbacks)), changed_(std::make_shared<const Changed>(std::move(changed))) {}

  /// Of the worker: queues a call, if none is queued. Values between two calls are not told.
  void set(std::uint64_t now);
  /// No call begins any more.
  void stop();
  [[nodiscard]] bool active() const { return active_.load(std::memory_order_acquire); }

 private:
  void tell();

  const std::shared_ptr<Callbacks> callbacks_;
  std::atomic<bool> active_ = true;
  std::mutex mutex_;
  std::shared_ptr<const Changed> changed_;  // null: it has ended
  std::uint64_t now_ = 0;
  std::uint64_t told_ = 0;
  bool telling_ = false;
};

/// The words of one worker in one block of memory. A word is one watcher's until its function has declined,
/// or it was stopped, and its handles have gone.
class Watchers final : public PolledMemory, public std::enable_shared_from_this<Watchers> {
 public:
  static constexpr std::size_t most = 4096;

  /// device: null: plain memory.
  ///   errors  exhausted
  static Result<std::shared_ptr<Watchers>> make(const std::shared_ptr<const gpu::Device>& device,
                                                std::shared_ptr<Callbacks> callbacks,
                                                std::shared_ptr<const ForkGuard> fork);

  // From any thread.
  ///   errors  exhausted (all words are taken), invalid_argument (closed)
  Result<std::shared_ptr<const HeldWatcher>> add(Changed changed);

  // Of the worker.
  bool poll(Carrier& /*carrier*/) override { return poll(); }
  bool poll();
  void begin_close() override;
  [[nodiscard]] bool is_over() const override { return closed_; }

 private:
  friend class HeldWatcher;
  struct Slot {
    std::shared_ptr<Watcher> watcher;  // null: free
    bool held = false;                 // a handle is there
  };
  Watchers(HostBlock block, std::shared_ptr<Callbacks> callbacks, std::shared_ptr<const ForkGuard> fork)
      : block_(std::move(block)), callbacks_(std::move(callbacks)), fork_(std::move(fork)) {}
  [[nodiscard]] std::atomic_ref<std::uint64_t> word(std::size_t number) const {
    return std::atomic_ref(block_.word(number * sizeof(std::uint64_t)));
  }
  void let_go(std::size_t number);
  void free_unused();
  std::size_t take_slot();

  const HostBlock block_;
  const std::shared_ptr<Callbacks> callbacks_;
  const std::shared_ptr<const ForkGuard> fork_;

  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;
  std::array<std::uint64_t, most> seen_{};
  std::atomic<bool> closed_ = false;
};

/// What all handles of a watcher share.
class HeldWatcher {
 public:
  HeldWatcher(std::shared_ptr<Watchers> all, std::shared_ptr<Watcher> watcher, std::size_t number)
      : all_(std::move(all)), watcher_(std::move(watcher)), number_(number) {}
  ~HeldWatcher() {
    if (!all_->fork_->forked()) all_->let_go(number_);
  }
  HeldWatcher(const HeldWatcher&) = delete;
  HeldWatcher& operator=(const HeldWatcher&) = delete;
  [[nodiscard]] std::uint64_t address() const {
    return all_->block_.address() + number_ * sizeof(std::uint64_t);
  }
  [[nodiscard]] std::atomic_ref<std::uint64_t> word() const { return all_->word(number_); }
  void stop() const {
    if (!all_->fork_->forked()) watcher_->stop();
  }

 private:
  const std::shared_ptr<Watchers> all_;
  const std::shared_ptr<Watcher> watcher_;
  const std::size_t number_;
};

}  // namespace headrace::fabric
