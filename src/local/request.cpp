// SPDX-License-Identifier: Apache-2.0
#include "local/request.hpp"

#include "local/copy_request.hpp"
#include "local/gpu_request.hpp"
#include "memory/page_cursor.hpp"

#include <algorithm>
#include <span>

namespace headrace::local {
namespace {

std::span<void* const> regions_of(const headrace_side_v1& side) { return {side.regions, side.region_count}; }

bool is_of_gpu(void* region) { return Handles::region(region).gpu() != nullptr; }

/// The memory is still what was registered, and a target may be written.
Result<void> check_regions(const headrace_prepare_v1& args) {
  for (const headrace_side_v1* const side : {args.local, args.remote})
    for (void* const region : regions_of(*side)) HEADRACE_TRY_VOID(Handles::region(region).check_unchanged());
  const auto closed = [](void* region) { return Handles::region(region).read_only(); };
  if (args.op == HEADRACE_READ || std::ranges::none_of(regions_of(*args.remote), closed)) return {};
  PageCursor cursor(args);
  for (PageRun run; cursor.next(run);) {
    if (!closed(run.remote_region)) continue;
    Error error = make_error(Code::invalid_argument, "page {}: region {} is registered read-only",
                             run.first_page, Handles::region(run.remote_region).id());
    error.page = run.first_page;
    return error;
  }
  return {};
}

}  // namespace

Result<Request*> Request::prepare(Instance& instance, const headrace_prepare_v1& args) {
  HEADRACE_TRY_VOID(check_regions(args));
  const bool by_gpu = std::ranges::any_of(regions_of(*args.local), is_of_gpu) ||
                      std::ranges::any_of(regions_of(*args.remote), is_of_gpu);
  if (by_gpu) {
    auto made = GpuRequest::prepare(instance, args);
    if (made) return *made;
    if (made.code() != Code::not_supported) return std::move(made).error();
    instance.host.log(HEADRACE_LOG_DEBUG, "the driver copies page by page: " + made.error().message);
  }
  return new CopyRequest(instance, args);
}

}  // namespace headrace::local
