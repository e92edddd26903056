// SPDX-License-Identifier: Apache-2.0
// What the driver knows of the memory at an address: the begin of its allocation, its identity, and how it
// can be shared.
//
// Addresses are reused: a new tensor may have the address of a freed one. So an allocation is identified by
// its buffer id, which the driver uses only once in a process.
#pragma once

#include "gpu/device.hpp"

#include <cstddef>
#include <cstdint>

namespace headrace::gpu {

enum class Sharing {
  none,        ///< host memory, managed memory, memory pools that are not shared
  ipc,         ///< by IPC handle: memory of cudaMalloc
  descriptor,  ///< by file descriptor, one for each physical allocation: memory of the virtual memory API
};

struct AllocationInfo {
  cuda::Address base =
      0;  ///< of the allocation; for the virtual memory API: of the mapped physical allocation
  std::size_t bytes = 0;
  std::uint64_t buffer_id = 0;
  int device = 0;
  bool on_device = true;
  Sharing sharing = Sharing::none;
};

/// The allocation that contains `address`.
///   errors   not_found (no memory that the driver knows)
[[nodiscard]] Result<AllocationInfo> describe_allocation(const Device& device, cuda::Address address);

/// How long the allocation is that begins at `address`, which may be a mapping of another process's memory.
///   errors   backend_failed (the driver does not say)
[[nodiscard]] Result<std::size_t> bytes_of_allocation(const Device& device, cuda::Address address);

/// Identifies the allocations that hold [address, address + bytes): the same number later means the same
/// memory.
///   errors   not_found (some of it is not GPU memory, or not any more)
[[nodiscard]] Result<std::uint64_t> identify_buffers(const Device& device, cuda::Address address,
                                                     std::size_t bytes);

}  // namespace headrace::gpu
