// SPDX-License-Identifier: Apache-2.0
// The host's half of the kernel that stays.
#pragma once

#include "kernels/launch.hpp"

#include <headrace/plugin/kernels_v1.h>

#include <cstdint>

namespace headrace::kernels {

// The entry of the table.
std::int32_t run_courier(void* kernels, const headrace_courier_v1* args, void* stream);

}  // namespace headrace::kernels
