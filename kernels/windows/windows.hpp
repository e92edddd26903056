// SPDX-License-Identifier: Apache-2.0
// The family of kernels that change words of windows and wait for them.
#pragma once

#include "kernels/common/family.hpp"

#include <headrace/plugin/kernels/windows_v1.h>

namespace headrace::kernels::windows {

extern const Family family;

}  // namespace headrace::kernels::windows
