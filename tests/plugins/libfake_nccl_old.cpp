// SPDX-License-Identifier: Apache-2.0
// A fake of NCCL 2.20.5, which lacks functions of later versions.
#define HEADRACE_FAKE_NCCL_VERSION 22005
#include "fake_nccl.hpp"
