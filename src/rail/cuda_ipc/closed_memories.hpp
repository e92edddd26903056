// SPDX-License-Identifier: Apache-2.0
// Memories of a peer's GPUs that are open here no more: the thread that closed the last mapping of one tells
// the stream, which tells the peer.
#pragma once

#include "base/event_fd.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace::rail::cuda_ipc {

///   threads  any
class ClosedMemories : public std::enable_shared_from_this<ClosedMemories> {
 public:
  explicit ClosedMemories(EventFd bell) : bell_(std::move(bell)) {}

  /// Each user that may have the memory open holds it. When the last one lets go, `take` has its number.
  [[nodiscard]] std::shared_ptr<const void> hold(std::uint32_t memory) {
    return std::make_shared<const Hold>(shared_from_this(), memory);
  }
  /// Readable when `take` has some.
  [[nodiscard]] int descriptor() const { return bell_.fd(); }
  [[nodiscard]] std::vector<std::uint32_t> take() {
    static_cast<void>(bell_.drain());
    const std::lock_guard lock(mutex_);
    return std::exchange(closed_, {});
  }

 private:
  class Hold {
   public:
    Hold(std::shared_ptr<ClosedMemories> closed, std::uint32_t memory)
        : closed_(std::move(closed)), memory_(memory) {}
    ~Hold() { closed_->add(memory_); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    const std::shared_ptr<ClosedMemories> closed_;
    const std::uint32_t memory_;
  };
  void add(std::uint32_t memory) {
    {
      const std::lock_guard lock(mutex_);
      closed_.push_back(memory);
    }
    bell_.signal();
  }

  const EventFd bell_;
  std::mutex mutex_;
  std::vector<std::uint32_t> closed_;
};

}  // namespace headrace::rail::cuda_ipc
