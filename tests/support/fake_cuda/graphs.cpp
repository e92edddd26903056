// SPDX-License-Identifier: Apache-2.0
// The fake driver's captures and graphs.
#include "support/fake_cuda/driver.hpp"

#include <set>
#include <utility>

namespace headrace::cuda {

// The rule is documented for cuMemAlloc and was observed for cuEventQuery; for the others it is assumed.
bool FakeDriver::is_unsafe_in_captures(const std::string& symbol) {
  static const std::set<std::string> unsafe{"cuMemAlloc",          "cuMemFree",
                                            "cuMemHostAlloc",      "cuMemFreeHost",
                                            "cuMemHostRegister",   "cuEventQuery",
                                            "cuEventSynchronize",  "cuStreamQuery",
                                            "cuStreamSynchronize", "cuCtxSynchronize",
                                            "cuModuleLoadData",    "cuIpcOpenMemHandle",
                                            "cuIpcCloseMemHandle", "cuCtxEnablePeerAccess"};
  return unsafe.contains(symbol);
}

bool FakeDriver::disturbs_captures() {
  const CaptureMode own_mode = thread_modes[std::this_thread::get_id()];
  if (own_mode == CaptureMode::relaxed) return false;
  bool disturbed = false;
  streams.each([&](StreamObject& stream) {
    if (stream.capture == nullptr || stream.capture->mode == CaptureMode::relaxed) return;
    const bool own = stream.capture->captured_by == std::this_thread::get_id();
    const bool minds =
        own || (stream.capture->mode == CaptureMode::global && own_mode == CaptureMode::global);
    stream.capture->spoilt = stream.capture->spoilt || minds;
    disturbed = disturbed || minds;
  });
  return disturbed;
}

Outcome FakeDriver::thread_exchange_stream_capture_mode(CaptureMode* mode) {
  std::swap(thread_modes[std::this_thread::get_id()], *mode);
  return Outcome::success;
}
Outcome FakeDriver::stream_is_capturing(Stream handle, CaptureStatus* status) {
  StreamObject* const stream = resolve(handle);
  if (stream == nullptr) return Outcome::invalid_context;
  *status = stream->capture == nullptr ? CaptureStatus::none
            : stream->capture->spoilt  ? CaptureStatus::invalidated
                                       : CaptureStatus::active;
  return Outcome::success;
}
Outcome FakeDriver::stream_begin_capture(Stream handle, CaptureMode mode) {
  StreamObject* const stream = resolve(handle);
  if (stream == nullptr) return Outcome::invalid_context;
  if (stream->capture != nullptr || stream == stream->context->default_stream)
    return Outcome::stream_capture_unsupported;
  stream->capture = graphs.add({{}, mode, std::this_thread::get_id()});
  return Outcome::success;
}
Outcome FakeDriver::stream_end_capture(Stream handle, Graph* graph) {
  StreamObject* const stream = resolve(handle);
  if (stream == nullptr || stream->capture == nullptr) return Outcome::illegal_state;
  *graph = std::exchange(stream->capture, nullptr);
  if (!(*graph)->spoilt) return Outcome::success;
  (void)graphs.destroy(*graph);
  *graph = nullptr;
  return Outcome::stream_capture_invalidated;
}
Outcome FakeDriver::graph_instantiate(GraphExec* exec, Graph graph, unsigned long long) {
  *exec = graph_execs.add({graph->works});
  return Outcome::success;
}
Outcome FakeDriver::graph_launch(GraphExec exec, Stream stream) {
  for (const Work& work : exec->works)
    if (const Outcome outcome = enqueue(stream, work); outcome != Outcome::success) return outcome;
  return Outcome::success;
}
Outcome FakeDriver::graph_exec_destroy(GraphExec exec) { return graph_execs.destroy(exec); }
Outcome FakeDriver::graph_destroy(Graph graph) { return graphs.destroy(graph); }

}  // namespace headrace::cuda
