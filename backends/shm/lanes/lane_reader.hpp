// SPDX-License-Identifier: Apache-2.0
// The reader's side of a lane: asks for the runs of a range of pages, and takes their bytes out of the ring.
#pragma once

#include "backends/shm/lanes/lane.hpp"
#include "backends/shm/lanes/patience.hpp"
#include "backends/shm/transfer.hpp"

#include <array>
#include <cstdint>
#include <memory>

namespace headrace::shm {

/// How a read ended. If it is not complete and its outcome is good, the caller reads from `reached` on by
/// attach.
struct LaneEnd {
  Outcome outcome;
  bool complete = false;
  PagePosition reached;
  std::uint32_t refused_region = 0;  ///< the region that its owner does not serve through lanes; 0: none
};

/// How long a reader waits before it gives the lane up.
struct LaneLimits {
  std::uint64_t answer_ns = 2'000'000;  ///< until a thread of the owner serves the lane
  std::uint64_t stall_ns = 20'000'000;  ///< for the next bytes: the owner is stopped, or its cores are taken
};

/// One thread at a time.
class LaneReader {
 public:
  /// The lane after a read.
  enum class State : std::uint8_t {
    good,
    unanswered,  ///< no thread of the owner served it in time; it may be used again later
    spoiled,     ///< the owner may still fill its ring: drop it
  };

  explicit LaneReader(std::unique_ptr<LaneMemory> lane, LaneLimits limits = {})
      : lane_(std::move(lane)), limits_(limits) {}
  /// Tells a server that may still serve the lane.
  ~LaneReader() { lane_->words().dropped.store(1, std::memory_order_release); }
  LaneReader(const LaneReader&) = delete;
  LaneReader& operator=(const LaneReader&) = delete;

  /// Reads [from, to), of which no region is mapped in this process. `call()` asks the owner for a server.
  template <class Call>
  [[nodiscard]] LaneEnd read(const Transfer& transfer, PagePosition from, PagePosition to, const Call& call) {
    begin(transfer);
    PageCursor cursor(*transfer.request, from, to);
    for (Group& group : groups_)
      if (!ask(group, cursor, call)) return stopped(from);
    for (std::size_t front = 0; groups_[front].count > 0; front = 1 - front) {
      Group& group = groups_[front];
      for (std::size_t i = 0; i < group.count; ++i)
        if (!take(group.runs[i], call)) return stopped(position_of(group.runs[i]));
      const PagePosition first = position_of(group.runs[0]);
      if (!check(group) || !ask(group, cursor, call)) return stopped(first);
    }
    return {.outcome = {}, .complete = true, .reached = to, .refused_region = 0};
  }

  [[nodiscard]] State state() const { return state_; }

 private:
  struct Group {
    std::array<PageRun, lane_runs / 2> runs;
    std::size_t count = 0;
  };

  [[nodiscard]] static PagePosition position_of(const PageRun& run) {
    return {run.first_page, run.first_page_skip};
  }
  void begin(const Transfer& transfer);
  template <class Call>
  [[nodiscard]] bool ask(Group& group, PageCursor& cursor, const Call& call) {
    group.count = cursor.fill(group.runs);
    if (group.count == 0) return true;
    if (!check(group)) return false;
    publish_asked(group);
    if (needs_call()) call();
    return true;
  }
  template <class Call>
  [[nodiscard]] bool take(const PageRun& run, const Call& call) {
    for (std::uint64_t done = 0; done < run.bytes;) {
      const std::uint64_t there = available();
      if (there != 0) {
        done += copy(run, done, there);
      } else {
        if (needs_call()) call();
        if (!keep_waiting()) return false;
      }
    }
    return true;
  }

  [[nodiscard]] bool check(const Group& group);
  void publish_asked(const Group& group);
  [[nodiscard]] bool needs_call();
  [[nodiscard]] std::uint64_t available();
  std::uint64_t copy(const PageRun& run, std::uint64_t done, std::uint64_t there);
  void publish_consumed();
  [[nodiscard]] bool keep_waiting();
  [[nodiscard]] LaneEnd stopped(PagePosition reached);

  const std::unique_ptr<LaneMemory> lane_;
  const LaneLimits limits_;
  std::uint64_t asked_ = 0;
  std::uint64_t consumed_ = 0;
  std::uint64_t published_ = 0;  // of consumed_
  std::uint64_t given_ = 0;      // read again only when all of it is consumed
  State state_ = State::good;

  // Of the current read.
  const Transfer* transfer_ = nullptr;
  Outcome outcome_;
  Patience patience_;
  std::uint32_t looks_ = 0;
  std::array<Group, 2> groups_;  // the runs that are read, and those that are asked for meanwhile
};

}  // namespace headrace::shm
