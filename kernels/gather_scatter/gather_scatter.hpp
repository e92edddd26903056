// SPDX-License-Identifier: Apache-2.0
// The family of kernels that move pages, and runs of any length.
#pragma once

#include "kernels/common/family.hpp"

namespace headrace::kernels::gather_scatter {

extern const Family family;

}  // namespace headrace::kernels::gather_scatter
