// SPDX-License-Identifier: Apache-2.0
// Peers' regions that are mapped here: which of them are still the peer's memory.
#pragma once

#include <headrace/agent.hpp>

#include "engine/backends.hpp"
#include "engine/call_gate.hpp"
#include "engine/links.hpp"
#include "engine/peers.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>

namespace headrace::engine {

/// A mapping as the engine knows it. The thread that drops the last reference may be inside a backend's call,
/// or hold a lock: unlike the end of the mapping itself this calls no backend and ends no engine.
struct MappingRow {
  std::shared_ptr<PeerLife> life;
  std::shared_ptr<Link> link;
  std::uint32_t region_id = 0;
  std::atomic<bool> alive{true};
};

class Mappings final : public LinkWatcher {
 public:
  /// A mapping keeps `engine` alive, and with it the backend's instance.
  Mappings(const std::weak_ptr<const void>& engine, CallGate& calls, const Backends& backends, Links& links,
           const Peers& peers, Progress& progress)
      : engine_(engine),
        calls_(calls),
        backends_(backends),
        links_(links),
        peers_(peers),
        progress_(progress) {}

  /// `device`: the GPU that uses it; -1: the CPU.
  Result<std::shared_ptr<Mapping::State>> map(std::string_view peer, RegionId region, Timeout timeout,
                                              int device = -1, const std::function<bool()>& interrupted = {});
  /// Its owner has revoked these regions (rising).
  void revoked(const PeerLife& life, std::span<const IdRange> ranges);
  /// The peer cannot tell us any more that it revokes what is mapped over this link.
  void link_lost(const std::shared_ptr<Link>& link) override;
  /// Whether a caller still has one.
  [[nodiscard]] bool any() const;

 private:
  class Refusals;
  struct Wanted;
  Result<Wanted> find_wanted(std::string_view name, RegionId region, Timeout timeout, int device,
                             const std::function<bool()>& interrupted) const;
  Result<std::shared_ptr<Mapping::State>> map_over(BackendInstance& backend,
                                                   const std::shared_ptr<Link>& link, const Wanted& wanted);
  Result<void> ask_until(Mapping::State& mapping, const Wanted& wanted) const;
  static Result<void> map_once(Mapping::State& mapping, const RemoteRegion& row);
  void keep(const std::shared_ptr<MappingRow>& row);

  static constexpr std::size_t least_rows = 64;

  const std::weak_ptr<const void>& engine_;
  CallGate& calls_;
  const Backends& backends_;
  Links& links_;
  const Peers& peers_;
  Progress& progress_;

  mutable std::mutex mutex_;
  std::multimap<std::pair<const PeerLife*, std::uint32_t>, std::weak_ptr<MappingRow>> rows_;  // by region
  std::size_t sweep_at_ = least_rows;  // so many rows, and those whose mapping is gone are dropped
};

}  // namespace headrace::engine

namespace headrace {

/// A mapped region: keeps the engine, and with it the backend's instance, until the last copy is gone.
struct Mapping::State {
  explicit State(const engine::CallGate& its_calls) : calls(its_calls) {}
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::shared_ptr<const void> engine;
  const engine::CallGate& calls;
  engine::BackendInstance* backend = nullptr;
  std::shared_ptr<engine::MappingRow> row;  ///< goes when the memory is unmapped, before the engine
  void* remote = nullptr;
  void* address = nullptr;
  std::uint64_t length = 0;
  int device = -1;  ///< whose kernels use it; -1: the CPU
  bool writable = true;
};

}  // namespace headrace
