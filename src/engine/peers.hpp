// SPDX-License-Identifier: Apache-2.0
// The peers of an agent: their present lives, and what their metadata says.
#pragma once

#include <headrace/agent.hpp>

#include "base/once_a_second.hpp"
#include "engine/backends.hpp"
#include "engine/call_gate.hpp"
#include "engine/links.hpp"
#include "engine/name_contests.hpp"
#include "engine/self.hpp"
#include "engine/take_metadata.hpp"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::engine {

/// What agents that our caller has not named can make us keep.
struct PeerLimits {
  std::size_t strangers = 4096;                     ///< option max_strangers
  std::size_t sent_bytes = std::size_t{256} << 20;  ///< of metadata that was sent; option metadata_bytes
};

class Peers {
 public:
  static constexpr std::size_t most_links = 64;  ///< to one life, over all backends

  Peers(const Self& self, CallGate& calls, const Backends& backends, Links& links, Progress& progress,
        Telemetry& telemetry, const Log& log, PeerLimits limits = {})
      : self_(self),
        calls_(calls),
        backends_(backends),
        links_(links),
        progress_(progress),
        telemetry_(telemetry),
        log_(log),
        limits_(limits),
        contests_(progress, [this](const NameContests::Outcome& outcome) { decided(outcome); }) {}
  /// Called when nothing of a peer is kept any more. Before the first peer.
  void on_gone(std::function<void(const PeerLife&)> gone) { gone_ = std::move(gone); }

  /// Of a sender that is not the peer's caller: see Origin.
  ///   errors  would_block (the sender's name is that of a peer that is connected, and which is asked: send
  ///           again later), exhausted (a limit of strangers)
  Result<ImportReport> import(wire::Metadata metadata, Origin origin = Origin::caller);
  [[nodiscard]] std::vector<PeerInfo> list() const;
  [[nodiscard]] Result<std::vector<Region>> regions_of(std::string_view peer) const;
  [[nodiscard]] Result<Region> region_of(std::string_view peer, std::string_view region_name) const;
  /// The present life of this name.
  [[nodiscard]] Result<std::shared_ptr<PeerLife>> find(std::string_view name) const;
  /// Waits until a link over one of these backends is ready; empty: over any.
  Result<void> connect(std::string_view peer, Timeout timeout, const std::vector<std::string>& backends,
                       const std::function<bool()>& interrupted = {});
  Result<void> forget(std::string_view peer);

  /// A peer has connected. Returns the token of the link; 0: it is refused. Calls no backend.
  std::uint64_t accepted(BackendInstance& from, void* connection, std::string_view peer,
                         std::uint64_t incarnation);
  /// Nothing of this life is used any more; its links are closed soon, which ends what is in flight. Calls no
  /// backend.
  void end_life(PeerLife& life, Fate fate, const std::string& why);
  [[nodiscard]] NameContests& contests() { return contests_; }

 private:
  std::shared_ptr<PeerLife> known(std::string_view peer) const;
  std::shared_ptr<PeerLife> life_of(std::string_view peer, std::uint64_t incarnation, Origin origin);
  std::shared_ptr<PeerLife> life_for_link(std::string_view peer, std::uint64_t incarnation);
  struct Entered {
    std::shared_ptr<PeerLife> life;    ///< null: there is no room
    std::shared_ptr<PeerLife> former;  ///< it has the name no more
    std::vector<std::shared_ptr<PeerLife>> dropped;
  };
  Entered enter(std::shared_ptr<PeerLife> life, Origin origin);
  void replaced(PeerLife& former, std::uint64_t incarnation);
  bool has_room_for_stranger(std::vector<std::shared_ptr<PeerLife>>& dropped);
  [[nodiscard]] Result<void> check_of_another(const wire::Metadata& metadata) const;
  Result<void> check_sender(const wire::Metadata& metadata);
  void recount_sent(PeerLife& life);
  void decided(const NameContests::Outcome& outcome);
  std::uint64_t refuse(const char* counter, const std::string& why);
  Result<void> wait_for_links(std::string_view peer, const std::vector<std::shared_ptr<Link>>& links,
                              Deadline deadline, const std::function<bool()>& interrupted) const;

  const Self& self_;
  CallGate& calls_;
  const Backends& backends_;
  Links& links_;
  Progress& progress_;
  Telemetry& telemetry_;
  const Log& log_;

  const PeerLimits limits_;
  std::function<void(const PeerLife&)> gone_;
  OnceASecond refusals_;

  mutable std::shared_mutex mutex_;  ///< guards all below; a life's lock may be taken inside it
  std::map<std::string, std::shared_ptr<PeerLife>, std::less<>> lives_;
  std::deque<std::weak_ptr<PeerLife>>
      strangers_;               ///< came by themselves, oldest first; some are known by now
  std::size_t sent_bytes_ = 0;  ///< of all lives

  NameContests contests_;
};

}  // namespace headrace::engine
