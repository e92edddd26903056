// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_word.hpp"

namespace headrace::gpu {

Result<std::shared_ptr<GpuWord>> GpuWord::make(const std::shared_ptr<const Device>& device,
                                               std::uint64_t first) {
  HEADRACE_TRY(memory, DeviceMemory::allocate(device, sizeof(std::uint64_t)));
  HEADRACE_TRY(stream, Stream::make(device, Priority::high));
  const cuda::Address address = memory.address();
  std::shared_ptr<GpuWord> word(new GpuWord(std::move(memory), address, std::move(stream)));
  HEADRACE_TRY_VOID(word->begin_with(first));
  return word;
}

Result<std::shared_ptr<GpuWord>> GpuWord::at(const std::shared_ptr<const Device>& device,
                                             cuda::Address address, std::uint64_t first) {
  HEADRACE_TRY(stream, Stream::make(device, Priority::high));
  std::shared_ptr<GpuWord> word(new GpuWord({}, address, std::move(stream)));
  HEADRACE_TRY_VOID(word->begin_with(first));
  return word;
}

GpuWord::~GpuWord() {
  if (memory_.bytes() == 0) static_cast<void>(stream_.wait_idle());  // a GPU that failed stores nothing
}

Result<void> GpuWord::begin_with(std::uint64_t first) {
  stored_ = first;
  HEADRACE_TRY_VOID(store(first));
  return stream_.wait_idle();
}

std::uint64_t GpuWord::stored() const {
  const std::lock_guard lock(mutex_);
  return stored_;
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
      driver, driver.stream_write_value_64(stream_.handle(), address_, value, cuda::write_value_default),
      "store a counter's word in GPU memory");
  return {};
}

}  // namespace headrace::gpu
