// SPDX-License-Identifier: Apache-2.0
#include "rail/cuda_ipc/copy_gpus.hpp"

#include "gpu/gpus.hpp"

#include <vector>

namespace headrace::rail::cuda_ipc {

Result<void> CopyGpus::load_locked() {
  if (!driver_) driver_ = load_();
  if (!*driver_) return driver_->error();
  return {};
}

Result<std::shared_ptr<const CopyGpu>> CopyGpus::open_locked(int ordinal) {
  HEADRACE_TRY_VOID(load_locked());
  if (const auto at = opened_.find(ordinal); at != opened_.end()) return at->second;
  HEADRACE_TRY(device, gpu::Device::open(**driver_, ordinal));
  HEADRACE_TRY(stream, gpu::Stream::make(device));
  const std::uint32_t mark = gpu::mark_of(device->info());
  auto opened = std::make_shared<const CopyGpu>(CopyGpu{std::move(device), std::move(stream), mark});
  opened_.emplace(ordinal, opened);
  return opened;
}

Result<std::shared_ptr<const CopyGpu>> CopyGpus::open(int ordinal) {
  const std::lock_guard lock(mutex_);
  return open_locked(ordinal);
}

Result<std::optional<int>> CopyGpus::find_locked(std::uint32_t mark) {
  for (const auto& [ordinal, gpu] : opened_)
    if (gpu->mark == mark) return std::optional(ordinal);
  HEADRACE_TRY(all, gpu::list_devices(**driver_));
  for (const gpu::DeviceInfo& each : all)
    if (gpu::mark_of(each) == mark) return std::optional(each.ordinal);
  return std::optional<int>();
}

Result<std::shared_ptr<const CopyGpu>> CopyGpus::like(std::uint32_t mark) {
  const std::lock_guard lock(mutex_);
  HEADRACE_TRY_VOID(load_locked());
  HEADRACE_TRY(found, find_locked(mark));
  if (found) return open_locked(*found);
  return opened_.empty() ? open_locked(0) : Result<std::shared_ptr<const CopyGpu>>(opened_.begin()->second);
}

void CopyGpus::wait_idle() {
  std::vector<std::shared_ptr<const CopyGpu>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [ordinal, gpu] : opened_) all.push_back(gpu);
  }
  for (const auto& gpu : all) static_cast<void>(gpu->stream.wait_idle());  // a GPU that failed writes nothing
}

}  // namespace headrace::rail::cuda_ipc
