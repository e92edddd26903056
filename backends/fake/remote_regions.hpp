// SPDX-License-Identifier: Apache-2.0
// The remote side of requests: handles for regions of peers, and for our own.
#pragma once

#include "backends/fake/handles.hpp"
#include "backends/fake/instance.hpp"

#include <map>
#include <span>

namespace headrace::fake {

struct RemoteRegion {
  std::shared_ptr<LinkEnd> link;  ///< the region is of the peer at its other end; null: it is our own
  std::uint32_t region_id = 0;
  std::shared_ptr<Region> own;  ///< our own region, kept while it is loaded

  /// With the network's lock held. Null if the owner does not have it any more.
  [[nodiscard]] std::shared_ptr<Region> find() const;
};

class RemoteRegions {
 public:
  explicit RemoteRegions(FakeInstance& here) : here_(here) {}
  ~RemoteRegions();
  RemoteRegions(const RemoteRegions&) = delete;
  RemoteRegions& operator=(const RemoteRegions&) = delete;

  RemoteRegion* load_local(const Region& region);
  Result<RemoteRegion*> load_remote(const LinkEnd& link, const headrace_remote_region_v1& region);
  void unload(const RemoteRegion& remote);
  /// `access`: as in headrace_map_v1.
  Result<std::span<std::byte>> map(const RemoteRegion& remote, int device, unsigned access);
  void unmap(void* address);

 private:
  FakeInstance& here_;
  // Guarded by the network's lock.
  HandleTable<RemoteRegion> handles_;
  std::map<void*, std::span<std::byte>> mappings_;  // by the address handed out: the pages around it
};

}  // namespace headrace::fake
