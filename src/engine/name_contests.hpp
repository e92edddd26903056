// SPDX-License-Identifier: Apache-2.0
// Two agents of one name: which of them is the peer.
//
// A peer that has restarted comes with another incarnation, and so does a stranger that only claims the name.
// So a life whose link is ready is asked first. If it answers it stays, and the newcomer's links are closed.
// If it is silent, or its last link is lost, the newcomer takes the name. Until then the newcomer's links
// carry what they carry, but what it says to our caller waits.
#pragma once

#include "base/log.hpp"
#include "engine/links.hpp"
#include "engine/progress.hpp"
#include "telemetry/telemetry.hpp"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace headrace::engine {

class NameContests {
 public:
  /// How long a life may take to answer. An agent that is alive answers within milliseconds.
  static constexpr std::chrono::nanoseconds patience = std::chrono::seconds(2);
  static constexpr std::size_t most = 64;                               ///< contests at a time
  static constexpr std::size_t most_held_messages = 1024;               ///< of one newcomer
  static constexpr std::size_t most_held_bytes = std::size_t{4} << 20;  ///< of one newcomer

  struct Outcome {
    std::shared_ptr<PeerLife> holder;
    std::shared_ptr<PeerLife> newcomer;  ///< null: it has not connected
    bool holder_stays = false;
  };
  NameContests(Progress& progress, std::function<void(const Outcome&)> decided)
      : progress_(progress), decided_(std::move(decided)) {}

  /// The life of a newcomer with this incarnation, for its links; null: there are too many contests, or
  /// another newcomer is there already. Calls no backend.
  [[nodiscard]] std::shared_ptr<PeerLife> join(const std::shared_ptr<PeerLife>& holder,
                                               std::uint64_t incarnation);
  /// Asks the holder for the sake of a newcomer that has not connected. Calls no backend.
  void ask(const std::shared_ptr<PeerLife>& holder);
  /// Our caller has decided for this newcomer: its life, or null if there is none.
  [[nodiscard]] std::shared_ptr<PeerLife> take(std::string_view name, std::uint64_t incarnation);
  /// The holder has answered.
  void present(const PeerLife& holder, std::uint64_t sequence);

  /// `say` passes on what this life says: now, or once it has the name. False: it has said too much.
  [[nodiscard]] static bool say_or_hold(PeerLife& life, std::size_t bytes, std::function<void()> say);
  /// It has the name: what was held is said.
  static void release(PeerLife& life);

 private:
  struct Contest {
    std::shared_ptr<PeerLife> holder;
    std::shared_ptr<PeerLife> newcomer;
    std::uint64_t sequence = 0;
    std::uint64_t until_ns = 0;
    bool answered = false;
  };
  Contest* find_or_begin(const std::shared_ptr<PeerLife>& holder);
  void look(const std::string& name);

  Progress& progress_;
  const std::function<void(const Outcome&)> decided_;
  std::mutex mutex_;  ///< guards all below
  std::map<std::string, Contest, std::less<>> contests_;
  std::uint64_t next_sequence_ = 1;
};

}  // namespace headrace::engine
