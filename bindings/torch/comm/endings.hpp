// SPDX-License-Identifier: Apache-2.0
// What happens when operations end, on one thread of the process. It is not the thread that ends them: that
// one may hold locks of the communicator, which a thread that has the GIL may wait for.
#pragma once

#include <headrace/comm.hpp>

#include <functional>
#include <span>

namespace headrace::torch_group {

/// Runs the function on the thread for endings. Never blocks. After stop_endings it is dropped.
void at_endings(std::function<void()> function);
/// Runs it there when all works have ended.
void after(std::span<const Work> works, std::function<void()> function);
/// Waits for what runs, for a short time; called when the interpreter ends, without the GIL.
void stop_endings();

}  // namespace headrace::torch_group
