// SPDX-License-Identifier: Apache-2.0
// Sends and receives of a communicator: state machines that any waiting thread drives. None waits for
// another, so two ranks that both send first, or both receive first, do not block each other.
#pragma once

#include "collectives/members.hpp"
#include "collectives/work_state.hpp"

#include <atomic>
#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace headrace::collectives {

class Messages {
 public:
  using State = std::shared_ptr<Work::State>;
  Messages(Members& members, const Settings& settings);

  /// `async`: no thread waits for it in the call, so the worker must drive it.
  void send(const State& work, bool async, int to, std::uint32_t tag, const std::byte* data,
            std::size_t bytes);
  void receive(const State& work, bool async, int from, std::uint32_t tag, std::byte* data,
               std::size_t bytes);

  /// Moves what can move now. Another thread that is at it is enough.
  bool progress();
  /// Whether something is under way, or something asynchronous is.
  [[nodiscard]] bool pending() const { return pending_.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] bool async_pending() const { return async_pending_.load(std::memory_order_relaxed) != 0; }

  /// An operation that cannot go on, and whether bytes of it have moved.
  struct Stuck {
    State work;
    Error error;
    bool begun = false;
  };
  /// Operations that are late, or whose rank is gone. They stay.
  [[nodiscard]] std::vector<Stuck> stuck();
  /// Ends one that has not begun with an error. False: it has begun, or has ended.
  bool drop(const State& work, const Error& error);
  /// Ends all with this error.
  void end_all(const Error& error);
  void set_limits(const Settings& settings);

 private:
  struct Send {
    State work;
    bool async;
    std::uint32_t tag;
    const std::byte* data;
    std::size_t bytes, done = 0;
    bool begun = false;
  };
  struct Receive {
    State work;
    bool async = false;
    int from = any_source;
    std::uint32_t tag = 0;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    [[nodiscard]] bool fits(int source, std::uint32_t with) const {
      return (from == any_source || from == source) && tag == with;
    }
  };
  /// A message that has come before its receive, or whose receive came while it arrived.
  struct Kept {
    int from;
    std::uint32_t tag;
    std::vector<std::byte> bytes;
    std::size_t done = 0;
    Receive claimed;  // work: null if nobody has asked for it
  };
  /// The message at the front of a rank's lane.
  struct Arriving {
    bool active = false;
    std::size_t bytes = 0, done = 0;
    Receive receive;        // straight into the caller's memory
    Kept* kept = nullptr;   // or to be kept
    bool unwanted = false;  // or of another length than its receive: read and forgotten
  };

  /// What a receive in vain adds to its error: "; ...", the tags of messages that nobody has asked for.
  [[nodiscard]] std::string other_tags(const Receive& receive) const;
  bool push(int to);
  bool pull(int from);
  bool begin(int from, const Front& front);
  void finish(int from);
  void deliver(Kept& kept, const Receive& receive);
  void end(const Receive& receive, int from, Result<void> result);
  [[nodiscard]] Arriving& arriving(int rank) { return arriving_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::deque<Send>& sends(int rank) { return sends_[static_cast<std::size_t>(rank)]; }

  Members& members_;
  std::mutex mutex_;
  std::size_t chunk_bytes_, kept_limit_;
  std::size_t kept_bytes_ = 0;
  std::vector<std::deque<Send>> sends_;  // by rank, in order
  std::list<Receive> receives_;          // in order
  std::list<Kept> kept_;                 // in order of arrival
  std::vector<Arriving> arriving_;       // by rank
  std::atomic<std::size_t> pending_{0}, async_pending_{0};
};

}  // namespace headrace::collectives
