// SPDX-License-Identifier: Apache-2.0
// The peers of an agent: their present lives, and what their metadata says.
#pragma once

#include <headrace/agent.hpp>

#include "engine/backends.hpp"
#include "engine/call_gate.hpp"
#include "engine/links.hpp"
#include "engine/self.hpp"

#include <map>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::engine {

class Peers {
 public:
  Peers(const Self& self, CallGate& calls, const Backends& backends, Links& links, Progress& progress,
        Telemetry& telemetry, const Log& log)
      : self_(self),
        calls_(calls),
        backends_(backends),
        links_(links),
        progress_(progress),
        telemetry_(telemetry),
        log_(log) {}

  Result<ImportReport> import(wire::Metadata metadata);
  [[nodiscard]] std::vector<PeerInfo> list() const;
  [[nodiscard]] Result<std::vector<Region>> regions_of(std::string_view peer) const;
  [[nodiscard]] Result<Region> region_of(std::string_view peer, std::string_view region_name) const;
  /// The present life of this name.
  [[nodiscard]] Result<std::shared_ptr<PeerLife>> find(std::string_view name) const;
  /// Waits until a link over one of these backends is ready; empty: over any.
  Result<void> connect(std::string_view peer, Timeout timeout, const std::vector<std::string>& backends);
  Result<void> forget(std::string_view peer);

  /// A peer has connected. Returns the token of the link; 0: it is refused. Calls no backend.
  std::uint64_t accepted(BackendInstance& from, void* connection, std::string_view peer,
                         std::uint64_t incarnation);
  /// Nothing of this life is used any more; its links are closed soon, which ends what is in flight. Calls no
  /// backend.
  void end_life(PeerLife& life, Fate fate, const std::string& why);

 private:
  std::shared_ptr<PeerLife> life_of(std::string_view peer, std::uint64_t incarnation);
  Result<void> wait_for_a_link(std::string_view peer, const std::vector<std::shared_ptr<Link>>& links,
                               Timeout timeout) const;

  const Self& self_;
  CallGate& calls_;
  const Backends& backends_;
  Links& links_;
  Progress& progress_;
  Telemetry& telemetry_;
  const Log& log_;

  mutable std::shared_mutex mutex_;
  std::map<std::string, std::shared_ptr<PeerLife>, std::less<>> lives_;
};

}  // namespace headrace::engine
