// SPDX-License-Identifier: Apache-2.0
// Memory of one instance that its peers may reach.
#pragma once

#include "backends/fake/handles.hpp"
#include "backends/fake/network.hpp"
#include "base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <shared_mutex>

namespace headrace::fake {

/// Threads that copy hold `gate` shared; deregistration takes it alone, so that no thread is in the memory
/// once it returns.
struct Region {
  std::uint32_t id = 0;
  std::byte* base = nullptr;
  std::uint64_t length = 0;
  UniqueFd memory_fd;  ///< a duplicate of ours, or none
  std::uint64_t memory_offset = 0;
  bool writable = true;
  std::shared_mutex gate;
  bool gone = false;  ///< guarded by gate
};

class Regions {
 public:
  explicit Regions(FakeNetwork& network) : network_(network) {}

  Result<Region*> add(const headrace_region_v1& args);
  void remove(Region& handle);

  // With the network's lock held.

  [[nodiscard]] std::shared_ptr<Region> get(const Region& handle) const { return handles_.get(handle); }
  /// Null if there is none.
  [[nodiscard]] std::shared_ptr<Region> find(std::uint32_t id) const;

 private:
  FakeNetwork& network_;
  HandleTable<Region> handles_;
  std::map<std::uint32_t, std::shared_ptr<Region>> by_id_;
};

}  // namespace headrace::fake
