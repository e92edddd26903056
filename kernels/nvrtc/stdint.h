// SPDX-License-Identifier: Apache-2.0
// For NVRTC, which has no headers of the system's: the types as Linux has them on 64-bit machines.
#pragma once

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
