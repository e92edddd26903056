// SPDX-License-Identifier: Apache-2.0
// Peers under one scope; they join and leave while posts run.
#pragma once

#include <headrace/fabric.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace::fabric {

class Core;

/// Thread-safe.
class PeerGroup {
 public:
  PeerGroup(std::uint32_t scope, std::weak_ptr<Core> core) : scope(scope), core(std::move(core)) {}

  /// False: it is a member.
  bool add(const FabricPeer& peer) {
    const std::lock_guard lock(mutex_);
    if (find(peer) != members_.end()) return false;
    members_.push_back(peer);
    return true;
  }
  /// False: it is no member.
  bool remove(const FabricPeer& peer) {
    const std::lock_guard lock(mutex_);
    const auto at = find(peer);
    if (at == members_.end()) return false;
    members_.erase(at);
    return true;
  }
  [[nodiscard]] std::vector<FabricPeer> members() const {
    const std::lock_guard lock(mutex_);
    return members_;
  }

  const std::uint32_t scope;
  const std::weak_ptr<Core> core;

 private:
  [[nodiscard]] std::vector<FabricPeer>::const_iterator find(const FabricPeer& peer) const {
    return std::ranges::find_if(members_,
                                [&](const FabricPeer& each) { return each.address() == peer.address(); });
  }

  mutable std::mutex mutex_;
  std::vector<FabricPeer> members_;
};

}  // namespace headrace::fabric
