// SPDX-License-Identifier: Apache-2.0
// Works that have been queued on streams of a GPU: other streams wait for them, and the host asks which have
// ended.
#pragma once

#include "gpu/event.hpp"

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace::gpu {

///   threads  any
class StreamWorks {
 public:
  /// One that has ended, or whose GPU has failed.
  struct Ended {
    std::uint64_t work;
    int note;  ///< of its caller
    Result<void> result;
  };

  /// Which works wait for one another.
  enum class Order {
    of_streams,  ///< those of one stream
    of_all,      ///< each for the one before: its stream has followed it by `follow_last`
  };

  StreamWorks(std::shared_ptr<const Device> device, Order order)
      : device_(std::move(device)), order_(order) {}

  /// Makes later work of a stream wait for what another one holds now.
  [[nodiscard]] Result<void> follow(cuda::Stream stream, cuda::Stream before);
  /// Makes later work of a stream wait for the work that was added last.
  [[nodiscard]] Result<void> follow_last(cuda::Stream stream);
  /// Adds a work that the stream holds.
  ///   errors  those of the driver: then nothing tells its end
  [[nodiscard]] Result<void> add(std::uint64_t work, int note, cuda::Stream stream);
  /// Makes later work of a stream wait for a work. One that has ended is nothing to wait for.
  [[nodiscard]] Result<void> wait_on(std::uint64_t work, cuda::Stream stream);
  /// Whether the oldest one has ended; false: there is none.
  [[nodiscard]] bool oldest_has_ended() const;
  /// Takes those that have ended, in their order. On one thread at a time, which alone takes.
  [[nodiscard]] std::vector<Ended> take_ended();
  /// Waits until no GPU runs any of them. Beside no other call.
  void wait_all();
  [[nodiscard]] bool any() const;

 private:
  struct Running {
    std::uint64_t work;
    int note;
    cuda::Stream stream;
    Event event;
  };
  [[nodiscard]] Result<Event> take_event();
  [[nodiscard]] std::vector<Ended> take_first_ended();
  [[nodiscard]] std::vector<Ended> take_all_ended();
  /// With the lock. Returns what comes behind it.
  std::list<Running>::iterator take(std::list<Running>::iterator running, Result<bool>& reached,
                                    std::vector<Ended>& ended);

  const std::shared_ptr<const Device> device_;
  const Order order_;
  mutable std::mutex mutex_;
  std::list<Running> running_;  // in the order in which they were added
  std::vector<Event> spare_;
};

}  // namespace headrace::gpu
