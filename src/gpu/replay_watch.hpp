// SPDX-License-Identifier: Apache-2.0
// Tells how often a captured request has been replayed, as the replays end.
//
// A graph has no host part: its kernels count the replays in host memory. Threads that look for the ends of
// posts look there, too.
#pragma once

#include "gpu/graph_move.hpp"
#include "gpu/posts.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace headrace::gpu {

/// Any thread.
class ReplayWatch final : public Post, public std::enable_shared_from_this<ReplayWatch> {
 public:
  class Listener {
   public:
    /// Whether it takes replays now. A load or two.
    [[nodiscard]] virtual bool may_hear() const = 0;
    /// So many more have ended: their bytes can be read. One call at a time, no lock of the watch is held.
    virtual void replays_ended(std::uint32_t count) = 0;

   protected:
    ~Listener() = default;
  };

  /// `posts`, `gpu`, `move` and `listener` stay until `stop`.
  [[nodiscard]] static std::shared_ptr<ReplayWatch> start(Posts& posts, const WorkingGpu& gpu,
                                                          const GraphMove& move, Listener& listener);
  ReplayWatch(const ReplayWatch&) = delete;
  ReplayWatch& operator=(const ReplayWatch&) = delete;

  /// Tells the replays that have ended since the last call, whether or not the listener may hear. After it
  /// returns the listener is not called any more.
  void stop();

  // For Posts.

  [[nodiscard]] bool poll_done() const override { return untold() != 0 && listener_.may_hear(); }
  /// A fault ends the context, and with it the graph: the caller's next call of the driver says so.
  [[nodiscard]] bool ends_with_gpu() const override { return false; }
  [[nodiscard]] const WorkingGpu& gpu() const override { return gpu_; }
  [[nodiscard]] std::uint64_t look_until_ns() const override { return 0; }
  void ended(Result<void> outcome) override;

 private:
  ReplayWatch(Posts& posts, const WorkingGpu& gpu, const GraphMove& move, Listener& listener)
      : posts_(posts), gpu_(gpu), move_(move), listener_(listener) {}
  [[nodiscard]] std::uint32_t untold() const;
  void tell();

  Posts& posts_;
  const WorkingGpu& gpu_;
  const GraphMove& move_;
  Listener& listener_;
  std::atomic<std::uint64_t> told_{0};

  std::mutex mutex_;
  std::condition_variable quiet_;
  bool telling_ = false;
  bool stopped_ = false;
  std::shared_ptr<ReplayWatch> listed_;  // itself, while Posts may call it
};

}  // namespace headrace::gpu
