// SPDX-License-Identifier: Apache-2.0
// The memory that peers may reach over sockets: the host's, and that of GPUs.
#pragma once

#include "gpu/registered_memory.hpp"
#include "transport/region_table.hpp"

#include <headrace/plugin/backend.hpp>

#include <atomic>
#include <memory>

namespace headrace::tcp {

using transport::Access;
using transport::Range;

class Link;
class RemoteRequest;
struct Region;
struct RemoteRegion;
using Handles = plugin::Handles<Region, Link, RemoteRegion, RemoteRequest>;

/// `base` of a GPU's memory is its address there, not to be touched from here.
struct Region : transport::Region {
  std::shared_ptr<const gpu::RegisteredMemory> gpu{};  ///< null: the host's

  [[nodiscard]] bool of_gpu() const { return gpu != nullptr; }
};

class Regions : public transport::RegionTable<Region> {
 public:
  ///   errors  as those of RegionTable
  Result<Region*> add(const Region& region) {
    // First: a frame that finds the region must look at its memory.
    if (region.of_gpu()) any_of_gpu_.store(true, std::memory_order_relaxed);
    return RegionTable::add(region);
  }
  /// Whether memory of a GPU was ever added.
  [[nodiscard]] bool any_of_gpu() const { return any_of_gpu_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> any_of_gpu_{false};
};

}  // namespace headrace::tcp
