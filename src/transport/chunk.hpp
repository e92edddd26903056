// SPDX-License-Identifier: Apache-2.0
// A piece of a request that travels as one: a frame, a few work requests of a queue pair. Chunks are cut when
// a path is free to take one, never before: a request of ten million pages costs no more memory than one of a
// single page.
#pragma once

#include "memory/page_cursor.hpp"

#include <algorithm>
#include <cstdint>

namespace headrace::transport {

/// Pages [from, to) of a request, `bytes` bytes together.
struct Chunk {
  PagePosition from, to;
  std::uint64_t bytes = 0;
  std::uint32_t number = 0;
};

struct ChunkLimits {
  std::uint64_t bytes;
  std::uint64_t ranges;  ///< in the worst case each page, or each run of one, is a range of its own
};

/// The first page from `from` on that has bytes, or the end.
inline PagePosition skip_empty_pages(const headrace_prepare_v1& request, PagePosition from) {
  if (common_page_bytes(request) != 0) return from;
  while (from.page < request.count && page_length(request, from.page) == 0) ++from.page;
  return from;
}

/// How many ranges a chunk has at most.
inline std::uint64_t most_ranges(const headrace_prepare_v1& request, const Chunk& chunk) {
  const headrace_page_grid_v1* const grid = request.grid;
  if (grid == nullptr) return chunk.to.page - chunk.from.page + (chunk.to.skip > 0 ? 1 : 0);
  return (chunk.from.skip % grid->run_bytes + chunk.bytes + grid->run_bytes - 1) / grid->run_bytes;
}

/// Of pages that are grids: ends between two runs, unless a single run is longer than the limit.
inline Chunk cut_runs(const headrace_prepare_v1& request, PagePosition from, const ChunkLimits& limits) {
  const std::uint64_t run_bytes = request.grid->run_bytes, into = from.skip % run_bytes;
  // Counted in runs from the one on that `from` lies in, so that nothing overflows.
  const std::uint64_t runs_left = (request.count - from.page) * request.grid->runs - from.skip / run_bytes;
  const std::uint64_t fitting = std::min((limits.bytes + into) / run_bytes, limits.ranges);
  Chunk chunk{from, from, limits.bytes, 0};  // as much of one run
  if (fitting > 0) chunk.bytes = std::min(fitting, runs_left) * run_bytes - into;
  chunk.to = position_at_byte(request, chunk.bytes, from);
  return chunk;
}

/// The next chunk from `from`, which lies on a page that has bytes. It ends between two pages, unless a
/// single page is longer than the limit.
inline Chunk cut_chunk(const headrace_prepare_v1& request, PagePosition from, const ChunkLimits& limits) {
  if (request.grid != nullptr) return cut_runs(request, from, limits);
  Chunk chunk{from, from, 0, 0};
  const std::uint64_t common = common_page_bytes(request);
  const std::uint64_t first_rest = page_length(request, from.page) - from.skip;
  if (first_rest > limits.bytes) {
    chunk.to.skip += limits.bytes;
    chunk.bytes = limits.bytes;
    return chunk;
  }
  chunk.to = {from.page + 1, 0};
  chunk.bytes = first_rest;
  if (common != 0) {
    const std::uint64_t more =
        std::min({(limits.bytes - first_rest) / common, limits.ranges - 1, request.count - chunk.to.page});
    chunk.to.page += more;
    chunk.bytes += more * common;
    return chunk;
  }
  for (std::uint64_t pages = 1; pages < limits.ranges && chunk.to.page < request.count; ++pages) {
    const std::uint64_t length = length_of(request.local->columns, chunk.to.page);
    // A cursor stops at an empty page, so a chunk does too.
    if (length == 0 || length > limits.bytes - chunk.bytes) break;
    chunk.bytes += length;
    ++chunk.to.page;
  }
  return chunk;
}

}  // namespace headrace::transport
