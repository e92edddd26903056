// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda/physical_memory.hpp"

#include "support/fake_cuda/driver.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>

namespace headrace::cuda {
namespace {

constexpr std::size_t granularity_bytes = 65536;

/// The GPU that a file of the fake belongs to; none for other files.
std::optional<Device> device_of_file(int fd) {
  const std::string name = name_behind("/proc/self/fd/" + std::to_string(fd));
  const auto at = name.find("-gpu-");
  if (name.find("headrace-fake-cuda-") == std::string::npos || at == std::string::npos) return std::nullopt;
  return std::stoi(name.substr(at + std::strlen("-gpu-")));
}

}  // namespace

FakePhysicalMemory::~FakePhysicalMemory() {
  for (auto& [handle, memory] : allocations_) ::close(memory.fd);
  for (auto& [address, bytes] : reservations_) ::munmap(pointer(address), bytes);
}

PhysicalMemory FakePhysicalMemory::make(std::size_t bytes, const AllocationProperties& properties) {
  const PhysicalMemory memory = ids_.next();
  allocations_[memory] = {new_file(memory, bytes, properties.location.id), bytes, properties};
  return memory;
}

PhysicalMemory FakePhysicalMemory::import(int fd, std::size_t bytes, const AllocationProperties& properties) {
  const PhysicalMemory memory = ids_.next();
  allocations_[memory] = {::fcntl(fd, F_DUPFD_CLOEXEC, 0), bytes, properties};
  return memory;
}

Outcome FakePhysicalMemory::release(PhysicalMemory memory) {
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) return Outcome::invalid_value;
  if (--found->second.references == 0) {
    ::close(found->second.fd);
    allocations_.erase(found);
  }
  return Outcome::success;
}

FakePhysicalMemory::Allocation* FakePhysicalMemory::find(PhysicalMemory memory) {
  const auto found = allocations_.find(memory);
  return found == allocations_.end() ? nullptr : &found->second;
}

std::size_t FakePhysicalMemory::bytes_of(Device device) const {
  std::size_t bytes = 0;
  for (const auto& [handle, memory] : allocations_)
    if (memory.properties.location.id == device) bytes += memory.bytes;
  return bytes;
}

Address FakePhysicalMemory::reserve(std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  reservations_[address_of(at)] = bytes;
  return address_of(at);
}

bool FakePhysicalMemory::is_reservation(Address address, std::size_t bytes) const {
  const auto found = reservations_.find(address);
  return found != reservations_.end() && found->second == bytes;
}

bool FakePhysicalMemory::is_reserved(Address address, std::size_t bytes) const {
  const auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return false;
  const auto& [base, length] = *std::prev(next);
  return address + bytes <= base + length;
}

void FakePhysicalMemory::unreserve(Address address) {
  const auto found = reservations_.find(address);
  ::munmap(pointer(address), found->second);
  reservations_.erase(found);
}

// ------------------------------------------------------------------ the driver's functions

Outcome FakeDriver::mem_create(PhysicalMemory* memory, std::size_t bytes,
                               const AllocationProperties* properties, unsigned long long) {
  const Device device = properties->location.id;
  if (bytes == 0 || bytes % granularity_bytes != 0 || !contexts.is_gpu(device)) return Outcome::invalid_value;
  if (!contexts.gpu(device).virtual_memory) return Outcome::not_supported;
  if (used_bytes(device) + bytes > contexts.gpu(device).memory_bytes) return Outcome::out_of_memory;
  *memory = physical.make(bytes, *properties);
  return Outcome::success;
}
Outcome FakeDriver::mem_release(PhysicalMemory memory) { return physical.release(memory); }
Outcome FakeDriver::mem_address_reserve(Address* address, std::size_t bytes, std::size_t, Address,
                                        unsigned long long) {
  if (bytes == 0 || bytes % granularity_bytes != 0) return Outcome::invalid_value;
  *address = physical.reserve(bytes);
  return *address == 0 ? Outcome::out_of_memory : Outcome::success;
}
Outcome FakeDriver::mem_address_free(Address address, std::size_t bytes) {
  if (!physical.is_reservation(address, bytes) || pieces.any_in(address, bytes))
    return Outcome::invalid_value;
  physical.unreserve(address);
  return Outcome::success;
}
Outcome FakeDriver::mem_map(Address address, std::size_t bytes, std::size_t offset, PhysicalMemory memory,
                            unsigned long long) {
  FakePhysicalMemory::Allocation* const backing = physical.find(memory);
  if (backing == nullptr || offset != 0 || bytes != backing->bytes || !physical.is_reserved(address, bytes) ||
      pieces.with(address) != pieces.end())
    return Outcome::invalid_value;
  (void)map_file(backing->fd, bytes, address);
  Piece piece;
  piece.bytes = piece.mapped_bytes = bytes;
  piece.kind = Piece::Kind::mapped;
  piece.device = backing->properties.location.id;
  piece.id = ids.next();
  piece.physical = memory;
  piece.accessible = false;
  pieces.add(address, piece);
  ++backing->references;
  return Outcome::success;
}
Outcome FakeDriver::mem_unmap(Address address, std::size_t bytes) {
  wait_for_kernels();
  for (const Address end = address + bytes; address < end;) {
    const auto found = pieces.find(address);
    if (found == pieces.end() || found->second.kind != Piece::Kind::mapped) return Outcome::invalid_value;
    make_unreachable(address, found->second.bytes);
    address += found->second.bytes;
    (void)physical.release(found->second.physical);
    pieces.remove(found);
  }
  return Outcome::success;
}
Outcome FakeDriver::mem_set_access(Address address, std::size_t bytes, const AccessDescription* descriptions,
                                   std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const Device from = descriptions[i].location.id;
    for (Address at = address; at < address + bytes;) {
      const auto found = pieces.find(at);
      if (found == pieces.end()) return Outcome::invalid_value;
      // The error for a GPU without peer access is assumed.
      if (from != found->second.device && !contexts.can_access(from, found->second.device))
        return Outcome::not_supported;
      found->second.accessible = descriptions[i].flags != AccessFlags::none;
      at += found->second.bytes;
    }
  }
  return Outcome::success;
}
Outcome FakeDriver::mem_export_to_shareable_handle(void* handle, PhysicalMemory memory, HandleType type,
                                                   unsigned long long) {
  const FakePhysicalMemory::Allocation* const found = physical.find(memory);
  if (found == nullptr) return Outcome::invalid_value;
  if (type != HandleType::file_descriptor || found->properties.handle_types != HandleType::file_descriptor)
    return Outcome::not_supported;
  const int fd = ::fcntl(found->fd, F_DUPFD_CLOEXEC, 0);
  std::memcpy(handle, &fd, sizeof fd);
  return Outcome::success;
}
Outcome FakeDriver::mem_import_from_shareable_handle(PhysicalMemory* memory, void* handle, HandleType type) {
  if (type != HandleType::file_descriptor) return Outcome::not_supported;
  const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(handle));
  // Documented: any process may import any number of times, also the process that made the memory, and the
  // caller keeps the descriptor. Assumed: a descriptor of anything else is an invalid value.
  const std::optional<Device> device = device_of_file(fd);
  struct stat what {};
  if (!device || ::fstat(fd, &what) != 0 || what.st_size == 0) return Outcome::invalid_value;
  AllocationProperties properties;
  properties.handle_types = HandleType::file_descriptor;
  properties.location = {LocationType::device, *device};
  *memory = physical.import(fd, static_cast<std::size_t>(what.st_size), properties);
  return Outcome::success;
}
Outcome FakeDriver::mem_get_allocation_granularity(std::size_t* bytes, const AllocationProperties* properties,
                                                   Granularity) {
  if (!contexts.is_gpu(properties->location.id)) return Outcome::invalid_device;
  *bytes = granularity_bytes;
  return Outcome::success;
}
Outcome FakeDriver::mem_get_allocation_properties(AllocationProperties* properties, PhysicalMemory memory) {
  const FakePhysicalMemory::Allocation* const found = physical.find(memory);
  if (found == nullptr) return Outcome::invalid_value;
  *properties = found->properties;
  return Outcome::success;
}
Outcome FakeDriver::mem_retain_allocation_handle(PhysicalMemory* memory, void* address) {
  const auto found = pieces.with(address_of(address));
  if (found == pieces.end() || found->second.physical == 0) return Outcome::invalid_value;
  *memory = found->second.physical;
  ++physical.find(*memory)->references;
  return Outcome::success;
}

}  // namespace headrace::cuda
