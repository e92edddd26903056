// SPDX-License-Identifier: Apache-2.0
// Dispatch and combine on the CPU: what the fake driver runs.
#pragma once

#include "kernels/common/reference.hpp"

namespace headrace::kernels::moe {

extern constinit const reference::Family reference_family;

}  // namespace headrace::kernels::moe
