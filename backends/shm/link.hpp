// SPDX-License-Identifier: Apache-2.0
// A link of shm: what every link of a host does (host_link/link.hpp), the proof that attach reaches the peer,
// the memory files that it shares, and the lanes of either side.
#pragma once

#include "backends/shm/control_messages.hpp"
#include "backends/shm/imports.hpp"
#include "backends/shm/instance.hpp"
#include "backends/shm/lanes/link_lanes.hpp"
#include "host_link/link.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace headrace::shm {

using host_link::LinkState;

class Link final : public host_link::Link {
 public:
  Link(Instance& instance, host_link::Side side, UnixSocket socket, host_link::PeerProcess process)
      : host_link::Link(instance, side, std::move(socket), std::move(process)), instance_(instance) {}

  /// A link of the site is one of this backend's.
  [[nodiscard]] static Link& of(host_link::Link& link) { return static_cast<Link&>(link); }
  [[nodiscard]] std::shared_ptr<Link> shared() { return std::static_pointer_cast<Link>(shared_from_this()); }

  // Any thread.

  /// Why attach does not reach the peer; empty: it does. Known once the link was ready.
  [[nodiscard]] const std::string& attach_refusal() const { return attach_refusal_; }
  [[nodiscard]] bool maps() const { return instance_.settings.map; }
  /// The peer's region if its memory file has come; looks into the socket for it, but does not wait.
  [[nodiscard]] Imports::Found import(std::uint32_t region_id);

  /// The lanes through which requests of ours read.
  [[nodiscard]] LinkLanes& lanes() { return lanes_; }
  /// Makes the owner serve this lane.
  void call(ReaderLane& lane);
  /// It is not used any more: tells the owner.
  void drop(std::unique_ptr<ReaderLane> lane);

  // For the instance, while it holds its links.

  void share(const SharedMemory& memory);
  void unshare(std::uint32_t region_id);

 private:
  [[nodiscard]] void* handle() override { return this; }
  [[nodiscard]] std::string greeting() override;
  void greeted(std::string_view greeting) override;
  void say_first() override;
  [[nodiscard]] Result<void> on_other(const host_link::Other& message,
                                      std::vector<UniqueFd> descriptors) override;
  void closed() override;
  void on_share(const Share& share, const std::vector<UniqueFd>& descriptors);
  [[nodiscard]] Result<void> on_open_lane(const OpenLane& lane, const UniqueFd& file);
  [[nodiscard]] Result<void> on_serve_lane(const ServeLane& lane);

  Instance& instance_;
  std::string attach_refusal_;  // written before the link is ready
  Imports imports_;
  LinkLanes lanes_;
  std::unordered_map<std::uint32_t, std::shared_ptr<LaneMemory>> served_lanes_;  // with the control mutex
};

}  // namespace headrace::shm
