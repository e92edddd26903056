// SPDX-License-Identifier: Apache-2.0
// GPU memory of another process, mapped here by IPC handle or by descriptors of its physical allocations.
#pragma once

#include "base/unique_fd.hpp"
#include "gpu/allocation_info.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace headrace::gpu {

/// What another process needs to map a range of memory. Plain bytes except for the descriptors.
struct SharedMemory {
  struct Piece {
    UniqueFd descriptor;
    std::size_t bytes = 0;
  };
  Sharing sharing = Sharing::none;
  std::size_t offset = 0;  ///< of the range within the allocation, or within the first physical allocation
  std::size_t bytes = 0;   ///< of the range
  cuda::IpcMemoryHandle handle{};  ///< ipc
  std::vector<Piece> pieces;       ///< descriptor
};

/// Shares [address, address + bytes), which is in one allocation or, for the virtual memory API, in adjacent
/// physical allocations.
///   errors   not_found (no memory there), not_supported (cannot be shared: what to do), backend_failed
[[nodiscard]] Result<SharedMemory> share_memory(const Device& device, cuda::Address address,
                                                std::size_t bytes);

/// A range of another process's GPU memory, for kernels and copies of one device. The destructor unmaps it;
/// nothing may use it then.
class PeerMemory {
 public:
  /// Maps it for `device`. Descriptors may be closed afterwards. The same IPC handle may be opened again:
  /// opens are counted.
  ///   errors   not_found (it was freed, or its process has ended), not_supported (this GPU has no path to
  ///            it), invalid_argument (memory of this process, or the driver takes it for that),
  ///            corrupt (it is shorter than was said), backend_failed
  [[nodiscard]] static Result<PeerMemory> open(std::shared_ptr<const Device> device,
                                               const SharedMemory& shared);
  PeerMemory(PeerMemory&& other) noexcept
      : device_(std::move(other.device_)),
        mapped_(std::exchange(other.mapped_, 0)),
        mapped_bytes_(other.mapped_bytes_),
        reserved_bytes_(other.reserved_bytes_),
        address_(other.address_),
        bytes_(other.bytes_) {}
  PeerMemory& operator=(PeerMemory&&) = delete;
  ~PeerMemory();

  [[nodiscard]] cuda::Address address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Of the whole allocation, or of all physical allocations; the range is a part of it.
  [[nodiscard]] std::size_t whole_bytes() const noexcept { return mapped_bytes_; }
  [[nodiscard]] const Device& device() const noexcept { return *device_; }

 private:
  explicit PeerMemory(std::shared_ptr<const Device> device) : device_(std::move(device)) {}
  Result<void> open_handle(const SharedMemory& shared);
  Result<void> map_pieces(const SharedMemory& shared);
  Result<void> map_piece(const SharedMemory::Piece& piece);

  std::shared_ptr<const Device> device_;
  cuda::Address mapped_ = 0;        // begin of the opened allocation or of the reserved address range
  std::size_t mapped_bytes_ = 0;    // of the allocation, or of the address range: mapped so far
  std::size_t reserved_bytes_ = 0;  // 0: opened by IPC handle
  cuda::Address address_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace headrace::gpu
