// SPDX-License-Identifier: Apache-2.0
#include "local/gpu_request.hpp"

#include "base/clock.hpp"
#include "gpu/given_stream.hpp"
#include "gpu/path_speed.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace headrace::local {
namespace {

std::span<void* const> handles_of(const headrace_side_v1& side) { return {side.regions, side.region_count}; }

const gpu::WorkingGpu* gpu_of(void* region) { return Handles::region(region).gpu(); }

gpu::Touches touched_by(const headrace_prepare_v1& args) {
  const auto of_gpu = [](void* region) { return gpu_of(region) != nullptr; };
  const bool gpus_alone = std::ranges::all_of(handles_of(*args.local), of_gpu) &&
                          std::ranges::all_of(handles_of(*args.remote), of_gpu);
  return gpus_alone ? gpu::Touches::gpus : gpu::Touches::host;
}

/// The GPU whose memory the local pages are; if they are the host's, the first GPU of the far side.
Result<const gpu::WorkingGpu*> driver_of(const headrace_prepare_v1& args) {
  const gpu::WorkingGpu* driver = nullptr;
  for (void* const region : handles_of(*args.local)) {
    const gpu::WorkingGpu* const gpu = gpu_of(region);
    if (driver != nullptr && gpu != nullptr && gpu != driver)
      return make_error(Code::not_supported, "the local pages are of GPU {} and GPU {}",
                        driver->device->ordinal(), gpu->device->ordinal());
    if (gpu != nullptr) driver = gpu;
  }
  for (void* const region : handles_of(*args.remote))
    if (driver == nullptr) driver = gpu_of(region);
  return driver;
}

}  // namespace

GpuRequest::GpuRequest(Instance& instance, const headrace_prepare_v1& args, const gpu::WorkingGpu& gpu)
    : instance_(instance), args_(args), gpu_(&gpu), touches_(touched_by(args)) {}

Result<Request*> GpuRequest::prepare(Instance& instance, const headrace_prepare_v1& args) {
  HEADRACE_TRY(driver, driver_of(args));
  std::unique_ptr<GpuRequest, void (*)(GpuRequest*)> request(new GpuRequest(instance, args, *driver),
                                                             [](GpuRequest* r) { r->release(); });
  const bool on_host =
      std::ranges::all_of(handles_of(*args.local), [](void* region) { return gpu_of(region) == nullptr; });
  HEADRACE_TRY_VOID(request->reach(*args.local, on_host && instance.staging.enabled()));
  HEADRACE_TRY_VOID(request->reach(*args.remote, false));
  HEADRACE_TRY_VOID(request->prepare_move());
  return request.release();
}

Result<void> GpuRequest::reach(const headrace_side_v1& side, bool may_stage) {
  for (void* const handle : handles_of(side)) {
    const Region& region = Handles::region(handle);
    const auto address = region.reach(*gpu_);
    if (!address && (address.code() != Code::not_supported || !may_stage)) return address.error();
    stages_ = stages_ || !address;
    addresses_.emplace(handle, address ? *address : region.address());
  }
  return {};
}

Result<void> GpuRequest::prepare_move() {
  const auto address = [this](void* handle) { return addresses_.at(handle); };
  if (stages_) {
    staged_ = std::make_shared<gpu::StagedMove>(
        instance_.staging, *gpu_, args_, [](void* handle) { return bytes_of(Handles::region(handle)); },
        address);
    return {};
  }
  HEADRACE_TRY(move, gpu::PreparedMove::prepare(gpu_->mover, args_, address, address, touches_));
  move_.emplace(std::move(move));
  return {};
}

Status GpuRequest::post(const headrace_post_v1& args) {
  const auto ordered_by = static_cast<cuda::Stream>(args.stream);
  // A message to oneself is the host's business, and no stream waits for threads.
  if (args.has_message != 0 || (ordered_by != nullptr && stages_)) return {Code::not_supported};
  token_ = args.token;
  if (const auto begun = begin(ordered_by); !begun) {
    instance_.host.log(HEADRACE_LOG_WARN, begun.error().message);
    return {begun.error().code};
  }
  look_until_ns_ = gpu::look_until_ns(now_ns(), touches_, args_.bytes);
  instance_.posts.add(*this);
  return {};
}

Result<void> GpuRequest::begin(cuda::Stream ordered_by) {
  if (stages_) return staged_->post();
  if (ordered_by != nullptr) HEADRACE_TRY_VOID(gpu::check_stream_of_post(*gpu_, ordered_by));
  const bool in_order = ordered_by != nullptr && ordered_by != gpu_->stream.handle();
  auto begun = move_->post(ordered_by != nullptr ? ordered_by : gpu_->stream.handle(),
                           in_order ? gpu::Order::stream : gpu::Order::none);
  warn_of_courier();
  return begun;
}

void GpuRequest::warn_of_courier() const {
  if (gpu_->mover->courier == nullptr) return;
  if (const auto failure = gpu_->mover->courier->take_failure())
    instance_.host.log(HEADRACE_LOG_WARN,
                       failure->message + "; small requests are launched one by one from now on");
}

void GpuRequest::ended(Result<void> outcome) {
  if (outcome && staged_ != nullptr) outcome = staged_->outcome();
  if (outcome && move_ && move_->was_dropped()) {
    warn_of_courier();
    outcome = Error{Code::backend_failed,
                    "the courier, which had left before the request, could not be launched anew"};
  }
  instance_.completed(token_, outcome);
}

// ------------------------------------------------------------------ CUDA graphs

Result<bool> GpuRequest::capture(const headrace_capture_v1& args) {
  HEADRACE_TRY(captured, gpu::is_captured(*gpu_, args));
  if (!captured) return false;
  if (stages_)
    return make_error(Code::not_supported,
                      "host memory that cannot be pinned moves with the help of threads, which no graph "
                      "calls: take memory from `allocate`");
  const auto address = [this](void* handle) { return addresses_.at(handle); };
  HEADRACE_TRY(move, gpu::GraphMove::prepare(gpu_->mover, args_, {args.local_pages, args.remote_pages},
                                             address, address));
  HEADRACE_TRY_VOID(gpu::record(*move, args));
  captured_ = std::move(move);
  counted_as_ = plugin::Immediate::of(args);
  if (counted_as_) watch_ = gpu::ReplayWatch::start(instance_.posts, *gpu_, *captured_, *this);
  return true;
}

void GpuRequest::end_capture() {
  if (watch_ != nullptr) watch_->stop();
  watch_.reset();
  captured_.reset();
}

void GpuRequest::replays_ended(std::uint32_t count) {
  constexpr std::uint64_t this_agent = 0;
  instance_.host.counted(this_agent, *counted_as_, count);
}

Result<void> GpuRequest::set_indices(const headrace_indices_v1& args) {
  return gpu::change_indices(*gpu_, *captured_, args);
}

Result<std::uint64_t> GpuRequest::check() {
  // First how many: what is looked at behind that holds for them all.
  const std::uint64_t replays = captured_->replays();
  HEADRACE_TRY_VOID(gpu::check_replays(*captured_, args_.op));
  return replays;
}

}  // namespace headrace::local
