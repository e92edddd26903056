// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/page_copy.hpp"

#include <fmt/format.h>

#include <cstring>

namespace headrace::fake {
namespace {

constexpr std::uint64_t run_bytes = 256 << 10;  // copied between two looks at cancel

}  // namespace

Outcome PageCopy::run() {
  Outcome outcome = check();
  if (outcome.status.ok()) outcome = copy();
  if (outcome.status.ok() && request_.mishap.duplicate) outcome = copy();
  return outcome;
}

/// Looks at every remote range before the first byte moves, as an owner does with the header of a write.
Outcome PageCopy::check() {
  const RemoteRegion* last = nullptr;
  std::shared_ptr<Region> region;
  for (std::uint64_t page = 0; page < request_.args.count; ++page) {
    const RemoteRegion& remote = Handles::remote(side_region(*request_.args.remote, page));
    if (&remote != last) region = find(remote);
    last = &remote;
    if (!region) return gone_at(page, remote);
    Outcome outcome = check_page(page, *region);
    if (!outcome.status.ok()) return outcome;
  }
  return {};
}

Outcome PageCopy::check_page(std::uint64_t page, const Region& region) const {
  const Status refused{Code::invalid_argument, 0, page};
  if (request_.args.op == HEADRACE_WRITE && !region.writable)
    return {refused, fmt::format("page {}: region {} is registered read-only", page, region.id)};
  const std::uint64_t offset = offset_of(request_.args.remote->columns, page);
  const std::uint64_t bytes = remote_extent(request_.args, page);
  if (offset <= region.length && bytes <= region.length - offset) return {};
  return {refused, fmt::format("page {}: {} bytes at {} reach beyond region {}, which has {}", page, bytes,
                               offset, region.id, region.length)};
}

Outcome PageCopy::copy() {
  const Stop end = stop();
  PageCursor cursor(request_.args, {0, 0}, end.at, run_bytes);
  PageRun run;
  while (cursor.next(run)) {
    if (request_.cancel)
      return {{Code::canceled, 0, run.first_page}, fmt::format("canceled at page {}", run.first_page)};
    if (link_broken()) return broken_at(run.first_page);
    Outcome outcome = move(run);
    if (!outcome.status.ok()) return outcome;
  }
  return end.outcome;
}

/// The owner is asked again for each run: a region that it gave up meanwhile is not touched.
Outcome PageCopy::move(const PageRun& run) {
  const RemoteRegion& handle = Handles::remote(run.remote_region);
  const std::shared_ptr<Region> region = find(handle);
  if (!region) return gone_at(run.first_page, handle);
  const std::shared_lock together(region->gate);
  if (region->gone) return gone_at(run.first_page, handle);
  std::byte* const local = Handles::region(run.local_region).base + run.local_offset;
  std::byte* const remote = region->base + run.remote_offset;
  const bool reads = request_.args.op == HEADRACE_READ;
  std::memmove(reads ? local : remote, reads ? remote : local, run.bytes);
  return {};
}

PageCopy::Stop PageCopy::stop() const {
  const headrace_prepare_v1& args = request_.args;
  const Mishap& mishap = request_.mishap;
  if (mishap.partial_bytes && *mishap.partial_bytes < args.bytes) {
    const PagePosition at = position_at_byte(args, *mishap.partial_bytes);
    return {at,
            {{Code::backend_failed, 0, at.page},
             fmt::format("the fault script stopped the copy after {} bytes", *mishap.partial_bytes)}};
  }
  if (mishap.kill_page && request_.link && *mishap.kill_page < args.count) {
    const std::uint64_t page = *mishap.kill_page;
    return {{page, 0},
            {{Code::peer_lost, 0, page}, fmt::format("the fault script killed the link at page {}", page)}};
  }
  return {{args.count, 0}, {}};
}

std::shared_ptr<Region> PageCopy::find(const RemoteRegion& remote) {
  const Lock lock(network_.mutex);
  return remote.find();
}

bool PageCopy::link_broken() const {
  return request_.link && request_.link->broken.load(std::memory_order_acquire);
}

Outcome PageCopy::broken_at(std::uint64_t page) const {
  const LinkEnd& link = *request_.link;
  return {{link.lost_status.code, link.lost_status.os_error, page}, link.lost_text};
}

/// Its owner gave the region up, or went and took the link along.
Outcome PageCopy::gone_at(std::uint64_t page, const RemoteRegion& remote) const {
  if (link_broken()) return broken_at(page);
  return {{Code::not_found, 0, page},
          fmt::format("page {}: its owner does not have region {} any more", page, remote.region_id)};
}

}  // namespace headrace::fake
