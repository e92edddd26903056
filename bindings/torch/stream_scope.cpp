// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/stream_scope.hpp"

#include <headrace/plugin/model_runtime_v1.h>

#include <ATen/Context.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <dlfcn.h>

namespace headrace::torch_runtime {
namespace {

/// The functions with which compiled packages change streams: two functions of torch's C interface, which a
/// torch for CPUs lacks. With them no header of CUDA is needed, nor torch's own encoding of a foreign stream.
struct StreamGuards {
  std::int32_t (*create)(void* stream, std::int32_t device_index, void** guard) = nullptr;
  std::int32_t (*destroy)(void* guard) = nullptr;

  static const StreamGuards& get() {
    static const StreamGuards found = [] {
      StreamGuards guards;
      const auto bind = [](const char* symbol, auto& function) {
        function =
            reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(RTLD_DEFAULT, symbol));
      };
      bind("aoti_torch_create_cuda_stream_guard", guards.create);
      bind("aoti_torch_delete_cuda_stream_guard", guards.destroy);
      return guards;
    }();
    return found;
  }
};

}  // namespace

StreamScope::StreamScope(c10::Device device, void* stream) : device_(device) {
  if (device.is_cpu()) return;
  at::globalContext().lazyInitDevice(device.type());
  guard_.emplace(device);
  if (stream == HEADRACE_MODEL_CURRENT_STREAM) return;
  const StreamGuards& guards = StreamGuards::get();
  TORCH_CHECK(
      guards.create != nullptr && guards.destroy != nullptr,
      "this torch lacks aoti_torch_create_cuda_stream_guard: it runs models only on its current stream");
  TORCH_CHECK(guards.create(stream, device.index(), &stream_guard_) == 0, "torch does not accept the stream ",
              stream, " for ", device, ": pass a stream of that device");
}

StreamScope::~StreamScope() {
  if (stream_guard_ != nullptr) (void)StreamGuards::get().destroy(stream_guard_);
}

void StreamScope::synchronize() const {
  if (device_.is_cpu()) return;
  const auto* const gpus = c10::impl::getDeviceGuardImpl(device_.type());
  gpus->synchronizeStream(gpus->getStream(device_));
}

}  // namespace headrace::torch_runtime
