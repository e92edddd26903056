// SPDX-License-Identifier: Apache-2.0
// The GPU of one rank of a benchmark: memory, a stream, and graphs of calls on it.
#pragma once

#include "cli/common/errors.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/event.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/stream.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace headrace::cli {

/// Names the device of a rank: "cuda" becomes one of the GPUs of this host, which the ranks take in turn.
///   errors  not_supported (there is no GPU)
[[nodiscard]] Result<std::string> device_of_rank(const std::string& device, int rank);

/// A graph of what calls have queued on the stream.
class CollGraph {
 public:
  CollGraph(const CollGraph&) = delete;
  CollGraph& operator=(const CollGraph&) = delete;
  ~CollGraph();
  /// Queues a replay.
  [[nodiscard]] Result<void> launch() const;

 private:
  friend class CollGpu;
  explicit CollGraph(const gpu::Stream& stream) : stream_(stream) {}
  const gpu::Stream& stream_;
  cuda::Graph graph_ = nullptr;
  cuda::GraphExec exec_ = nullptr;
};

class CollGpu {
 public:
  ///   errors   invalid_argument (no such ordinal), exhausted
  [[nodiscard]] static Result<std::unique_ptr<CollGpu>> open(const cuda::DriverTable& driver, int ordinal);

  [[nodiscard]] int ordinal() const { return device_->ordinal(); }
  [[nodiscard]] void* stream() const { return stream_.handle(); }
  [[nodiscard]] Result<gpu::DeviceMemory> allocate(std::size_t bytes) const;
  /// Copy and wait for the end.
  [[nodiscard]] Result<void> upload(const gpu::DeviceMemory& to, std::span<const std::byte> from) const;
  [[nodiscard]] Result<void> download(std::span<std::byte> to, const gpu::DeviceMemory& from) const;
  [[nodiscard]] Result<void> wait() const { return stream_.wait_idle(); }
  /// Captures what `record` queues on the stream. The graph belongs to this object.
  ///   errors   those of record; not_supported (something in it cannot be part of a graph)
  [[nodiscard]] Result<std::unique_ptr<CollGraph>> capture(const std::function<Result<void>()>& record) const;
  /// The GPU's time for what `queue` queues on the stream, without the host's: the GPU begins with it when
  /// `meet`, which is called then, has returned.
  ///   errors   those of queue and of meet; then the GPU does what is queued all the same
  [[nodiscard]] Result<std::chrono::nanoseconds> time_alone(const std::function<Result<void>()>& queue,
                                                            const std::function<Result<void>()>& meet) const;

 private:
  /// For time_alone.
  struct Gate {
    gpu::PinnedMemory word;
    gpu::Event begin, end;
  };
  CollGpu(std::shared_ptr<const gpu::Device> device, gpu::Stream stream, Gate gate)
      : device_(std::move(device)), stream_(std::move(stream)), gate_(std::move(gate)) {}
  [[nodiscard]] static Result<Gate> make_gate(const std::shared_ptr<const gpu::Device>& device);
  [[nodiscard]] Result<void> queue_between_marks(const std::function<Result<void>()>& queue) const;
  [[nodiscard]] Result<void> copy(cuda::Address to, cuda::Address from, std::size_t bytes) const;

  std::shared_ptr<const gpu::Device> device_;
  gpu::Stream stream_;
  Gate gate_;
};

}  // namespace headrace::cli
