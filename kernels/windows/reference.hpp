// SPDX-License-Identifier: Apache-2.0
// What the kernels of this folder do, on the CPU: by the same atomic instructions on words of host memory.
#pragma once

#include "kernels/common/reference.hpp"

#include <headrace/plugin/kernels/windows_v1.h>

namespace headrace::kernels::windows {

extern const reference::Family reference_family;

}  // namespace headrace::kernels::windows
