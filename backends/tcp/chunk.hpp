// SPDX-License-Identifier: Apache-2.0
// A piece of a request that one frame carries. Chunks are cut when a socket is free to take one, never before: a request
// of ten million pages costs no more memory than one of a single page.
#pragma once

#include "backends/tcp/frame.hpp"
#include "memory/page_cursor.hpp"

#include <algorithm>
#include <cstdint>

namespace headrace::tcp {

/// Pages [from, to) of a request, `bytes` bytes together.
struct Chunk {
  PagePosition from, to;
  std::uint64_t bytes = 0;
  std::uint32_t number = 0;
};

struct ChunkLimits {
  std::uint64_t bytes = 1 << 20;
  std::uint64_t pages = max_ranges;  ///< for in the worst case each page is a range of its own
};

/// The first page from `from` on that has bytes, or the end.
inline PagePosition skip_empty_pages(const headrace_prepare_v1& request, PagePosition from) {
  if (common_page_bytes(request) != 0) return from;
  while (from.page < request.count && page_length(request, from.page) == 0) ++from.page;
  return from;
}

/// The next chunk from `from`, which lies on a page that has bytes. It ends between two pages, unless a single page is
/// longer than the limit.
inline Chunk cut_chunk(const headrace_prepare_v1& request, PagePosition from, const ChunkLimits& limits) {
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
    const std::uint64_t more = std::min({(limits.bytes - first_rest) / common, limits.pages - 1, request.count - chunk.to.page});
    chunk.to.page += more;
    chunk.bytes += more * common;
    return chunk;
  }
  for (std::uint64_t pages = 1; pages < limits.pages && chunk.to.page < request.count; ++pages) {
    const std::uint64_t length = side_length(*request.local, chunk.to.page);
    // A cursor stops at an empty page, so a chunk does too.
    if (length == 0 || length > limits.bytes - chunk.bytes) break;
    chunk.bytes += length;
    ++chunk.to.page;
  }
  return chunk;
}

}  // namespace headrace::tcp
