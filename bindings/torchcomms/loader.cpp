// SPDX-License-Identifier: Apache-2.0
// The symbols by which torchcomms finds the backend.
#include "bindings/torch/comm/endings.hpp"
#include "bindings/torchcomms/comm.hpp"

#include <comms/torchcomms/TorchCommFactory.hpp>

#include <string_view>

namespace tc = ::torch::comms;

namespace {

using headrace::torchcomms_backend::HeadraceTorchComm;

constexpr const char* abi_version = "1.3";
static_assert(std::string_view(tc::TORCHCOMM_BACKEND_ABI_VERSION) == abi_version,
              "torchcomms has another ABI of backends than this one is written for, 1.3");

}  // namespace

extern "C" {

HEADRACE_API tc::DynamicLoaderInterface create_dynamic_loader_headrace() {
  return {
      .new_comm = []() -> tc::TorchCommBackend* { return new HeadraceTorchComm; },
      .destroy_comm = [](tc::TorchCommBackend* comm) { delete comm; },
      .get_supported_version = [] { return abi_version; },
  };
}

/// Makes this the backend of another name, unless the process has one of that name: of "gloo", for programs
/// that name it.
HEADRACE_API void headrace_torchcomms_serve(const char* name) {
  tc::TorchCommFactory::get().register_backend(name, [] { return std::make_shared<HeadraceTorchComm>(); });
}

/// Ends what runs on threads of this library, before the interpreter does. Without the GIL.
HEADRACE_API void headrace_torchcomms_stop() { headrace::torch_group::stop_endings(); }

}  // extern "C"
