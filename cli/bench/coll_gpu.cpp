// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/coll_gpu.hpp"

#include <utility>

namespace headrace::cli {

Result<std::string> device_of_rank(const std::string& device, int rank) {
  if (device != "cuda") return device;
  HEADRACE_CLI_TRY(driver, cuda::load_driver());
  HEADRACE_CLI_TRY(devices, gpu::list_devices(driver));
  if (devices.empty()) return fail(Code::not_supported, "this machine has no GPU: leave out --device");
  return fmt::format("cuda:{}", static_cast<std::size_t>(rank) % devices.size());
}

CollGraph::~CollGraph() {
  const gpu::ContextGuard current(stream_.device());
  const cuda::DriverTable& driver = stream_.device().driver();
  if (exec_ != nullptr) (void)driver.graph_exec_destroy(exec_);
  if (graph_ != nullptr) (void)driver.graph_destroy(graph_);
}

Result<void> CollGraph::launch() const {
  const gpu::ContextGuard current(stream_.device());
  const cuda::DriverTable& driver = stream_.device().driver();
  HEADRACE_CUDA_TRY(driver, driver.graph_launch(exec_, stream_.handle()), "replay a graph on GPU {}",
                    stream_.device().ordinal());
  return {};
}

Result<std::unique_ptr<CollGpu>> CollGpu::open(const cuda::DriverTable& driver, int ordinal) {
  HEADRACE_CLI_TRY(device, gpu::Device::open(driver, ordinal));
  HEADRACE_CLI_TRY(stream, gpu::Stream::make(device));
  HEADRACE_CLI_TRY(gate, make_gate(device));
  return std::unique_ptr<CollGpu>(new CollGpu(std::move(device), std::move(stream), std::move(gate)));
}

Result<CollGpu::Gate> CollGpu::make_gate(const std::shared_ptr<const gpu::Device>& device) {
  HEADRACE_CLI_TRY(word, gpu::PinnedMemory::allocate(device, sizeof(std::uint32_t)));
  HEADRACE_CLI_TRY(begin, gpu::Event::make(device, gpu::Timing::on));
  HEADRACE_CLI_TRY(end, gpu::Event::make(device, gpu::Timing::on));
  return Gate{std::move(word), std::move(begin), std::move(end)};
}

Result<gpu::DeviceMemory> CollGpu::allocate(std::size_t bytes) const {
  return gpu::DeviceMemory::allocate(device_, bytes);
}

Result<void> CollGpu::upload(const gpu::DeviceMemory& to, std::span<const std::byte> from) const {
  return copy(to.address(), reinterpret_cast<cuda::Address>(from.data()), from.size());
}

Result<void> CollGpu::download(std::span<std::byte> to, const gpu::DeviceMemory& from) const {
  return copy(reinterpret_cast<cuda::Address>(to.data()), from.address(), to.size());
}

Result<void> CollGpu::copy(cuda::Address to, cuda::Address from, std::size_t bytes) const {
  const gpu::ContextGuard current(*device_);
  const cuda::DriverTable& driver = device_->driver();
  HEADRACE_CUDA_TRY(driver, driver.memcpy_async(to, from, bytes, stream_.handle()),
                    "copy {} bytes between GPU {} and host", bytes, device_->ordinal());
  return stream_.wait_idle();
}

Result<std::unique_ptr<CollGraph>> CollGpu::capture(const std::function<Result<void>()>& record) const {
  const gpu::ContextGuard current(*device_);
  const cuda::DriverTable& driver = device_->driver();
  std::unique_ptr<CollGraph> made(new CollGraph(stream_));
  // Ranks may be threads of one process: what others do meanwhile does not end this capture.
  HEADRACE_CUDA_TRY(driver, driver.stream_begin_capture(stream_.handle(), cuda::CaptureMode::thread_local_),
                    "begin a capture on GPU {}", device_->ordinal());
  auto recorded = record();
  const cuda::Outcome ended = driver.stream_end_capture(stream_.handle(), &made->graph_);
  if (!recorded) return std::move(recorded).error();
  HEADRACE_CUDA_TRY(driver, ended, "end a capture on GPU {}", device_->ordinal());
  HEADRACE_CUDA_TRY(driver, driver.graph_instantiate(&made->exec_, made->graph_, 0), "make a graph on GPU {}",
                    device_->ordinal());
  return made;
}

Result<std::chrono::nanoseconds> CollGpu::time_alone(const std::function<Result<void>()>& queue,
                                                     const std::function<Result<void>()>& meet) const {
  const cuda::DriverTable& driver = device_->driver();
  auto* const word = reinterpret_cast<std::uint32_t*>(gate_.word.bytes().data());
  __atomic_store_n(word, 0, __ATOMIC_RELEASE);
  {
    const gpu::ContextGuard current(*device_);
    HEADRACE_CUDA_TRY(
        driver,
        driver.stream_wait_value_32(stream_.handle(), gate_.word.address(), 1, cuda::wait_value_equal),
        "hold up a stream of GPU {}", device_->ordinal());
  }
  auto done = queue_between_marks(queue);
  if (done) done = meet();
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);  // whatever came: else the stream would wait for ever
  HEADRACE_CLI_CHECK(done);
  HEADRACE_CLI_CHECK(wait());
  return gate_.end.since(gate_.begin);
}

Result<void> CollGpu::queue_between_marks(const std::function<Result<void>()>& queue) const {
  HEADRACE_CLI_CHECK(gate_.begin.record(stream_.handle()));
  HEADRACE_CLI_CHECK(queue());
  return gate_.end.record(stream_.handle());
}

}  // namespace headrace::cli
