// SPDX-License-Identifier: Apache-2.0
// Memory of include/headrace/c/gpu_memory.h. It is here and not in bindings/c because it writes to the log.
#include "base/log.hpp"
#include "gpu/gpus.hpp"
#include "gpu/shareable_allocations.hpp"

#include <headrace/c/gpu_memory.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace headrace {
namespace {

/// Never destroyed: torch frees its pools when the process ends.
gpu::ShareableAllocations& allocations() {
  static auto* const all =
      new gpu::ShareableAllocations([](int ordinal) -> Result<std::shared_ptr<const gpu::Device>> {
        HEADRACE_TRY(driver, gpu::GpuSource::installed().driver());
        return gpu::Device::open(driver, ordinal);
      });
  return *all;
}

/// Runs `work`, which returns Result<void>. Its error goes to the log: the caller has no place for it.
template <class Work>
void or_log(const Work& work) noexcept {
  try {
    if (const Result<void> done = work(); !done)
      Log(Logger::process_default(), "gpu").error("{}", done.error().message);
  } catch (...) {  // no memory even for the line
  }
}

}  // namespace
}  // namespace headrace

void* headrace_gpu_alloc(intptr_t bytes, int device, void* /*stream*/) {
  void* address = nullptr;
  headrace::or_log([&]() -> headrace::Result<void> {
    if (bytes < 0)
      return headrace::make_error(headrace::Code::invalid_argument, "GPU memory of {} bytes was asked for",
                                  bytes);
    HEADRACE_TRY(allocated, headrace::allocations().allocate(device, static_cast<std::size_t>(bytes)));
    address = reinterpret_cast<void*>(allocated);
    return {};
  });
  return address;
}

void headrace_gpu_free(void* address, intptr_t /*bytes*/, int /*device*/, void* /*stream*/) {
  if (address == nullptr) return;
  headrace::or_log([&] { return headrace::allocations().free(reinterpret_cast<std::uint64_t>(address)); });
}
