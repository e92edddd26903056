// SPDX-License-Identifier: Apache-2.0
#include "gpu/given_stream.hpp"

namespace headrace::gpu {

Result<cuda::CaptureStatus> look_at_stream(const WorkingGpu& gpu, cuda::Stream stream) {
  const Device& device = *gpu.device;
  const cuda::DriverTable& driver = device.driver();
  const ContextGuard current(device);  // whose default stream is meant by the default stream
  cuda::Context context = nullptr;
  HEADRACE_CUDA_TRY(driver, driver.stream_get_ctx(stream, &context), "look at the stream of a post");
  if (context != device.context())
    return make_error(Code::invalid_argument, "the stream of a post is not of GPU {}, which moves the pages",
                      device.ordinal());
  cuda::CaptureStatus capture{};
  HEADRACE_CUDA_TRY(driver, driver.stream_is_capturing(stream, &capture), "look at the stream of a post");
  return capture;
}

Result<void> check_stream_of_post(const WorkingGpu& gpu, cuda::Stream stream) {
  HEADRACE_TRY(capture, look_at_stream(gpu, stream));
  if (capture != cuda::CaptureStatus::none)
    return make_error(Code::not_supported, "the stream of a post is being captured: capture the request");
  return {};
}

Result<bool> is_captured(const WorkingGpu& gpu, const headrace_capture_v1& args) {
  HEADRACE_TRY(capturing, look_at_stream(gpu, static_cast<cuda::Stream>(args.stream)));
  if (capturing == cuda::CaptureStatus::none) return false;
  if (capturing == cuda::CaptureStatus::invalidated)
    return make_error(Code::invalid_argument,
                      "the capture of the stream has failed already: end it, and look what failed before");
  if (args.has_message != 0)
    return make_error(
        Code::not_supported,
        "a graph carries no notification: let it carry an immediate, or notify when a replay has ended");
  return true;
}

Result<void> record(GraphMove& move, const headrace_capture_v1& args) {
  if (args.indices != nullptr) HEADRACE_TRY_VOID(move.record_indices(*args.indices));
  return move.record(static_cast<cuda::Stream>(args.stream));
}

Result<void> change_indices(const WorkingGpu& gpu, GraphMove& move, const headrace_indices_v1& args) {
  HEADRACE_TRY(capturing, look_at_stream(gpu, static_cast<cuda::Stream>(args.stream)));
  if (capturing != cuda::CaptureStatus::none)
    return make_error(
        Code::invalid_argument,
        "the stream is being captured: change page numbers outside of captures, or give them with the "
        "post that is captured");
  return move.set_indices(args);
}

Result<void> check_replays(GraphMove& move, std::int32_t op) {
  const auto refused = move.take_refused();
  if (!refused) return {};
  const bool local = refused->of_target == (op == HEADRACE_READ);
  Error error =
      make_error(Code::invalid_argument,
                 "a replay passed over page {}, and maybe others: its number in the {} list, which a GPU "
                 "had written, is not below the list's number of pages",
                 refused->page, local ? "local" : "remote");
  error.page = refused->page;
  return error;
}

}  // namespace headrace::gpu
