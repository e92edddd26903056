// SPDX-License-Identifier: Apache-2.0
// The GPUs of a backend's instance, each opened when memory of it is first registered: before that neither
// the driver nor the kernels are loaded, and a machine without them costs nothing.
#pragma once

#include "gpu/prepared_move.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace headrace::gpu {

/// Where driver and kernels come from; tests give others.
struct GpuSource {
  std::function<Result<cuda::DriverTable>()> driver;
  std::function<Result<KernelLibrary>()> kernels;

  /// Those that are installed.
  [[nodiscard]] static GpuSource installed();
};

/// One GPU that moves pages.
struct WorkingGpu {
  std::shared_ptr<const Device> device;
  std::shared_ptr<const Mover> mover;
  Stream stream;  ///< for posts that name none
};

/// Whether the driver has made its device here: on Linux, under WSL, on a Jetson. A look at files: asking the
/// driver costs far more.
[[nodiscard]] bool is_in_sight();

/// Four bytes that tell one GPU from another, the same in every process.
[[nodiscard]] std::uint32_t mark_of(const DeviceInfo& gpu);

/// Any thread.
class Gpus {
 public:
  Gpus(GpuSource source, const MoveSettings& settings) : source_(std::move(source)), settings_(settings) {}

  /// What was refused once is refused again with the same sentence; nothing is tried twice.
  ///   errors   not_supported (no driver, no kernels for this GPU, ...: the sentence says which),
  ///   invalid_argument (no such
  ///            GPU), exhausted, backend_failed
  [[nodiscard]] Result<std::shared_ptr<const WorkingGpu>> open(int ordinal);
  /// The one GPU that has been opened; none if there are none, or several.
  [[nodiscard]] std::optional<int> only_one() const;
  /// The GPU with this mark; if this process does not see it, any: one that is open already, or the first.
  [[nodiscard]] Result<std::shared_ptr<const WorkingGpu>> like(std::uint32_t mark);

 private:
  Result<std::shared_ptr<const WorkingGpu>> start(int ordinal);
  [[nodiscard]] std::optional<int> find(std::uint32_t mark);

  const GpuSource source_;
  const MoveSettings settings_;
  mutable std::mutex mutex_;
  std::optional<Result<cuda::DriverTable>> driver_;
  std::optional<Result<KernelLibrary>> kernels_;
  std::map<int, Result<std::shared_ptr<const WorkingGpu>>> opened_;
  std::vector<DeviceInfo> seen_;  // once somebody has looked for a mark
};

}  // namespace headrace::gpu
