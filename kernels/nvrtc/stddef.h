// SPDX-License-Identifier: Apache-2.0
// For NVRTC, which has no headers of the system's.
#pragma once

using size_t = decltype(sizeof 0);
#define offsetof(type, member) (reinterpret_cast<size_t>(&static_cast<type*>(nullptr)->member))
