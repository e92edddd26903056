// SPDX-License-Identifier: Apache-2.0
// The fake driver's allocations and what it knows of pointers.
#include "support/fake_cuda/driver.hpp"

#include <cstring>

namespace headrace::cuda {

Outcome FakeDriver::mem_get_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  if (contexts.top() == nullptr) return Outcome::invalid_context;
  const Device device = contexts.top()->device;
  *total_bytes = contexts.gpu(device).memory_bytes;
  *free_bytes = *total_bytes - used_bytes(device);
  return Outcome::success;
}
Outcome FakeDriver::mem_alloc(Address* address, std::size_t bytes) {
  if (contexts.top() == nullptr) return Outcome::invalid_context;
  if (bytes == 0) return Outcome::invalid_value;
  const Device device = contexts.top()->device;
  if (used_bytes(device) + bytes > contexts.gpu(device).memory_bytes) return Outcome::out_of_memory;
  *address = pieces.allocate(bytes, Piece::Kind::device, device);
  return Outcome::success;
}
Outcome FakeDriver::mem_free(Address address) {
  if (address == 0) return Outcome::success;
  wait_for_kernels();
  return pieces.free(address, Piece::Kind::device);
}
Outcome FakeDriver::mem_host_alloc(void** address, std::size_t bytes, unsigned) {
  if (contexts.top() == nullptr) return Outcome::invalid_context;
  if (bytes == 0) return Outcome::invalid_value;
  *address = pointer(pieces.allocate(bytes, Piece::Kind::pinned, contexts.top()->device));
  return Outcome::success;
}
Outcome FakeDriver::mem_free_host(void* address) {
  return pieces.free(address_of(address), Piece::Kind::pinned);
}
Outcome FakeDriver::mem_host_register(void* address, std::size_t bytes, unsigned) {
  if (contexts.top() == nullptr) return Outcome::invalid_context;
  if (bytes == 0) return Outcome::invalid_value;
  if (pieces.with(address_of(address)) != pieces.end()) return Outcome::host_memory_already_registered;
  Piece piece;
  piece.bytes = bytes;
  piece.kind = Piece::Kind::registered;
  piece.device = contexts.top()->device;
  piece.id = ids.next();
  pieces.add(address_of(address), piece);
  return Outcome::success;
}
Outcome FakeDriver::mem_host_unregister(void* address) {
  const auto found = pieces.find(address_of(address));
  if (found == pieces.end() || found->second.kind != Piece::Kind::registered)
    return Outcome::host_memory_not_registered;
  pieces.remove(found);
  return Outcome::success;
}
Outcome FakeDriver::mem_host_get_device_pointer(Address* address, void* host, unsigned) {
  const auto found = pieces.with(address_of(host));
  if (found == pieces.end() || !found->second.is_host()) return Outcome::invalid_value;
  *address = address_of(host);
  return Outcome::success;
}
Outcome FakeDriver::mem_get_address_range(Address* base, std::size_t* bytes, Address inside) {
  const auto found = pieces.with(inside);
  // Observed on two H200: memory of another GPU is not found.
  if (found == pieces.end() || contexts.top() == nullptr || found->second.device != contexts.top()->device)
    return Outcome::not_found;
  if (base != nullptr) *base = found->first;
  if (bytes != nullptr) *bytes = found->second.bytes;
  return Outcome::success;
}

Outcome FakeDriver::pointer_get_attribute(void* value, PointerAttribute attribute, Address address) {
  const auto found = pieces.with(address);
  if (found == pieces.end()) return Outcome::invalid_value;
  const Piece& piece = found->second;
  const auto put = [&]<class T>(T what) {
    std::memcpy(value, static_cast<const void*>(&what), sizeof(T));
    return Outcome::success;
  };
  switch (attribute) {
    case PointerAttribute::context:
      return put(Context{&contexts.primary(piece.device)});
    case PointerAttribute::memory_type:
      return put(piece.is_host() ? MemoryType::host : MemoryType::device);
    case PointerAttribute::buffer_id:
      return put(static_cast<unsigned long long>(piece.id));
    case PointerAttribute::is_managed:
      return put(0u);
    case PointerAttribute::device_ordinal:
      return put(piece.device);
    case PointerAttribute::is_legacy_ipc_capable:
      return put(piece.kind == Piece::Kind::device ? 1u : 0u);
    case PointerAttribute::range_start:
      return put(found->first);
    case PointerAttribute::range_size:
      return put(piece.bytes);
    case PointerAttribute::is_mapped:
      return put(1u);
    case PointerAttribute::allowed_handle_types:
      return put(piece.physical != 0
                     ? static_cast<std::uint64_t>(physical.find(piece.physical)->properties.handle_types)
                     : std::uint64_t{0});
    default:
      return Outcome::invalid_value;
  }
}
Outcome FakeDriver::pointer_set_attribute(const void*, PointerAttribute, Address address) {
  return pieces.with(address) == pieces.end() ? Outcome::invalid_value : Outcome::success;
}

}  // namespace headrace::cuda
