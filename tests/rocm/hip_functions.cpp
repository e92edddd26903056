// SPDX-License-Identifier: Apache-2.0
// The functions of HIP that GpuDriver looks up by name, compared with HIP's own header. tools/check_rocm.py
// compiles this file; it is never run.
#include "bindings/torch/gpu_driver.hpp"

#include <hip/hip_runtime_api.h>

#include <type_traits>

namespace {

using headrace::torch_runtime::GpuDriver;

template <class Ours, class Theirs>
constexpr bool alike = sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
template <class Ours, class Theirs>
struct SameShape : std::false_type {};
template <class OurResult, class... Ours, class TheirResult, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameShape<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<sizeof(OurResult) == sizeof(TheirResult) && (alike<Ours, Theirs> && ...)> {};

// For an overloaded name this checks the C function, which the library exports under the plain name.
#define HEADRACE_SAME_FUNCTION(member, ...) \
  static_assert(SameShape<decltype(GpuDriver::member), decltype(&(__VA_ARGS__))>::value, #__VA_ARGS__)
HEADRACE_SAME_FUNCTION(init, hipInit);
HEADRACE_SAME_FUNCTION(device, hipDeviceGet);
HEADRACE_SAME_FUNCTION(name, hipDeviceGetName);
HEADRACE_SAME_FUNCTION(memory, hipDeviceTotalMem);
HEADRACE_SAME_FUNCTION(get_current, hipGetDevice);
HEADRACE_SAME_FUNCTION(set_current, hipSetDevice);
HEADRACE_SAME_FUNCTION(free_memory, hipMemGetInfo);
static_assert(hipSuccess == 0);

}  // namespace
