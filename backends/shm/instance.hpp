// SPDX-License-Identifier: Apache-2.0
// What the parts of one backend instance share: what a site among others has, the settings, the memory that
// peers map, and the work that lies with the pool.
#pragma once

#include "backends/shm/imports.hpp"
#include "backends/shm/lanes/lane_server.hpp"
#include "backends/shm/settings.hpp"
#include "base/task_gate.hpp"
#include "host_link/attach.hpp"
#include "host_link/control_socket.hpp"
#include "host_link/site.hpp"
#include "memory/near_memory.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace headrace::shm {

using host_link::Nonce;

class Link;
class Request;

/// A region of ours whose memory file peers map.
struct SharedMemory {
  SharedRegion region;
  host_link::SharedFd file;
};

class Instance final : public host_link::Site {
 public:
  Instance(plugin::Host its_host, const Settings& its_settings, Parts parts);
  ~Instance() override;

  const Settings settings;
  const std::uint32_t helpers;        ///< pool threads for one request
  const std::uint32_t copiers;        ///< threads that copy for one request at a time, a waiter included
  const std::uint32_t relay_helpers;  ///< for one that reads through lanes: the peer has as many
  const std::unique_ptr<CopyPlaces> places;  ///< for pool threads; null: they stay where they are
  TaskGate tasks;

  // Requests that the pool's queue had no room for; progress takes care of them.
  std::mutex stranded_mutex;
  std::vector<Request*> stranded;
  std::atomic<bool> has_stranded{false};

  /// Our memory that peers read through lanes.
  ServedRegions served;
  /// Whether option and fault guard allow it. Logs once if the guard does not.
  [[nodiscard]] bool serves_lanes();
  /// Copies out of our memory what the peer asks for, for as long as it goes on asking.
  void serve(Link& link, LaneMemory& lane);

  /// A random number, at an address that peers are told.
  [[nodiscard]] Nonce own_nonce() const { return {reinterpret_cast<std::uintptr_t>(nonce_.get()), *nonce_}; }

  // What peers map: those that are linked are told now, later ones when they are introduced.
  void share(SharedMemory memory);
  void unshare(std::uint32_t region_id);
  /// For a link that is being introduced.
  [[nodiscard]] const std::map<std::uint32_t, SharedMemory>& shared_memory() const { return shared_memory_; }

 private:
  [[nodiscard]] std::shared_ptr<host_link::Link> make_link(host_link::Side side, UnixSocket socket,
                                                           host_link::PeerProcess process) override;

  const std::unique_ptr<const std::uint64_t> nonce_;
  std::atomic<bool> closing_{false};
  std::atomic<bool> told_of_guard_{false};
  std::map<std::uint32_t, SharedMemory> shared_memory_;  // by region id; changes within with_links
};

}  // namespace headrace::shm
