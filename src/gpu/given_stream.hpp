// SPDX-License-Identifier: Apache-2.0
// Streams that a caller gives: a post is queued on one, or recorded into the graph that one is captured for.
#pragma once

#include "gpu/gpus.hpp"
#include "gpu/graph_move.hpp"

#include <headrace/plugin/backend_v1.h>

#include <cstdint>

namespace headrace::gpu {

///   errors   invalid_argument (the stream is of another GPU), backend_failed
[[nodiscard]] Result<cuda::CaptureStatus> look_at_stream(const WorkingGpu& gpu, cuda::Stream stream);
/// Whether a post may be queued on it.
///   errors   those of look_at_stream, not_supported (it is being captured)
[[nodiscard]] Result<void> check_stream_of_post(const WorkingGpu& gpu, cuda::Stream stream);

/// Whether the stream is being captured; then `args` can be recorded.
///   errors   those of look_at_stream, invalid_argument (the capture has failed), not_supported (a message)
[[nodiscard]] Result<bool> is_captured(const WorkingGpu& gpu, const headrace_capture_v1& args);
/// Records the move, and before it what changes its pages.
[[nodiscard]] Result<void> record(GraphMove& move, const headrace_capture_v1& args);
/// Queues other pages for later replays.
///   errors   those of GraphMove::set_indices, invalid_argument (the stream is being captured)
[[nodiscard]] Result<void> change_indices(const WorkingGpu& gpu, GraphMove& move,
                                          const headrace_indices_v1& args);
/// Whether the replays so far moved every page.
///   errors   invalid_argument at the page: its index, which a GPU had written, was out of bounds
[[nodiscard]] Result<void> check_replays(GraphMove& move, std::int32_t op);

}  // namespace headrace::gpu
