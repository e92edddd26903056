// SPDX-License-Identifier: Apache-2.0
// The fake driver's start, its GPUs and contexts, and its words for outcomes.
#include "support/fake_cuda/driver.hpp"

#include <cstdio>
#include <map>

namespace headrace::cuda {

Outcome FakeDriver::init(unsigned) {
  return contexts.gpu_count() == 0 ? Outcome::no_device : Outcome::success;
}
Outcome FakeDriver::driver_get_version(int* out) {
  *out = version;
  return Outcome::success;
}
Outcome FakeDriver::get_error_name(Outcome outcome, const char** text) {
  static const std::map<Outcome, const char*> names{
      {Outcome::success, "CUDA_SUCCESS"},
      {Outcome::invalid_value, "CUDA_ERROR_INVALID_VALUE"},
      {Outcome::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {Outcome::no_device, "CUDA_ERROR_NO_DEVICE"},
      {Outcome::invalid_device, "CUDA_ERROR_INVALID_DEVICE"},
      {Outcome::invalid_image, "CUDA_ERROR_INVALID_IMAGE"},
      {Outcome::no_binary_for_gpu, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {Outcome::peer_access_unsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
      {Outcome::illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {Outcome::not_supported, "CUDA_ERROR_NOT_SUPPORTED"},
      {Outcome::system_driver_mismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
      {Outcome::unknown, "CUDA_ERROR_UNKNOWN"}};
  const auto found = names.find(outcome);
  *text = found == names.end() ? "CUDA_ERROR_OF_THE_FAKE" : found->second;
  return Outcome::success;
}
Outcome FakeDriver::get_error_string(Outcome outcome, const char** text) {
  static const std::map<Outcome, const char*> words{
      {Outcome::out_of_memory, "out of memory"},
      {Outcome::invalid_value, "invalid argument"},
      {Outcome::invalid_image, "device kernel image is invalid"},
      {Outcome::no_binary_for_gpu, "no kernel image is available for execution on the device"},
      {Outcome::system_driver_mismatch, "system has unsupported display driver / cuda driver combination"}};
  const auto found = words.find(outcome);
  *text = found == words.end() ? "scripted failure" : found->second;
  return Outcome::success;
}
Outcome FakeDriver::device_get_count(int* count) {
  *count = contexts.gpu_count();
  return Outcome::success;
}
Outcome FakeDriver::device_get(Device* device, int ordinal) {
  if (!contexts.is_gpu(ordinal)) return Outcome::invalid_device;
  *device = ordinal;
  return Outcome::success;
}
Outcome FakeDriver::device_get_name(char* name, int capacity, Device device) {
  if (!contexts.is_gpu(device)) return Outcome::invalid_device;
  std::snprintf(name, static_cast<std::size_t>(capacity), "%s", contexts.gpu(device).name.c_str());
  return Outcome::success;
}
Outcome FakeDriver::device_get_uuid(Uuid* uuid, Device device) {
  if (!contexts.is_gpu(device)) return Outcome::invalid_device;
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<unsigned char>(16 * (device + 1) + i);
  return Outcome::success;
}
Outcome FakeDriver::device_get_attribute(int* value, DeviceAttribute attribute, Device device) {
  if (!contexts.is_gpu(device)) return Outcome::invalid_device;
  const FakeGpu& gpu = contexts.gpu(device);
  switch (attribute) {
    case DeviceAttribute::multiprocessors:
      *value = gpu.multiprocessors;
      break;
    case DeviceAttribute::compute_capability_major:
      *value = gpu.major;
      break;
    case DeviceAttribute::compute_capability_minor:
      *value = gpu.minor;
      break;
    case DeviceAttribute::virtual_memory_management:
    case DeviceAttribute::handle_type_file_descriptor:
      *value = gpu.virtual_memory ? 1 : 0;
      break;
    case DeviceAttribute::unified_addressing:
    case DeviceAttribute::can_map_host_memory:
      *value = 1;
      break;
    case DeviceAttribute::async_engines:
      *value = 3;
      break;
    case DeviceAttribute::max_threads_per_block:
      *value = 1024;
      break;
    case DeviceAttribute::pci_bus:
      *value = device + 1;
      break;
    default:
      *value = 0;
      break;
  }
  return Outcome::success;
}
Outcome FakeDriver::device_total_mem(std::size_t* bytes, Device device) {
  if (!contexts.is_gpu(device)) return Outcome::invalid_device;
  *bytes = contexts.gpu(device).memory_bytes;
  return Outcome::success;
}
Outcome FakeDriver::device_get_pci_bus_id(char* text, int capacity, Device device) {
  if (!contexts.is_gpu(device)) return Outcome::invalid_device;
  std::snprintf(text, static_cast<std::size_t>(capacity), "0000:%02x:00.0", device + 1);
  return Outcome::success;
}
Outcome FakeDriver::device_can_access_peer(int* can, Device device, Device peer) {
  if (!contexts.is_gpu(device) || !contexts.is_gpu(peer)) return Outcome::invalid_device;
  *can = device != peer && contexts.can_access(device, peer) ? 1 : 0;
  return Outcome::success;
}
Outcome FakeDriver::device_primary_ctx_retain(Context* context, Device device) {
  if (!contexts.is_gpu(device)) return Outcome::invalid_device;
  *context = &contexts.primary(device);
  ++(*context)->retained;
  return Outcome::success;
}
Outcome FakeDriver::device_primary_ctx_release(Device device) {
  if (!contexts.is_gpu(device)) return Outcome::invalid_device;
  ContextObject& context = contexts.primary(device);
  if (context.retained == 0) return Outcome::invalid_context;
  if (--context.retained == 0) context.broken = Outcome::success;
  return Outcome::success;
}
Outcome FakeDriver::ctx_get_device(Device* device) {
  if (contexts.top() == nullptr) return Outcome::invalid_context;
  *device = contexts.top()->device;
  return Outcome::success;
}
Outcome FakeDriver::ctx_get_current(Context* context) {
  *context = contexts.top();
  return Outcome::success;
}
Outcome FakeDriver::ctx_set_current(Context context) {
  auto& stack = contexts.stack();
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
  return Outcome::success;
}
Outcome FakeDriver::ctx_push_current(Context context) {
  if (context == nullptr || context->retained == 0) return Outcome::invalid_context;
  contexts.stack().push_back(context);
  return Outcome::success;
}
Outcome FakeDriver::ctx_pop_current(Context* context) {
  auto& stack = contexts.stack();
  if (stack.empty()) return Outcome::invalid_context;
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
  return Outcome::success;
}
Outcome FakeDriver::ctx_synchronize() {
  ContextObject* const context = contexts.top();
  if (context == nullptr) return Outcome::invalid_context;
  wait_for([&] { return streams.is_idle(context); });
  return context->broken;
}
Outcome FakeDriver::ctx_enable_peer_access(Context peer, unsigned) {
  ContextObject* const context = contexts.top();
  if (context == nullptr || peer == nullptr) return Outcome::invalid_context;
  if (context == peer) return Outcome::invalid_device;
  if (!contexts.can_access(context->device, peer->device)) return Outcome::peer_access_unsupported;
  return contexts.enable_access(context->device, peer->device) ? Outcome::success
                                                               : Outcome::peer_access_already_enabled;
}

}  // namespace headrace::cuda
