// SPDX-License-Identifier: Apache-2.0
// One phase of a collective: bytes to some ranks, and bytes from some, moved part by part without waiting for
// one of them while another can move. Algorithms are sequences of phases.
#pragma once

#include "base/waiter.hpp"
#include "collectives/members.hpp"
#include "collectives/reduction.hpp"
#include "collectives/work_state.hpp"

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

namespace headrace::collectives {

class Exchange;

/// What an exchange asks while it waits.
class Watch {
 public:
  virtual ~Watch() = default;
  /// Makes progress with other things. An error: the exchange ends with it.
  virtual Result<void> look(const Call& call, const Exchange& waiting) = 0;
};

/// The collectives of one communicator as its thread runs them, one at a time.
class Exchange {
 public:
  Exchange(Members& members, Watch& watch, std::uint32_t spins);

  /// Begins an operation. Ranks that are in different ones find out by `tag`.
  void begin(const Call& call, std::uint32_t tag, std::size_t chunk_bytes);
  [[nodiscard]] int rank() const { return members_.rank(); }
  [[nodiscard]] int size() const { return members_.size(); }
  /// One of the ranks that the phase waits for; -1: none.
  [[nodiscard]] int awaited() const;
  /// All of them, in order.
  [[nodiscard]] std::vector<int> all_awaited() const;
  /// The operation has its limit once more, from now on, and `longer`.
  void restart_limit(std::chrono::nanoseconds longer);

  /// Whether a rank is on another host.
  [[nodiscard]] bool any_far() const { return members_.any_far(); }

  // A phase is put together, then run. To and from each rank there is one part at most; empty parts move
  // nothing.
  void send(int to, const void* data, std::size_t bytes);
  void receive(int from, void* data, std::size_t bytes);
  /// Receives `count` elements from every other rank and reduces them with `own` in the order of ranks.
  /// `own` may be `output`, and may be sent in the same phase.
  void reduce(const void* own, void* output, std::size_t count, const Reduction& reduction);
  ///   errors  invalid_argument (a rank is in another operation, or sends another number of bytes), and those
  ///           of the watch
  [[nodiscard]] Result<void> run();

 private:
  struct Outgoing {
    int to;
    const std::byte* data;
    std::size_t bytes, done;
  };
  struct Incoming {
    int from;
    std::byte* data;
    std::size_t bytes, done;
  };
  struct Reducing {
    const std::byte* own = nullptr;
    std::byte* output = nullptr;
    std::size_t bytes = 0, done = 0;
    Reduction reduction;
  };
  bool push(Outgoing& part);
  Result<bool> pull(Incoming& part);
  Result<bool> reduce_some();
  [[nodiscard]] std::size_t sent_everywhere() const;
  [[nodiscard]] Result<void> check(const Front& front, int from, std::size_t bytes) const;

  Members& members_;
  Watch& watch_;
  Waiter waiter_;
  Call call_;
  std::uint32_t tag_ = 0;
  std::size_t chunk_bytes_ = 0;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  Reducing reducing_;
  std::vector<const std::byte*> sources_;  // of a reduction, by rank
  int reduction_awaits_ = -1;
};

}  // namespace headrace::collectives
