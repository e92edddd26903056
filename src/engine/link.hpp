// SPDX-License-Identifier: Apache-2.0
// A link: one connection of one backend to one life of one peer, with what was loaded for it and what is in
// flight on it.
#pragma once

#include "engine/backend_instance.hpp"
#include "engine/gate.hpp"
#include "wire/metadata.hpp"

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <utility>

namespace headrace::engine {

class RequestCore;
struct PeerLife;

/// The posts that are running over a link (or, for transfers to oneself, over an instance). Posting takes
/// this lock and no other, so that one peer's traffic cannot hold up another's.
class InFlight {
 public:
  /// `slot` is the core's own: where it stands here while it flies.
  void insert(std::shared_ptr<RequestCore> core, std::size_t& slot) {
    const std::lock_guard lock(mutex_);
    slot = flights_.size();
    flights_.push_back({std::move(core), &slot});
  }
  /// Takes it out again; empty if it is out already.
  std::shared_ptr<RequestCore> take(std::size_t& slot) {
    const std::lock_guard lock(mutex_);
    if (slot == landed) return nullptr;
    const std::size_t at = std::exchange(slot, landed);
    std::shared_ptr<RequestCore> core = std::move(flights_[at].core);
    if (at + 1 != flights_.size()) {
      flights_[at] = std::move(flights_.back());
      *flights_[at].slot = at;
    }
    flights_.pop_back();
    return core;
  }
  [[nodiscard]] std::vector<std::shared_ptr<RequestCore>> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<RequestCore>> cores;
    cores.reserve(flights_.size());
    for (const Flight& flight : flights_) cores.push_back(flight.core);
    return cores;
  }

  static constexpr std::size_t landed = ~std::size_t{0};

 private:
  struct Flight {
    std::shared_ptr<RequestCore> core;
    std::size_t* slot;
  };
  mutable std::mutex mutex_;
  std::vector<Flight> flights_;
};

enum class LinkState : std::uint32_t { connecting, ready, lost };

class Link {
 public:
  Link(std::uint64_t token, BackendInstance& backend, std::weak_ptr<PeerLife> life)
      : token_(token), backend_(backend), life_(std::move(life)) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] std::uint64_t token() const { return token_; }
  [[nodiscard]] BackendInstance& backend() const { return backend_; }
  [[nodiscard]] std::shared_ptr<PeerLife> life() const { return life_.lock(); }
  [[nodiscard]] LinkState state() const { return state_.load(std::memory_order_acquire); }
  [[nodiscard]] void* connection() const { return connection_.load(std::memory_order_acquire); }
  /// What the backend made. If the link has been lost and closed meanwhile, its connection goes at once.
  void set_connection(void* connection);
  void set_ready();
  void set_lost(Status status, std::string_view why);
  [[nodiscard]] Status lost_status() const;
  [[nodiscard]] std::string lost_text() const;

  /// Inside it the connection and what was loaded for it may be used.
  Gate& gate() { return gate_; }
  InFlight& in_flight() { return in_flight_; }

  /// Sends a message of the agents' own. The gate must be held. would_block also while the connection is
  /// being made: others know the link before `connect` has returned.
  Status notify(std::string_view message);
  /// The peer's region for this link, loaded at first use. The gate must be held.
  Result<void*> load(std::uint32_t region_id, const headrace_remote_region_v1& region);
  /// Drops the handles of these regions; no post uses them any more. The gate must be held.
  void unload(std::span<const wire::IdRange> ranges);
  /// Held shared by whoever prepares with loaded handles, exclusively by `unload`: a handle is not given back
  /// under a call that takes it.
  std::shared_mutex& handles_mutex() { return handles_mutex_; }

  /// Ends it: nobody uses the connection when this returns; every post on it has been completed.
  void close();

 private:
  const std::uint64_t token_;
  BackendInstance& backend_;
  const std::weak_ptr<PeerLife> life_;
  std::atomic<void*> connection_{nullptr};
  std::atomic<LinkState> state_{LinkState::connecting};
  Gate gate_;
  InFlight in_flight_;
  std::shared_mutex handles_mutex_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint32_t, void*> remotes_;
  Status lost_status_;
  std::string lost_text_;
};

}  // namespace headrace::engine
