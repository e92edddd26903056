// SPDX-License-Identifier: Apache-2.0
// The GPUs of a backend instance. Each is opened when memory of it is first registered. Before that, neither
// the driver nor the kernels are loaded, and a machine without GPUs costs nothing.
#pragma once

#include "gpu/closer.hpp"
#include "gpu/prepared_move.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace headrace::gpu {

/// The source of driver and kernels; tests supply their own.
struct GpuSource {
  std::function<Result<cuda::DriverTable>()> driver;
  std::function<Result<KernelLibrary>()> kernels;

  /// The installed driver and kernels.
  [[nodiscard]] static GpuSource installed();
};

/// One GPU that moves pages.
struct WorkingGpu {
  std::shared_ptr<const Device> device;
  std::shared_ptr<const Mover> mover;
  Stream stream;  ///< for posts without a stream of their own
};

/// Whether the driver's device file exists: on Linux, under WSL, on a Jetson. It checks files, because asking
/// the driver costs far more.
[[nodiscard]] bool is_in_sight();

/// Four bytes that identify a GPU; the same in every process.
[[nodiscard]] std::uint32_t mark_of(const DeviceInfo& gpu);

///   threads  any
class Gpus {
 public:
  Gpus(GpuSource source, const MoveSettings& settings) : source_(std::move(source)), settings_(settings) {}

  /// Opens a GPU at the first call. A failure is kept and returned again with the same sentence.
  ///   errors   not_supported (no driver, no kernels for this GPU, ...: which), invalid_argument (no such
  ///            GPU), exhausted, backend_failed
  [[nodiscard]] Result<std::shared_ptr<const WorkingGpu>> open(int ordinal);
  /// The opened GPU if there is exactly one, else nullopt.
  [[nodiscard]] std::optional<int> only_one() const;
  /// The GPU with this mark. If this process does not see it: one that is open already, else the first.
  [[nodiscard]] Result<std::shared_ptr<const WorkingGpu>> like(std::uint32_t mark);
  /// Waits until all that was queued on the streams of these GPUs is done.
  void wait_idle() const;
  /// For memory of peers.
  [[nodiscard]] Closer& closer() { return closer_; }

 private:
  Result<std::shared_ptr<const WorkingGpu>> start(int ordinal);
  [[nodiscard]] std::optional<int> find(std::uint32_t mark);

  const GpuSource source_;
  const MoveSettings settings_;
  mutable std::mutex mutex_;
  std::optional<Result<cuda::DriverTable>> driver_;
  std::optional<Result<KernelLibrary>> kernels_;
  std::map<int, Result<std::shared_ptr<const WorkingGpu>>> opened_;
  std::vector<DeviceInfo> seen_;  // filled at the first search for a mark
  Closer closer_;                 // ends first: what it closes uses the driver
};

}  // namespace headrace::gpu
