// SPDX-License-Identifier: Apache-2.0
#include "vendor/hip/runtime.hpp"

#include <dlfcn.h>

#include <array>

namespace headrace::hip {
namespace {

using cuda::DriverTable;
using cuda::Outcome;

/// The library of ROCm 7, of 6, of 5, and of a development package.
constexpr std::array files{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};

/// A function that HIP does not have, or that nothing here calls.
template <class... Arguments>
void refuse(Outcome (*&function)(Arguments...)) {
  function = [](Arguments...) { return Outcome::not_supported; };
}

Outcome no_attribute(int* value, cuda::DeviceAttribute, cuda::Device) {
  *value = 0;
  return Outcome::success;
}

Result<void> start(const DriverTable& table) {
  Outcome outcome = table.init(0);
  int count = 0;
  if (outcome == Outcome::success) outcome = table.device_get_count(&count);
  if (outcome == Outcome::no_device || (outcome == Outcome::success && count == 0))
    return make_error(Code::not_supported,
                      "the HIP runtime finds no GPU: HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES may hide "
                      "them, or the container was started without /dev/kfd and /dev/dri");
  if (outcome != Outcome::success)
    return make_error(Code::backend_failed, "the HIP runtime does not start: {}",
                      cuda::outcome_text(table, outcome));
  return {};
}

}  // namespace

Result<DriverTable> load_runtime() {
  void* library = nullptr;
  for (const char* const file : files)
    if (library == nullptr) library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    return make_error(Code::not_supported,
                      "no HIP runtime: libamdhip64.so could not be loaded ({}). Install ROCm 5.5 or newer",
                      reason == nullptr ? "no reason given" : reason);
  }
  return bind_runtime([library](const char* name) { return ::dlsym(library, name); });
}

Result<DriverTable> bind_runtime(const std::function<void*(const char*)>& lookup) {
  DriverTable table;
#define HEADRACE_HIP_REFUSE(member, ...) refuse(table.member);
  HEADRACE_CUDA_FUNCTIONS(HEADRACE_HIP_REFUSE)
#undef HEADRACE_HIP_REFUSE
  table.device_get_attribute = no_attribute;
#define HEADRACE_HIP_BIND(member, symbol)                                                                   \
  table.member = reinterpret_cast<decltype(table.member)>(lookup(symbol));                                  \
  if (table.member == nullptr)                                                                              \
    return make_error(Code::not_supported, "the HIP runtime has no function {}: install ROCm 5.5 or newer", \
                      symbol);
  HEADRACE_HIP_FUNCTIONS(HEADRACE_HIP_BIND)
#undef HEADRACE_HIP_BIND
  HEADRACE_TRY_VOID(start(table));
  return table;
}

}  // namespace headrace::hip
