// SPDX-License-Identifier: Apache-2.0
#include "local/gpu_copies.hpp"

namespace headrace::local {

void GpuCopies::add(const Region& to_region, std::uint64_t to_offset, const Region& from_region,
                    std::uint64_t from_offset, std::uint64_t bytes) {
  if (gpu_ == nullptr) gpu_ = to_region.gpu() != nullptr ? to_region.gpu() : from_region.gpu();
  if (outcome_ != cuda::Outcome::success) return;
  const gpu::ContextGuard current(*gpu_->device);
  outcome_ = gpu_->device->driver().memcpy_async(
      to_region.address() + to_offset, from_region.address() + from_offset, bytes, gpu_->stream.handle());
}

Result<void> GpuCopies::wait() {
  if (gpu_ == nullptr) return {};
  const gpu::ContextGuard current(*gpu_->device);
  auto waited = gpu_->stream.wait_idle();
  if (outcome_ == cuda::Outcome::success) return waited;
  return cuda::driver_error(gpu_->device->driver(), outcome_, "copy memory of GPU {}",
                            gpu_->device->ordinal());
}

}  // namespace headrace::local
