// SPDX-License-Identifier: Apache-2.0
// What the kernels of this folder do, on the CPU. Words of boxes are read with acquire and written with
// release as on the GPU, so ranks may run on threads of their own.
#pragma once

#include "kernels/common/reference.hpp"

namespace headrace::kernels::collectives {

extern const reference::Family reference_family;

}  // namespace headrace::kernels::collectives
