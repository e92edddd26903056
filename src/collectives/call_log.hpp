// SPDX-License-Identifier: Apache-2.0
// The calls of a communicator as lines for readers and grep.
#pragma once

#include "collectives/line_file.hpp"

#include <headrace/comm.hpp>

#include <memory>

namespace headrace::collectives {

/// Hooks that write a line for each event of a call:
///   2026-11-26T11:40:02.123456Z rank=0 comm="world" op=all_reduce number=5 event=completed count=1000
///   dtype=float32 us=41
/// (one line in the file). `us` is the time since the call was scheduled.
[[nodiscard]] CommHooks call_log(const Comm& comm, std::shared_ptr<LineFile> file);

}  // namespace headrace::collectives
