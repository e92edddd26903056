// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/request.hpp"

#include <span>

namespace headrace::cuda_ipc {
namespace {

const Region& local_region(void* handle) { return *static_cast<const Region*>(handle); }
const Region& remote_region(void* handle) { return *static_cast<const RemoteRegion*>(handle)->local; }

Result<void> check_side(const headrace_side_v1& side, const Region& (*region_of)(void*),
                        const WorkingGpu& driver, bool is_target) {
  for (void* const handle : std::span(side.regions, side.region_count)) {
    const Region& region = region_of(handle);
    HEADRACE_TRY_VOID(region.check_unchanged());
    if (is_target && region.read_only())
      return make_error(Code::invalid_argument, "region {} may be read, not written", region.id());
    HEADRACE_TRY_VOID(gpu::enable_peer_access(*driver.device, *region.gpu().device));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Request>> Request::prepare(const headrace_prepare_v1& args) {
  const WorkingGpu& driver = local_region(args.local->regions[0]).gpu();
  for (void* const handle : std::span(args.local->regions, args.local->region_count))
    if (&local_region(handle).gpu() != &driver)
      return make_error(Code::not_supported,
                        "the local pages are of GPU {} and GPU {}: make a request for each GPU",
                        driver.device->ordinal(), local_region(handle).gpu().device->ordinal());
  HEADRACE_TRY_VOID(check_side(*args.local, local_region, driver, args.op == HEADRACE_READ));
  HEADRACE_TRY_VOID(check_side(*args.remote, remote_region, driver, args.op == HEADRACE_WRITE));
  HEADRACE_TRY(move, gpu::PreparedMove::prepare(
                         driver.mover, args, [](void* handle) { return local_region(handle).address(); },
                         [](void* handle) { return remote_region(handle).address(); }));
  return std::unique_ptr<Request>(new Request(args.token, driver, std::move(move)));
}

}  // namespace headrace::cuda_ipc
