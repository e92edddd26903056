// SPDX-License-Identifier: Apache-2.0
// Memory that is registered with the NICs of one group.
#pragma once

#include "fabric/address.hpp"
#include "gpu/memory_identity.hpp"
#include "rail/region.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace headrace::fabric {

struct Memory {
  std::uint64_t fabric = 0;
  std::size_t group = 0;
  FabricAccess access = FabricAccess::local;
  bool writable = true;  ///< by reads
  rail::LocalRegion region;
  std::shared_ptr<const gpu::MemoryIdentity> identity = nullptr;  ///< of a GPU's
  std::shared_ptr<const DescriptorParts> descriptor;              ///< null: local

  std::atomic<bool> gone = false;  ///< no post begins any more
  std::size_t parts = 0;           ///< of posts that use it; the worker's alone
};

}  // namespace headrace::fabric
