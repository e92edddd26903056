// SPDX-License-Identifier: Apache-2.0
// The GPU of one rank of a benchmark: memory, a stream, and graphs of calls on it.
#pragma once

#include "cli/common/errors.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/stream.hpp"

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

 private:
  CollGpu(std::shared_ptr<const gpu::Device> device, gpu::Stream stream)
      : device_(std::move(device)), stream_(std::move(stream)) {}
  [[nodiscard]] Result<void> copy(cuda::Address to, cuda::Address from, std::size_t bytes) const;

  std::shared_ptr<const gpu::Device> device_;
  gpu::Stream stream_;
};

}  // namespace headrace::cli
