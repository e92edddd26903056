// SPDX-License-Identifier: Apache-2.0
// The ranks of a communicator as this one reaches them: its own box, and the lanes to and from each other
// rank.
#pragma once

#include "base/clock.hpp"
#include "collectives/assembly.hpp"
#include "collectives/far_lane.hpp"
#include "collectives/lane.hpp"
#include "collectives/settings.hpp"
#include "collectives/station.hpp"
#include "wire/comm_cards.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headrace::collectives {

using wire::RankCard;

class Members {
 public:
  /// Allocates this rank's box.
  static Result<std::unique_ptr<Members>> open(std::shared_ptr<Station> station, int rank, int size,
                                               const std::string& box_name, const Settings& settings);
  ~Members();
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  /// What the other ranks need to know of this one.
  [[nodiscard]] Result<std::string> card() const;
  /// Takes the cards of all ranks, which may be reached from now on.
  ///   errors  invalid_argument (a rank has another hint)
  [[nodiscard]] Result<void> meet(const std::vector<std::string>& cards);
  /// Connects to a rank, unless it is done.
  ///   errors  timed_out (try again), peer_lost, and others of Agent::map
  [[nodiscard]] Result<void> reach(int peer, Deadline deadline);
  [[nodiscard]] Result<void> reach_all(Deadline deadline);
  [[nodiscard]] bool lazy() const { return lazy_; }
  [[nodiscard]] bool is_reached(int peer) const {
    return peer == rank_ ||
           peers_[static_cast<std::size_t>(peer)].tie.load(std::memory_order_acquire) == Tie::whole;
  }
  /// Connects to the ranks that have connected to this one. What one sent that is gone by then can be read.
  void reach_callers();

  /// The agent of a rank, once met.
  [[nodiscard]] const Seat& seat(int rank) const { return peers_[static_cast<std::size_t>(rank)].seat; }
  /// The same on all ranks, once met, and on no other communicator.
  [[nodiscard]] std::uint64_t id() const { return id_; }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] const std::shared_ptr<Station>& station() const { return station_; }
  [[nodiscard]] const std::string& box_name() const { return box_name_; }

  // Each lane is used by one thread at a time, once the rank is reached.
  [[nodiscard]] LaneWriter& writer(int peer, LaneKind kind) { return at(peer).writers[index(kind)]; }
  [[nodiscard]] LaneReader& reader(int peer, LaneKind kind) { return at(peer).readers[index(kind)]; }
  /// Whether a rank can be read: it is reached, or has sent and is gone.
  [[nodiscard]] bool has_reader(int peer) const {
    return peers_[static_cast<std::size_t>(peer)].tie.load(std::memory_order_acquire) != Tie::none;
  }
  /// Whether a rank is on another host.
  [[nodiscard]] bool any_far();
  /// Goes on with what far ranks could not be told before.
  void tell_far(LaneKind kind);

  /// Tells far ranks, once all has left for them, that nothing comes after it. Whether all have it: only then
  /// may their link end, because a link that ends may lose what was not read.
  [[nodiscard]] bool far_ranks_have_all();

  /// Whether a rank is still there. Its last lines may have come before it went.
  [[nodiscard]] bool alive(int peer);
  /// Whether another rank has ended the communicator, and why.
  [[nodiscard]] bool ended() const { return box_.ended().load(std::memory_order_acquire) != 0; }
  [[nodiscard]] Error first_farewell() const { return box_.first_farewell(); }
  /// Where the threads of this rank sleep.
  [[nodiscard]] Bell bell() const { return box_.bell(); }
  /// The same of another rank; none if its box is not mapped.
  [[nodiscard]] Bell bell_of(int rank) { return rank == rank_ ? bell() : at(rank).bell(); }
  void say_farewell(Code code, std::string_view text);
  /// Whether all ranks had come to open the communicator, as this one or another one has seen.
  [[nodiscard]] bool is_open() const { return open_.load(std::memory_order_acquire) || box_.was_open(); }
  void set_open() { open_.store(true, std::memory_order_release); }
  /// Tells the other ranks that this one is gone. Memory stays mapped until the object goes.
  void leave();

 private:
  enum class Tie : std::uint8_t {
    none,   // not reached yet
    whole,  // lanes both ways
    lost,   // what it sent may be read
  };
  struct Peer {
    Seat seat;
    std::uint64_t mailbox = 0;
    RegionId box_id;
    std::mutex reaching;              // held while a thread connects
    std::atomic<Tie> tie{Tie::none};  // what follows is there before it is set
    std::array<LaneWriter, lane_kinds> writers;
    std::array<LaneReader, lane_kinds> readers;
    std::optional<Mapping> mapping;
    Box box;                       // of a mapped rank
    std::unique_ptr<FarPeer> far;  // of another one
    std::atomic<FarPeer*> listener{nullptr};

    [[nodiscard]] Bell bell() const { return mapping ? box.bell() : Bell(); }
  };
  Members(std::shared_ptr<Station> station, int rank, int size, std::string box_name,
          const Settings& settings);
  /// Refuses a rank whose hints are others.
  [[nodiscard]] Result<void> compare(int peer, const RankCard& card) const;
  Result<void> connect_to(int peer, Deadline deadline);
  void make_lanes(Peer& to, int peer);
  [[nodiscard]] std::uint32_t who() const { return is_open() ? Farewell::by_open : Farewell::by_opening; }
  /// Tells a rank that it is reached, and hears from it whether it has ended the communicator before.
  Result<void> greet(Peer& to, int peer);
  void send_mail(int peer, MailHead head, std::string_view body);
  void take_mail(std::string_view mail);
  /// Whether every byte has left for far ranks.
  [[nodiscard]] bool settled(LaneKind kind);
  /// Calls `each` with every far rank that is reached.
  template <class Each>
  void for_far(const Each& each) {
    for (Peer& peer : peers_)
      if (peer.tie.load(std::memory_order_acquire) == Tie::whole && peer.far) each(peer);
  }
  [[nodiscard]] Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  static std::size_t index(LaneKind kind) { return static_cast<std::size_t>(kind); }

  const std::shared_ptr<Station> station_;
  const int rank_, size_;
  const std::string box_name_;
  const bool check_, lazy_;  // the hints
  const std::uint64_t mailbox_;
  std::uint64_t id_ = 0;
  Region region_;
  std::shared_ptr<std::byte> memory_;  // stays in place while threads may look at it
  Box box_;
  std::deque<Peer> peers_;
  std::atomic<bool> left_{false};
  std::atomic<bool> open_{false};
};

}  // namespace headrace::collectives
