// SPDX-License-Identifier: Apache-2.0
// One life of one peer: (name, incarnation). A peer that restarts under its name is another life.
#pragma once

#include "engine/link.hpp"
#include "engine/remote_regions.hpp"
#include "engine/revoked_ids.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <shared_mutex>

namespace headrace::engine {

struct PeerBackend {
  std::string name;
  std::string version;
  std::optional<std::string> info;  ///< its connection information, if it came
};

/// What became of a life.
enum class Fate : std::uint32_t {
  alive,      ///< as far as we know; its links may come and go
  left,       ///< said goodbye, or its process is gone
  replaced,   ///< the peer came back under its name with another incarnation
  refused,    ///< another agent has its name and is alive
  forgotten,  ///< our own caller forgot it
};

struct PeerLife {
  PeerLife(std::string peer_name, std::uint64_t peer_incarnation)
      : name(std::move(peer_name)), incarnation(peer_incarnation) {}

  const std::string name;
  const std::uint64_t incarnation;  ///< as it claims
  /// Ours: what is counted for a life is counted under this number, and not under what a peer claims.
  const std::uint64_t serial = next_serial.fetch_add(1, std::memory_order_relaxed);

  /// Grows with each revocation, after `regions` has lost them: a page list that was checked at the present
  /// epoch is valid.
  std::atomic<std::uint64_t> epoch{1};
  std::atomic<Fate> fate{Fate::alive};
  /// Not ok: a link to it was lost because the peer was not there any more (peer_lost) or takes no more links
  /// (exhausted), and none has been ready since.
  std::atomic<Code> out_of_reach{Code::ok};

  /// Our caller has named it: by importing, finding or fetching its metadata.
  std::atomic<bool> named{false};
  std::size_t sent_bytes = 0;  ///< what we hold of metadata that it sent; with the lock of Peers

  /// Another life has its name: it is not known yet which of the two goes (NameContests). What it says to our
  /// caller waits.
  std::atomic<bool> contends{false};

  std::mutex connecting;  ///< one thread makes links to it at a time

  mutable std::shared_mutex mutex;  ///< guards all below; never held across a backend's call
  bool has_metadata = false;
  std::uint64_t version = 0;  ///< of the latest metadata that was no part
  RemoteRegions regions;
  RevokedIds revoked;
  std::vector<PeerBackend> backends;
  std::vector<std::shared_ptr<Link>> links;  ///< of every state; lost ones until they are closed
  std::string detail;                        ///< why it was lost
  std::vector<std::function<void()>> held;   ///< while it contends: what it said, in order
  std::size_t held_bytes = 0;

  /// The link to use for this backend: one that is ready, else one that is connecting, else none.
  [[nodiscard]] std::shared_ptr<Link> usable_link(const BackendInstance& backend) const {
    const std::shared_lock lock(mutex);
    std::shared_ptr<Link> best;
    for (const auto& link : links) {
      if (&link->backend() != &backend || link->state() == LinkState::lost || link->gate().closed()) continue;
      if (link->state() == LinkState::ready) return link;
      best = link;
    }
    return best;
  }
  /// A link that is ready and carries messages, or none. One whose backend has host memory comes first, as in
  /// Notifications::ways_to, which says why.
  [[nodiscard]] std::shared_ptr<Link> ready_message_link() const {
    const std::shared_lock lock(mutex);
    std::shared_ptr<Link> other;
    if (fate.load() != Fate::alive) return other;
    for (const auto& link : links) {
      if (link->state() != LinkState::ready || link->gate().closed() || !link->backend().can(HEADRACE_NOTIFY))
        continue;
      if (link->backend().takes_remote(HEADRACE_DRAM)) return link;
      other = link;
    }
    return other;
  }
  [[nodiscard]] bool is_connected() const {
    const std::shared_lock lock(mutex);
    return fate.load() == Fate::alive && std::ranges::any_of(links, [](const auto& link) {
             return link->state() == LinkState::ready && !link->gate().closed();
           });
  }
  [[nodiscard]] std::string detail_text() const {
    const std::shared_lock lock(mutex);
    return detail;
  }
  [[nodiscard]] std::vector<std::shared_ptr<Link>> all_links() const {
    const std::shared_lock lock(mutex);
    return links;
  }
  /// What the peer's instance of this backend says about one of its regions.
  [[nodiscard]] std::string public_data_of(std::uint32_t region, const BackendInstance& backend) const {
    const std::shared_lock lock(mutex);
    return std::string(
        regions.public_data(region, static_cast<std::uint32_t>(backend_number(backend.name()))));
  }
  /// The peer's number for a backend of that name, or -1. `mutex` must be held.
  [[nodiscard]] int backend_number(std::string_view backend) const {
    for (std::size_t i = 0; i < backends.size(); ++i)
      if (backends[i].name == backend) return static_cast<int>(i);
    return -1;
  }

 private:
  static inline std::atomic<std::uint64_t> next_serial{1};  // 0: this agent itself
};

}  // namespace headrace::engine
