// SPDX-License-Identifier: Apache-2.0
// The family of the kernel that stays.
#pragma once

#include "kernels/common/family.hpp"

namespace headrace::kernels::courier {

extern const Family family;

}  // namespace headrace::kernels::courier
