// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpus.hpp"

#include "base/hash.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>

namespace headrace::gpu {

GpuSource GpuSource::installed() {
  return {[] { return cuda::load_driver(); }, [] { return KernelLibrary::load(); }};
}

bool is_in_sight() {
  constexpr std::array devices = {"/dev/nvidiactl", "/dev/dxg", "/dev/nvmap"};
  return std::ranges::any_of(devices, [](const char* path) { return ::access(path, F_OK) == 0; });
}

std::uint32_t mark_of(const DeviceInfo& gpu) {
  return static_cast<std::uint32_t>(hash64(std::as_bytes(std::span(gpu.uuid))));
}

Result<std::shared_ptr<const WorkingGpu>> Gpus::open(int ordinal) {
  const std::scoped_lock lock(mutex_);
  const auto known = opened_.find(ordinal);
  if (known != opened_.end()) return known->second;
  return opened_.emplace(ordinal, start(ordinal)).first->second;
}

std::optional<int> Gpus::only_one() const {
  const std::scoped_lock lock(mutex_);
  return opened_.size() == 1 ? std::optional(opened_.begin()->first) : std::nullopt;
}

Result<std::shared_ptr<const WorkingGpu>> Gpus::like(std::uint32_t mark) {
  if (const auto ordinal = find(mark)) return open(*ordinal);
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [ordinal, gpu] : opened_)
      if (gpu) return gpu;
  }
  return open(0);
}

void Gpus::wait_idle() const {
  std::vector<std::shared_ptr<const WorkingGpu>> all;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [ordinal, gpu] : opened_)
      if (gpu) all.push_back(*gpu);
  }
  for (const auto& gpu : all) static_cast<void>(gpu->stream.wait_idle());  // one that failed writes nothing
}

std::optional<int> Gpus::find(std::uint32_t mark) {
  const std::scoped_lock lock(mutex_);
  if (!driver_) driver_.emplace(source_.driver());
  if (!*driver_) return {};
  if (seen_.empty()) {
    if (auto listed = list_devices(**driver_)) seen_ = std::move(*listed);
  }
  const auto found = std::ranges::find(seen_, mark, mark_of);
  return found == seen_.end() ? std::nullopt : std::optional(found->ordinal);
}

Result<std::shared_ptr<const WorkingGpu>> Gpus::start(int ordinal) {
  if (!driver_) driver_.emplace(source_.driver());
  if (!*driver_) return driver_->error();
  HEADRACE_TRY(device, Device::open(**driver_, ordinal));
  if (!kernels_) kernels_.emplace(source_.kernels());
  if (!*kernels_) return kernels_->error();
  HEADRACE_TRY(kernels, Kernels::open(**kernels_, device));
  HEADRACE_TRY(mover, Mover::make(std::move(kernels), settings_));
  HEADRACE_TRY(stream, Stream::make(device, Priority::high));
  return std::shared_ptr<const WorkingGpu>(
      new WorkingGpu{std::move(device), std::move(mover), std::move(stream)});
}

}  // namespace headrace::gpu
