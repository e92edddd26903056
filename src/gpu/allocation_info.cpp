// SPDX-License-Identifier: Apache-2.0
#include "gpu/allocation_info.hpp"

#include "base/hash.hpp"

#include <memory>
#include <span>

namespace headrace::gpu {
namespace {

using cuda::PointerAttribute;

template <class Value>
bool ask(const cuda::DriverTable& driver, PointerAttribute attribute, cuda::Address address, Value& value) {
  return driver.pointer_get_attribute(&value, attribute, address) == cuda::Outcome::success;
}

Sharing sharing_of(const cuda::DriverTable& driver, cuda::Address address) {
  unsigned managed = 0, legacy_ipc = 0;
  std::uint64_t handle_types = 0;
  if (ask(driver, PointerAttribute::is_managed, address, managed) && managed != 0) return Sharing::none;
  if (ask(driver, PointerAttribute::is_legacy_ipc_capable, address, legacy_ipc) && legacy_ipc != 0)
    return Sharing::ipc;
  const bool told = ask(driver, PointerAttribute::allowed_handle_types, address, handle_types);
  const auto descriptor = static_cast<std::uint64_t>(cuda::HandleType::file_descriptor);
  return told && (handle_types & descriptor) != 0 ? Sharing::descriptor : Sharing::none;
}

}  // namespace

Result<AllocationInfo> describe_allocation(const Device& device, cuda::Address address) {
  const cuda::DriverTable& driver = device.driver();
  const auto unknown = [address] {
    return make_error(Code::not_found, "the driver knows no memory at address {:#x}: it may have been freed",
                      address);
  };
  const ContextGuard guard(device);
  AllocationInfo info;
  unsigned long long buffer_id = 0;
  cuda::MemoryType type = cuda::MemoryType::device;
  if (!ask(driver, PointerAttribute::buffer_id, address, buffer_id) ||
      !ask(driver, PointerAttribute::device_ordinal, address, info.device) ||
      !ask(driver, PointerAttribute::memory_type, address, type))
    return unknown();
  // The driver answers attributes in any context, but the range only in a context of the memory's GPU.
  std::shared_ptr<const Device> other;
  if (info.device != device.ordinal()) {
    HEADRACE_TRY(owner, Device::open(driver, info.device));
    other = std::move(owner);
  }
  const ContextGuard of_owner(other != nullptr ? *other : device);
  if (driver.mem_get_address_range(&info.base, &info.bytes, address) != cuda::Outcome::success)
    return unknown();
  info.buffer_id = buffer_id;
  info.on_device = type == cuda::MemoryType::device;
  info.sharing = info.on_device ? sharing_of(driver, address) : Sharing::none;
  return info;
}

Result<std::size_t> bytes_of_allocation(const Device& device, cuda::Address address) {
  cuda::Address start = 0;
  std::size_t bytes = 0;
  if (ask(device.driver(), PointerAttribute::range_start, address, start) &&
      ask(device.driver(), PointerAttribute::range_size, address, bytes) && start == address)
    return bytes;
  return make_error(Code::backend_failed, "the driver does not say how long the memory at {:#x} is", address);
}

Result<std::uint64_t> identify_buffers(const Device& device, cuda::Address address, std::size_t bytes) {
  std::uint64_t all = 0;
  for (const cuda::Address end = address + bytes; address < end;) {
    HEADRACE_TRY(info, describe_allocation(device, address));
    const std::uint64_t piece[] = {info.buffer_id, info.base, info.bytes};
    all = hash64(std::as_bytes(std::span(piece)), all);
    address = info.base + info.bytes;
  }
  return all;
}

}  // namespace headrace::gpu
