// SPDX-License-Identifier: Apache-2.0
// The reader's side of a lane: asks for the stretches of a part of a request and takes their bytes out of the
// ring.
#pragma once

#include "backends/shm/lane.hpp"
#include "backends/shm/transfer.hpp"

#include <array>
#include <cstdint>
#include <memory>

namespace headrace::shm {

/// How a part went. Not complete and no outcome that failed: from `reached` on the caller takes another way.
struct RelayEnd {
  Outcome outcome;
  bool complete = false;
  PagePosition reached;
  std::uint32_t refused_region = 0;  ///< which one the owner does not let anybody read so; 0: none
};

/// How long a reader waits before it takes another way.
struct RelayLimits {
  std::uint64_t answer_ns = 2'000'000;  ///< until a thread of the owner has come
  std::uint64_t stall_ns = 20'000'000;  ///< between two pieces: the owner is stopped, or its cores are taken
};

/// One thread at a time.
class RelayReader {
 public:
  /// How the lane is after a part.
  enum class State : std::uint8_t {
    good,
    unanswered,  ///< nobody came to serve; the lane may be used again later
    spoiled,     ///< bytes are on their way that nobody waits for: drop it
  };

  explicit RelayReader(std::unique_ptr<LaneMemory> lane, RelayLimits limits = {})
      : lane_(std::move(lane)), limits_(limits) {}
  /// Tells a server that may still be there.
  ~RelayReader() { lane_->words().dropped.store(1, std::memory_order_release); }
  RelayReader(const RelayReader&) = delete;
  RelayReader& operator=(const RelayReader&) = delete;

  /// Reads [from, to). `call()` makes the owner send a thread to the lane. No region of the part is mapped
  /// here.
  template <class Call>
  [[nodiscard]] RelayEnd read(const Transfer& transfer, PagePosition from, PagePosition to,
                              const Call& call) {
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
    std::array<PageRun, lane_stretches / 2> runs;
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
  [[nodiscard]] RelayEnd stopped(PagePosition reached);

  const std::unique_ptr<LaneMemory> lane_;
  const RelayLimits limits_;
  std::uint64_t asked_ = 0;
  std::uint64_t consumed_ = 0;
  std::uint64_t published_ = 0;  // of consumed_
  std::uint64_t given_ = 0;      // when we last looked, and we look only when that is consumed
  State state_ = State::good;

  // Of the part that is being read.
  const Transfer* transfer_ = nullptr;
  Outcome outcome_;
  Patience patience_;
  std::uint32_t looks_ = 0;
  std::array<Group, 2> groups_;  // what is read, and what is asked for meanwhile
};

}  // namespace headrace::shm
