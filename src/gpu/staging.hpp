// SPDX-License-Identifier: Apache-2.0
// A bounded ring of pinned memory, through which host memory that may not be pinned itself is copied to and
// from GPUs.
//
// It is cut into lanes of two slots. Work runs on the host's pool, a lane to a thread, so that what is pinned
// and how many threads copy is bounded together; what finds no lane waits for one.
#pragma once

#include "gpu/pinned_memory.hpp"

#include <headrace/plugin/backend.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace::gpu {

/// Any thread.
class Staging {
 public:
  /// The memory of one thread that copies: while a GPU works on one slot the thread works on the other.
  class Lane {
   public:
    Lane(PinnedMemory memory, std::size_t slot_bytes) : memory_(std::move(memory)), slot_bytes_(slot_bytes) {}
    [[nodiscard]] std::byte* slot(std::size_t number) const {
      return memory_.bytes().data() + number * slot_bytes_;
    }
    /// Where GPUs see it.
    [[nodiscard]] cuda::Address address(std::size_t number) const {
      return memory_.address() + number * slot_bytes_;
    }

   private:
    PinnedMemory memory_;
    std::size_t slot_bytes_;
  };
  static constexpr std::size_t slots_a_lane = 2;

  /// What a thread does with a lane.
  class Work {
   public:
    virtual ~Work() = default;
    /// Whose GPU the lane is pinned for if it is new: all of the process reach it.
    [[nodiscard]] virtual const std::shared_ptr<const Device>& device() const = 0;
    virtual void run(const Lane& lane) = 0;
    /// In place of run: no lane could be pinned.
    virtual void refused(Error why) = 0;
  };

  /// `bytes` of pinned memory at most, once somebody needs it; 0: none.
  Staging(plugin::Host host, std::uint64_t bytes)
      : host_(host), slot_bytes_(bytes / (lanes * slots_a_lane)) {}
  /// Waits for all work.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  [[nodiscard]] bool enabled() const { return slot_bytes_ > 0; }
  [[nodiscard]] std::size_t slot_bytes() const { return slot_bytes_; }
  /// How many threads work at a time.
  [[nodiscard]] std::size_t width() const { return std::min<std::size_t>(lanes, host_.pool_threads()); }
  /// Runs the work once, soon. False: the host's pool takes no more, and it will not run.
  [[nodiscard]] bool submit(std::shared_ptr<Work> work);

 private:
  static constexpr std::size_t lanes = 8;
  struct Task {
    Staging& staging;
    std::shared_ptr<Work> work;

    static void run(Task* given) {
      const std::unique_ptr<Task> own(given);
      own->staging.run(std::move(own->work));
    }
  };
  void run(std::shared_ptr<Work> work);
  [[nodiscard]] Result<std::unique_ptr<Lane>> take_lane(const std::shared_ptr<const Device>& device);

  const plugin::Host host_;
  const std::size_t slot_bytes_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::size_t running_ = 0;
  std::vector<std::unique_ptr<Lane>> free_;
  std::deque<std::shared_ptr<Work>> waiting_;
};

}  // namespace headrace::gpu
