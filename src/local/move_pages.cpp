// SPDX-License-Identifier: Apache-2.0
#include "local/move_pages.hpp"

#include "local/gpu_copies.hpp"
#include "local/region.hpp"

#include <array>
#include <utility>

namespace headrace::local {
namespace {

// Setting up a large batch costs more than few pages do.
constexpr std::size_t small_batch = 4;
constexpr std::size_t large_batch = 512;
constexpr std::uint64_t prefetch_below_bytes = 32 * 1024;  // longer runs hide the first misses by themselves

/// One end of a run.
struct End {
  const Region* region;
  std::uint64_t offset;

  [[nodiscard]] std::byte* address() const { return bytes_of(*region) + offset; }
};

struct Ends {
  End to, from;

  [[nodiscard]] bool of_gpu() const { return to.region->gpu() != nullptr || from.region->gpu() != nullptr; }
};

Ends ends_of(const PageRun& run, std::int32_t op) {
  const End near{&Handles::region(run.local_region), run.local_offset};
  const End far{&Handles::remote(run.remote_region), run.remote_offset};
  return op == HEADRACE_READ ? Ends{near, far} : Ends{far, near};
}

/// The two sides may be one memory.
void copy_run(std::byte* to, const std::byte* from, std::uint64_t bytes, CopyMode mode) {
  const auto target = reinterpret_cast<std::uintptr_t>(to), source = reinterpret_cast<std::uintptr_t>(from);
  if (target < source + bytes && source < target + bytes) {
    std::memmove(to, from, bytes);
  } else {
    copy_bytes(to, from, bytes, mode);
  }
}

void prefetch(const Ends& next, CopyMode mode) {
  if (next.of_gpu()) return;
  prefetch_source(next.from.address());
  if (mode == CopyMode::cached) prefetch_target(next.to.address());
}

template <std::size_t N>
Result<void> move_in_batches(const Move& move, PagePosition from, PagePosition to) {
  const std::int32_t op = move.request->op;
  PageCursor cursor(*move.request, from, to);
  std::array<PageRun, N> runs;
  GpuCopies by_gpu;
  bool stopped = false;
  while (const std::size_t count = cursor.fill(runs)) {
    stopped = move.stop->load(std::memory_order_relaxed);
    if (stopped) break;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bytes = runs[i].bytes;
      const Ends ends = ends_of(runs[i], op);
      if (bytes < prefetch_below_bytes && i + 1 < count) prefetch(ends_of(runs[i + 1], op), move.mode);
      if (ends.of_gpu()) {
        by_gpu.add(*ends.to.region, ends.to.offset, *ends.from.region, ends.from.offset, bytes);
      } else {
        copy_run(ends.to.address(), ends.from.address(), bytes, move.mode);
      }
    }
  }
  if (move.mode == CopyMode::streaming) finish_streaming();
  auto waited = by_gpu.wait();
  if (waited && stopped) return Error{Code::canceled, "canceled"};
  return waited;
}

}  // namespace

Result<void> move_pages(const Move& move, PagePosition from, PagePosition to) {
  if (to.page - from.page < small_batch && move.request->grid == nullptr)
    return move_in_batches<small_batch>(move, from, to);
  return move_in_batches<large_batch>(move, from, to);
}

const std::byte* first_target(const headrace_prepare_v1& request, PagePosition from, PagePosition to) {
  PageCursor cursor(request, from, to);
  PageRun run;
  if (!cursor.next(run)) return nullptr;
  const End target = ends_of(run, request.op).to;
  return target.region->gpu() != nullptr ? nullptr : target.address();
}

}  // namespace headrace::local
