// SPDX-License-Identifier: Apache-2.0
// Our own regions: registered with the backends, exported as metadata, taken back.
//
// Locks: `mutex_` (the table) and `handles_mutex_` are leaves but for this: `give_back` and `exported` call
// backends under `handles_mutex_`, which no backend's call can take.
#pragma once

#include <headrace/agent.hpp>

#include "engine/backends.hpp"
#include "engine/call_gate.hpp"
#include "engine/callback_queue.hpp"
#include "engine/id_ranges.hpp"
#include "engine/local_region.hpp"
#include "engine/progress.hpp"
#include "engine/self.hpp"
#include "memory/region_table.hpp"

#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

namespace headrace::engine {

/// Requests of ours and peers: they may use a region that is being taken back.
class RegionUsers {
 public:
  /// Whether a post of ours that uses one of these is in flight.
  [[nodiscard]] virtual bool in_use(std::span<const IdRange> ranges) const = 0;
  /// Asks every peer to stop using them, then calls `give_back`, after which the backends let no peer use
  /// them, then waits for the peers that have connected before that. `version`: that of the metadata which no
  /// longer lists them. timed_out, canceled: not all have answered.
  virtual Result<void> ask_peers(std::span<const IdRange> ranges, std::uint64_t version, Deadline deadline,
                                 const std::function<void()>& give_back) = 0;

 protected:
  ~RegionUsers() = default;
};

class LocalRegions {
 public:
  using Table = RegionTable<std::shared_ptr<LocalRegion>>;
  /// What holds the memory of regions that the agent allocates.
  struct Backing {
    int memory_fd = -1;
    std::shared_ptr<const void> keep;
  };

  LocalRegions(const Self& self, CallGate& calls, Backends& backends, RegionUsers& users, Progress& progress,
               CallbackQueue& callbacks);

  Result<std::vector<Region>> add(std::span<const MemoryRange> ranges, const RegisterOptions& options,
                                  const Backing& backing);
  Result<void> deregister(std::span<const RegionId> regions, Timeout timeout);
  [[nodiscard]] std::vector<Region> list() const;
  /// The allocation behind a region, co-owned.
  [[nodiscard]] Result<std::shared_ptr<std::byte>> storage(RegionId region) const;
  [[nodiscard]] std::uint64_t version() const;
  [[nodiscard]] Result<wire::Metadata> exported(const ExportOptions& options) const;
  /// Calls on the callback thread after each change. {} ends that.
  void on_changed(std::function<void()> changed);
  /// Takes every region from the backends; requests have ended.
  void close();

  // --- for page lists and requests

  /// Null unless it is registered.
  [[nodiscard]] std::shared_ptr<LocalRegion> find(std::uint32_t id) const;
  /// Held while a backend is given handles of regions, so that they are not given back meanwhile.
  [[nodiscard]] std::shared_lock<std::shared_mutex> hold_handles() const {
    return std::shared_lock(handles_mutex_);
  }
  /// Grows with each deregistration, after its regions have become invalid: a page list that was checked at
  /// the present epoch is valid.
  [[nodiscard]] std::uint64_t epoch() const { return epoch_.load(); }

  /// The table held still, for looking up many regions.
  class Look {
   public:
    /// Null unless it is registered.
    [[nodiscard]] const LocalRegion* find(std::uint32_t id) const;
    /// The region that holds [address, address + length). Only in `look_by_address`.
    [[nodiscard]] const LocalRegion* at_address(std::uint64_t address, std::uint64_t length) const;

   private:
    friend class LocalRegions;
    Look(const Table& table, std::shared_lock<std::shared_mutex> lock)
        : table_(table), lock_(std::move(lock)) {}
    const Table& table_;
    std::shared_lock<std::shared_mutex> lock_;
  };
  [[nodiscard]] Look look() const { return {table_, std::shared_lock(mutex_)}; }
  [[nodiscard]] Look look_by_address();

 private:
  using Regions = std::vector<std::shared_ptr<LocalRegion>>;

  Result<Regions> enter(std::span<const MemoryRange> ranges, const RegisterOptions& options,
                        const Backing& backing, std::size_t backends);
  Result<void> take_from_peers(const Regions& regions, std::span<const IdRange> ranges, Deadline deadline);
  std::uint64_t withdraw(const Regions& regions);
  void put_back(const Regions& regions);
  void show(const Regions& regions);
  void remove(const Regions& regions);
  void give_back(LocalRegion& region);
  Result<Regions> chosen(std::span<const RegionId> ids) const;
  Result<void> wait_for_posts(std::span<const IdRange> ranges, Timeout timeout, Deadline deadline) const;
  Result<Regions> select(const ExportOptions& options, wire::Metadata& metadata) const;
  void changed();

  const Self& self_;
  CallGate& calls_;
  Backends& backends_;
  RegionUsers& users_;
  Progress& progress_;
  CallbackQueue& callbacks_;

  mutable std::shared_mutex mutex_;  ///< guards the next two
  Table table_;
  std::map<std::string, std::uint32_t, std::less<>> names_;
  mutable std::atomic<std::uint64_t> exported_{0};  ///< the latest version of an export
  mutable std::shared_mutex handles_mutex_;
  std::atomic<std::uint64_t> epoch_{1};
  std::mutex deregistering_;  ///< one at a time: each asks all peers; guards the next one
  Regions unconfirmed_;       ///< taken back, and a peer has not said that it has ended: memory that stays

  std::mutex on_changed_mutex_;
  std::function<void()> on_changed_;
};

}  // namespace headrace::engine
