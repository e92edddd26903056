// SPDX-License-Identifier: Apache-2.0
// What the driver knows of the memory behind an address: where the allocation begins, which it is, how it can
// be shared.
//
// Addresses come back. A tensor that was freed and another that was made since may have the same one, so an
// allocation is known by its buffer id, which the driver never gives twice in a process.
#pragma once

#include "gpu/device.hpp"

#include <cstddef>
#include <cstdint>

namespace headrace::gpu {

enum class Sharing {
  none,        ///< host memory, managed memory, pools that share nothing
  ipc,         ///< by IPC handle: memory of cudaMalloc
  descriptor,  ///< by file descriptor, one for each piece: memory of the virtual memory API
};

struct AllocationInfo {
  cuda::Address base = 0;  ///< of the allocation; of the virtual memory API: of the mapped piece
  std::size_t bytes = 0;
  std::uint64_t buffer_id = 0;
  int device = 0;
  bool on_device = true;
  Sharing sharing = Sharing::none;
};

/// The allocation that `address` lies in.
///   errors   not_found (no memory that the driver knows of)
[[nodiscard]] Result<AllocationInfo> describe_allocation(const Device& device, cuda::Address address);

/// Which allocations hold [address, address + bytes): the same number later means the same memory.
///   errors   not_found (some of it is no memory of a GPU, or no longer)
[[nodiscard]] Result<std::uint64_t> identify_buffers(const Device& device, cuda::Address address,
                                                     std::size_t bytes);

}  // namespace headrace::gpu
