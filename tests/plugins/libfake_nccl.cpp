// SPDX-License-Identifier: Apache-2.0
// A fake of NCCL 2.32.3.
#define HEADRACE_FAKE_NCCL_VERSION 23203
#include "fake_nccl.hpp"
