// SPDX-License-Identifier: Apache-2.0
// The sizes in which kernels move bytes, for device code and for the host's half.
//
// What limits a copy over NVLink or PCIe is the number of bytes in flight: each lane issues `page_unroll`
// loads of 16 bytes before its first store, so a warp has 4 KiB in flight. A tile is what a warp moves in one
// such step.
#pragma once

namespace headrace::kernels {

inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned vector_bytes = 16;
inline constexpr unsigned row_bytes = warp_lanes * vector_bytes;  // one vector of every lane
inline constexpr unsigned page_unroll = 8;                        // the best value that was measured
inline constexpr unsigned tile_bytes = page_unroll * row_bytes;

// One block of this size fills a multiprocessor's load queues, and blocks go to multiprocessors one by one:
// so a budget of multiprocessors is a number of blocks.
inline constexpr unsigned page_threads = 512;

}  // namespace headrace::kernels
