// SPDX-License-Identifier: Apache-2.0
// What a device must be able to do before a model is tried on it.
#pragma once

#include <headrace/plugin/model_runtime_v1.h>

#include <c10/core/Device.h>

#include <cstddef>

namespace headrace::torch_runtime {

/// Runs check number `index`; false: there is none. A failed check says so in `check`.
[[nodiscard]] bool check_device(c10::Device device, std::size_t index, headrace_check_v1& check) noexcept;

}  // namespace headrace::torch_runtime
