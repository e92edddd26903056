// SPDX-License-Identifier: Apache-2.0
#include "gpu/device.hpp"

#include <array>

namespace headrace::gpu {
namespace {

using cuda::DeviceAttribute;

std::string uuid_text(const cuda::Uuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid.bytes[i]);
  }
  return text;
}

Result<DeviceInfo> describe(const cuda::DriverTable& driver, int ordinal) {
  cuda::Device device = 0;
  HEADRACE_CUDA_TRY(driver, driver.device_get(&device, ordinal), "open GPU {}", ordinal);
  DeviceInfo info;
  info.ordinal = ordinal;
  std::array<char, 256> text{};
  HEADRACE_CUDA_TRY(driver, driver.device_get_name(text.data(), text.size() - 1, device), "name of GPU {}",
                    ordinal);
  info.name = text.data();
  HEADRACE_CUDA_TRY(driver, driver.device_get_pci_bus_id(text.data(), text.size() - 1, device),
                    "PCI address of GPU {}", ordinal);
  info.pci = text.data();
  cuda::Uuid uuid{};
  HEADRACE_CUDA_TRY(driver, driver.device_get_uuid(&uuid, device), "UUID of GPU {}", ordinal);
  info.uuid = uuid_text(uuid);
  HEADRACE_CUDA_TRY(driver, driver.device_total_mem(&info.memory_bytes, device), "memory of GPU {}", ordinal);
  int descriptors = 0;
  for (const auto& [attribute, value] :
       {std::pair{DeviceAttribute::compute_capability_major, &info.major},
        std::pair{DeviceAttribute::compute_capability_minor, &info.minor},
        std::pair{DeviceAttribute::multiprocessors, &info.multiprocessors},
        std::pair{DeviceAttribute::handle_type_file_descriptor, &descriptors}})
    HEADRACE_CUDA_TRY(driver, driver.device_get_attribute(value, attribute, device), "attribute {} of GPU {}",
                      static_cast<int>(attribute), ordinal);
  info.shares_descriptors = descriptors != 0;
  return info;
}

Result<int> device_count(const cuda::DriverTable& driver) {
  int count = 0;
  HEADRACE_CUDA_TRY(driver, driver.device_get_count(&count), "count the GPUs");
  return count;
}

}  // namespace

Result<std::vector<DeviceInfo>> list_devices(const cuda::DriverTable& driver) {
  HEADRACE_TRY(count, device_count(driver));
  std::vector<DeviceInfo> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    HEADRACE_TRY(info, describe(driver, ordinal));
    devices.push_back(std::move(info));
  }
  return devices;
}

Result<int> current_device(const cuda::DriverTable& driver) {
  cuda::Context context = nullptr;
  HEADRACE_CUDA_TRY(driver, driver.ctx_get_current(&context), "find the current GPU");
  if (context == nullptr) return 0;
  cuda::Device device = 0;
  HEADRACE_CUDA_TRY(driver, driver.ctx_get_device(&device), "find the current GPU");
  return device;
}

Result<std::shared_ptr<const Device>> Device::open(const cuda::DriverTable& driver, int ordinal) {
  HEADRACE_TRY(count, device_count(driver));
  if (ordinal < 0 || ordinal >= count)
    return make_error(Code::invalid_argument, "there is no GPU {}: this process sees {}, numbered from 0",
                      ordinal, count);
  HEADRACE_TRY(info, describe(driver, ordinal));
  cuda::Context context = nullptr;
  HEADRACE_CUDA_TRY(driver, driver.device_primary_ctx_retain(&context, ordinal),
                    "open the primary context of GPU {} ({})", ordinal, info.name);
  return std::shared_ptr<const Device>(new Device(driver, std::move(info), context));
}

Device::~Device() { (void)driver_.device_primary_ctx_release(info_.ordinal); }

Result<void> Device::wait_idle() const {
  const ContextGuard guard(*this);
  HEADRACE_CUDA_TRY(driver_, driver_.ctx_synchronize(), "wait for GPU {}", ordinal());
  return {};
}

ContextGuard::ContextGuard(const Device& device) noexcept : driver_(device.driver()), outside_(driver_) {
  cuda::Context current = nullptr;
  if (driver_.ctx_get_current(&current) == cuda::Outcome::success && current == device.context()) return;
  // If this fails, the guarded call reports why.
  pushed_ = driver_.ctx_push_current(device.context()) == cuda::Outcome::success;
}

ContextGuard::~ContextGuard() {
  cuda::Context ignored = nullptr;
  if (pushed_) (void)driver_.ctx_pop_current(&ignored);
}

Result<void> enable_peer_access(const Device& device, const Device& peer) {
  if (device.ordinal() == peer.ordinal()) return {};
  const cuda::DriverTable& driver = device.driver();
  int can = 0;
  HEADRACE_CUDA_TRY(driver, driver.device_can_access_peer(&can, device.ordinal(), peer.ordinal()),
                    "ask whether GPU {} can reach GPU {}", device.ordinal(), peer.ordinal());
  if (can == 0)
    return make_error(
        Code::not_supported,
        "GPU {} ({}) cannot reach the memory of GPU {} ({}): neither NVLink nor PCIe connects them directly",
        device.ordinal(), device.info().pci, peer.ordinal(), peer.info().pci);
  const ContextGuard guard(device);
  const cuda::Outcome outcome = driver.ctx_enable_peer_access(peer.context(), 0);
  if (outcome == cuda::Outcome::success || outcome == cuda::Outcome::peer_access_already_enabled) return {};
  return cuda::driver_error(driver, outcome, "let GPU {} reach the memory of GPU {}", device.ordinal(),
                            peer.ordinal());
}

}  // namespace headrace::gpu
