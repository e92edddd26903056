// SPDX-License-Identifier: Apache-2.0
// The posts that GPUs are working on. Whoever looks first at one that has ended tells it, once.
//
// A GPU rings no bell. While the host polls, ends are seen by looking at words in memory; while it sleeps, a
// thread of ours looks and rings.
#pragma once

#include "gpu/gpus.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace::gpu {

/// A post that a GPU works on, or that threads and a GPU do.
class Post {
 public:
  /// Whether nobody works on it any more. A load or two.
  [[nodiscard]] virtual bool poll_done() const = 0;
  /// Whether a failure of the GPU is its end: whoever else moves tells of failures by itself.
  [[nodiscard]] virtual bool ends_with_gpu() const = 0;
  [[nodiscard]] virtual const WorkingGpu& gpu() const = 0;
  /// When it is expected to have ended, by the clock and with some grace.
  [[nodiscard]] virtual std::uint64_t look_until_ns() const = 0;
  /// It has ended: by itself, or with a fault of the GPU. After this the post may be gone.
  virtual void ended(Result<void> outcome) = 0;

 protected:
  ~Post() = default;
};

/// Any thread.
class Posts {
 public:
  /// `ring` wakes the host from its sleep.
  explicit Posts(std::function<void()> ring) : ring_(std::move(ring)) {}
  ~Posts();
  Posts(const Posts&) = delete;
  Posts& operator=(const Posts&) = delete;

  /// A GPU has begun it.
  void add(Post& post);
  /// Takes it off the list. False: it is not there, for a thread is about to tell its end.
  bool remove(Post& post);
  /// Tells it its end if that has come. Returns whether it is worth while to ask again at once: while its end
  /// is expected sooner than a sleeping thread would hear of it.
  bool poll(Post& post);
  /// Tells all whose ends have come; returns how many.
  std::uint32_t progress();
  /// On: the bell is rung when an end comes. Returns how many have come already, and tells them.
  std::uint32_t arm(bool on);

 private:
  std::vector<Post*> take_ended();
  static std::uint32_t tell(const std::vector<Post*>& ended);
  std::uint32_t end_failed();
  [[nodiscard]] bool any_ended() const;
  void start_watching();
  void watch(const std::stop_token& stop);

  const std::function<void()> ring_;
  std::mutex mutex_;
  std::vector<Post*> in_flight_;
  std::atomic<bool> any_{false};  ///< false: in_flight_ is empty; read without the lock
  std::uint32_t idle_looks_ = 0;
  std::uint32_t looks_of_watcher_ = 0;  // since something was added or has ended
  bool armed_ = false;
  std::condition_variable_any changed_;
  std::jthread watcher_;  // from the first time that the host slept while a GPU worked
};

}  // namespace headrace::gpu
