// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_word.hpp"

namespace headrace::gpu {

Result<std::shared_ptr<GpuWord>> GpuWord::make(const std::shared_ptr<const Device>& device,
                                               std::uint64_t first) {
  HEADRACE_TRY(memory, DeviceMemory::allocate(device, sizeof(std::uint64_t)));
  HEADRACE_TRY(stream, Stream::make(device, Priority::high));
  std::shared_ptr<GpuWord> word(new GpuWord(std::move(memory), std::move(stream)));
  word->stored_ = first;
  HEADRACE_TRY_VOID(word->store(first));
  HEADRACE_TRY_VOID(word->stream_.wait_idle());
  return word;
}

Result<void> GpuWord::raise_to(std::uint64_t value) {
  const std::lock_guard lock(mutex_);
  if (value <= stored_) return {};
  stored_ = value;
  return store(value);
}

Result<void> GpuWord::store(std::uint64_t value) {
  const Device& device = stream_.device();
  const cuda::DriverTable& driver = device.driver();
  const ContextGuard current(device);
  HEADRACE_CUDA_TRY(
      driver,
      driver.stream_write_value_64(stream_.handle(), memory_.address(), value, cuda::write_value_default),
      "store a counter's word in GPU memory");
  return {};
}

}  // namespace headrace::gpu
