// SPDX-License-Identifier: Apache-2.0
// The one pool for large host copies of a process, shared by all agents: more threads than cores would only
// take turns.
#pragma once

#include "base/worker_pool.hpp"

namespace headrace::engine {

/// One thread less than the usable cores, for the waiting thread helps; at least one. Made at first use and
/// never ended: copies may run until the process does. A forked child gets its own, for it has none of its
/// parent's threads.
WorkerPool& copy_pool();

/// How many threads that is, without starting them.
std::size_t copy_pool_threads();

}  // namespace headrace::engine
