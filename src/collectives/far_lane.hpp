// SPDX-License-Identifier: Apache-2.0
// Lanes to a rank whose memory cannot be mapped: on another host. The same lines and bytes, carried by writes
// of the agent; the notification of a write is the line, and puts it into the reader's box once the bytes are
// there.
#pragma once

#include "collectives/lane.hpp"
#include "collectives/station.hpp"

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string>

namespace headrace::collectives {

enum class MailKind : std::uint32_t {
  line = 0,
  taken = 1,
  farewell = 2,
  all_came = 3,
  leaving = 4,
  all_here = 5,
  reached = 6
};

/// What follows the mailbox in a notification.
struct MailHead {
  MailKind kind;
  LaneKind lane;
  std::uint32_t from;  // rank
  std::uint32_t unused;
  std::uint64_t lines;  // number of the line, or lines taken; code of a farewell
  std::uint64_t bytes;  // bytes taken; who says a farewell
};

/// Where a far rank is.
struct FarAddress {
  std::string agent;
  std::uint64_t mailbox = 0;
  RegionId box;
  int my_rank = 0;
};

/// Where mail of this rank to itself goes.
struct OwnAddress {
  std::string agent;
  std::uint64_t mailbox = 0;
  int peer = 0;  ///< the far rank that it is about
};

/// The notification that carries `body`.
[[nodiscard]] std::string mail(const FarAddress& to, MailHead head, std::string_view body);

/// One lane there and the positions of its counterpart here. Used by one thread at a time.
class PostedLane final : public FarLane {
 public:
  PostedLane(std::shared_ptr<Station> station, FarAddress to, LaneKind kind, RegionId copy_region,
             std::size_t copy_at, std::size_t there_at)
      : station_(std::move(station)),
        to_(std::move(to)),
        kind_(kind),
        copy_region_(copy_region),
        copy_at_(copy_at),
        there_at_(there_at) {}

  bool send(const Line& line, std::uint64_t number, std::size_t bytes_at) override;
  bool tell_taken(std::uint64_t lines, std::uint64_t bytes) override;
  /// Forgets writes that have ended. Whether all have.
  bool settled();
  /// Whether a write or a notification has failed: the way there is lost.
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_relaxed); }

 private:
  bool accepted(const Result<void>& result);

  const std::shared_ptr<Station> station_;
  const FarAddress to_;
  const LaneKind kind_;
  const RegionId copy_region_;
  const std::size_t copy_at_, there_at_;  // of the ring of bytes, in the two regions
  std::deque<Request> writes_;            // dropping one would cancel it
  std::atomic<bool> failed_{false};
};

/// A far rank: our copy of our lanes in its box, from which they are filled.
class FarPeer {
 public:
  ///   errors  those of Agent::allocate
  static Result<std::unique_ptr<FarPeer>> open(const std::shared_ptr<Station>& station, FarAddress address,
                                               OwnAddress own, const BoxLayout& layout);
  ~FarPeer();
  FarPeer(const FarPeer&) = delete;
  FarPeer& operator=(const FarPeer&) = delete;

  [[nodiscard]] LaneMemory copy(LaneKind kind) const { return copy_.lane(0, kind); }
  [[nodiscard]] PostedLane& lane(LaneKind kind) { return *lanes_[static_cast<std::size_t>(kind)]; }
  void say_farewell(Code code, std::string_view text, std::uint32_t who);
  /// What the far rank says it has taken.
  void taken(LaneKind kind, std::uint64_t lines, std::uint64_t bytes) const;
  /// Whether it has not left, and the agent still reaches it, or its last lines are on their way into the
  /// box.
  [[nodiscard]] bool alive();
  /// Tells it that this rank has connected to it. False: not now.
  bool say_reached() { return say(MailKind::reached); }
  /// Tells it, once, that nothing comes after what was sent. It answers when it has all.
  void say_leaving();
  /// The answer to its own.
  void answer_leaving();
  /// Whether it has all that was sent to it, or needs nothing because it leaves too, or is gone.
  [[nodiscard]] bool has_all() { return all_here_ || !alive(); }
  void all_here() { all_here_ = true; }
  /// Mail that was sent when the rank was gone has come: so all has that the rank sent.
  void all_came() { all_came_ = true; }

 private:
  FarPeer(std::shared_ptr<Station> station, FarAddress address, OwnAddress own);
  bool ask_for_all();
  bool say(MailKind kind);

  const std::shared_ptr<Station> station_;
  const FarAddress address_;
  const OwnAddress own_;
  Region region_;
  Box copy_;
  std::array<std::unique_ptr<PostedLane>, lane_kinds> lanes_;
  std::atomic<std::uint64_t> look_again_ns_{0};
  std::atomic<bool> lost_{false}, asked_{false}, all_came_{false}, told_{false}, all_here_{false},
      leaves_{false};
};

}  // namespace headrace::collectives
