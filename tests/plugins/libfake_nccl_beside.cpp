// SPDX-License-Identifier: Apache-2.0
// A fake of NCCL 2.32.3 with streams, counters and failures of its own: for tests that use it beside p2p.
#define HEADRACE_FAKE_NCCL_VERSION 23203
#include "fake_nccl.hpp"
