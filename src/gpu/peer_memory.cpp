// SPDX-License-Identifier: Apache-2.0
#include "gpu/peer_memory.hpp"

#include <cstdint>

namespace headrace::gpu {
namespace {

/// Holds a reference to physical memory while it is exported or mapped; mappings have their own references.
class PhysicalHold {
 public:
  PhysicalHold(const cuda::DriverTable& driver, cuda::PhysicalMemory memory)
      : driver_(driver), memory_(memory) {}
  ~PhysicalHold() { (void)driver_.mem_release(memory_); }
  PhysicalHold(const PhysicalHold&) = delete;
  PhysicalHold& operator=(const PhysicalHold&) = delete;
  [[nodiscard]] cuda::PhysicalMemory get() const { return memory_; }

 private:
  const cuda::DriverTable& driver_;
  cuda::PhysicalMemory memory_;
};

Result<SharedMemory::Piece> export_piece(const Device& device, const AllocationInfo& info) {
  const cuda::DriverTable& driver = device.driver();
  cuda::PhysicalMemory memory = 0;
  HEADRACE_CUDA_TRY(driver, driver.mem_retain_allocation_handle(&memory, reinterpret_cast<void*>(info.base)),
                    "find the physical memory at {:#x} of GPU {}", info.base, info.device);
  const PhysicalHold hold(driver, memory);
  int descriptor = -1;
  HEADRACE_CUDA_TRY(
      driver,
      driver.mem_export_to_shareable_handle(&descriptor, hold.get(), cuda::HandleType::file_descriptor, 0),
      "export {} bytes at {:#x} of GPU {}", info.bytes, info.base, info.device);
  return SharedMemory::Piece{UniqueFd(descriptor), info.bytes};
}

Error not_shareable(const AllocationInfo& info, cuda::Address address) {
  if (!info.on_device)
    return make_error(Code::not_supported, "address {:#x} is host memory: it is shared as dram, not as vram",
                      address);
  return make_error(
      Code::not_supported,
      "GPU memory at {:#x} cannot be shared with other processes: it is managed memory, belongs to a memory "
      "pool, or has "
      "no exportable handle. Use cudaMalloc, or cuMemCreate with a file descriptor as handle type",
      address);
}

Error too_short(const AllocationInfo& info, cuda::Address address, std::size_t bytes) {
  return make_error(Code::not_found, "{} bytes at {:#x} go beyond their allocation of {} bytes at {:#x}",
                    bytes, address, info.bytes, info.base);
}

/// The driver's error for a handle, as a code that the caller can use.
Error cannot_open(const Device& device, cuda::Outcome outcome) {
  Error error =
      cuda::driver_error(device.driver(), outcome, "open a peer's memory on GPU {}", device.ordinal());
  if (outcome == cuda::Outcome::invalid_context) {
    error.code = Code::invalid_argument;
    error.message +=
        ": the driver says that it is this process's own memory, which cannot be opened by handle";
  }
  // Observed: "invalid value" for memory that was freed, "invalid handle" for a process that has ended.
  if (outcome == cuda::Outcome::invalid_value || outcome == cuda::Outcome::invalid_handle ||
      outcome == cuda::Outcome::map_failed || outcome == cuda::Outcome::operating_system) {
    error.code = Code::not_found;
    error.message += ": it may have been freed, or its process may be gone";
  }
  return error;
}

}  // namespace

Result<SharedMemory> share_memory(const Device& device, cuda::Address address, std::size_t bytes) {
  const cuda::DriverTable& driver = device.driver();
  const ContextGuard guard(device);
  HEADRACE_TRY(first, describe_allocation(device, address));
  SharedMemory shared;
  shared.sharing = first.sharing;
  shared.offset = address - first.base;
  shared.bytes = bytes;
  if (first.sharing == Sharing::none) return not_shareable(first, address);
  if (first.sharing == Sharing::ipc) {
    if (bytes > first.bytes - shared.offset) return too_short(first, address, bytes);
    // Documented for the allocation's address; the handle always covers the whole allocation.
    HEADRACE_CUDA_TRY(driver, driver.ipc_get_mem_handle(&shared.handle, first.base),
                      "share {} bytes at {:#x} of GPU {}", bytes, address, first.device);
    return shared;
  }
  AllocationInfo piece = first;
  for (;;) {
    HEADRACE_TRY(exported, export_piece(device, piece));
    shared.pieces.push_back(std::move(exported));
    const cuda::Address end = piece.base + piece.bytes;
    if (end >= address + bytes) return shared;
    auto next = describe_allocation(device, end);
    if (!next || next->base != end) return too_short(piece, address, bytes);
    if (next->sharing != Sharing::descriptor) return not_shareable(*next, end);
    piece = *next;
  }
}

Result<PeerMemory> PeerMemory::open(std::shared_ptr<const Device> device, const SharedMemory& shared) {
  PeerMemory memory(std::move(device));
  const ContextGuard guard(*memory.device_);
  if (shared.sharing == Sharing::ipc) {
    HEADRACE_TRY_VOID(memory.open_handle(shared));
  } else if (shared.sharing == Sharing::descriptor) {
    HEADRACE_TRY_VOID(memory.map_pieces(shared));
  } else {
    return make_error(Code::invalid_argument, "the memory is not shared");
  }
  memory.address_ = memory.mapped_ + shared.offset;
  memory.bytes_ = shared.bytes;
  return memory;
}

Result<void> PeerMemory::open_handle(const SharedMemory& shared) {
  const cuda::Outcome outcome =
      device_->driver().ipc_open_mem_handle(&mapped_, shared.handle, cuda::ipc_lazy_enable_peer_access);
  if (outcome != cuda::Outcome::success) {
    mapped_ = 0;
    return cannot_open(*device_, outcome);
  }
  // How long the memory is, is what the driver says, and not what the peer says.
  HEADRACE_TRY(bytes, bytes_of_allocation(*device_, mapped_));
  mapped_bytes_ = bytes;
  if (shared.offset <= bytes && shared.bytes <= bytes - shared.offset) return {};
  return make_error(Code::corrupt, "{} bytes at offset {} exceed the {} bytes of the allocation",
                    shared.bytes, shared.offset, bytes);
}

Result<void> PeerMemory::map_pieces(const SharedMemory& shared) {
  const cuda::DriverTable& driver = device_->driver();
  std::size_t total = 0;
  for (const SharedMemory::Piece& piece : shared.pieces) total += piece.bytes;
  if (shared.offset > total || shared.bytes > total - shared.offset)
    return make_error(Code::invalid_argument,
                      "{} bytes at offset {} exceed the {} bytes of the physical allocations", shared.bytes,
                      shared.offset, total);
  HEADRACE_CUDA_TRY(driver, driver.mem_address_reserve(&mapped_, total, 0, 0, 0),
                    "reserve an address range of {} bytes on GPU {}", total, device_->ordinal());
  reserved_bytes_ = total;
  for (const SharedMemory::Piece& piece : shared.pieces) HEADRACE_TRY_VOID(map_piece(piece));
  const cuda::AccessDescription access{{cuda::LocationType::device, device_->ordinal()},
                                       cuda::AccessFlags::read_write};
  HEADRACE_CUDA_TRY(driver, driver.mem_set_access(mapped_, total, &access, 1),
                    "let GPU {} reach {} bytes of a peer's memory", device_->ordinal(), total);
  return {};
}

Result<void> PeerMemory::map_piece(const SharedMemory::Piece& piece) {
  const cuda::DriverTable& driver = device_->driver();
  cuda::PhysicalMemory memory = 0;
  void* const descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(piece.descriptor.get()));
  const cuda::Outcome imported =
      driver.mem_import_from_shareable_handle(&memory, descriptor, cuda::HandleType::file_descriptor);
  if (imported != cuda::Outcome::success) return cannot_open(*device_, imported);
  const PhysicalHold hold(driver, memory);
  HEADRACE_CUDA_TRY(driver, driver.mem_map(mapped_ + mapped_bytes_, piece.bytes, 0, hold.get(), 0),
                    "map {} bytes of a peer's memory on GPU {}", piece.bytes, device_->ordinal());
  mapped_bytes_ += piece.bytes;
  return {};
}

PeerMemory::~PeerMemory() {
  if (mapped_ == 0) return;
  const cuda::DriverTable& driver = device_->driver();
  const ContextGuard guard(*device_);
  if (reserved_bytes_ == 0) {
    (void)driver.ipc_close_mem_handle(mapped_);
    return;
  }
  if (mapped_bytes_ != 0) (void)driver.mem_unmap(mapped_, mapped_bytes_);
  (void)driver.mem_address_free(mapped_, reserved_bytes_);
}

}  // namespace headrace::gpu
