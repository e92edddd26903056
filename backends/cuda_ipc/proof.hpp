// SPDX-License-Identifier: Apache-2.0
// Proof that an IPC handle leads into the process that it came from.
//
// A handle names its process by a number, and numbers mean little across PID namespaces: the driver may
// refuse the handle, or, where another process bears that number, lead to memory of a stranger. So a peer
// first opens a handle of memory that holds a random number, and reads it. One proof serves all memory of a
// GPU of the owner's.
#pragma once

#include "gpu/device_memory.hpp"
#include "gpu/peer_memory.hpp"
#include "gpu/stream.hpp"

#include <cstdint>
#include <memory>

namespace headrace::cuda_ipc {

/// The owner's side.
class Proof {
 public:
  /// Waits for a copy of 8 bytes on `stream`.
  ///   errors   exhausted, not_supported (this GPU shares nothing by handle), backend_failed
  [[nodiscard]] static Result<std::unique_ptr<const Proof>> make(
      const std::shared_ptr<const gpu::Device>& device, const gpu::Stream& stream);
  [[nodiscard]] const cuda::IpcMemoryHandle& handle() const noexcept { return handle_; }
  [[nodiscard]] std::uint64_t nonce() const noexcept { return nonce_; }

 private:
  Proof(gpu::DeviceMemory memory, const cuda::IpcMemoryHandle& handle, std::uint64_t nonce)
      : memory_(std::move(memory)), handle_(handle), nonce_(nonce) {}
  gpu::DeviceMemory memory_;
  cuda::IpcMemoryHandle handle_;
  std::uint64_t nonce_;
};

/// The peer's side: opens the handle for `device` and reads. Waits for a copy of 8 bytes on `stream`.
///   errors   not_supported (handles of that process do not work here: why), backend_failed
[[nodiscard]] Result<void> check_proof(const std::shared_ptr<const gpu::Device>& device,
                                       const gpu::Stream& stream, const cuda::IpcMemoryHandle& handle,
                                       std::uint64_t nonce);

}  // namespace headrace::cuda_ipc
