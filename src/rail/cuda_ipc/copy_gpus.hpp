// SPDX-License-Identifier: Apache-2.0
// The GPUs with which a NIC of this host copies. Each is opened when it is first needed.
#pragma once

#include "gpu/stream.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace headrace::rail::cuda_ipc {

struct CopyGpu {
  std::shared_ptr<const gpu::Device> device;
  gpu::Stream stream;  ///< of all copies of the NIC on this GPU
  std::uint32_t mark;  ///< the same in every process
};

///   threads  any
class CopyGpus {
 public:
  using Driver = std::function<Result<cuda::DriverTable>()>;
  explicit CopyGpus(Driver driver) : load_(std::move(driver)) {}

  ///   errors  not_supported (no driver), invalid_argument (no such GPU), exhausted, backend_failed
  Result<std::shared_ptr<const CopyGpu>> open(int ordinal);
  /// The GPU with this mark. If this process does not see it: one that is open, else the first.
  ///   errors  as above
  Result<std::shared_ptr<const CopyGpu>> like(std::uint32_t mark);
  /// Waits until all copies that have begun are done.
  void wait_idle();

 private:
  Result<std::shared_ptr<const CopyGpu>> open_locked(int ordinal);
  Result<std::optional<int>> find_locked(std::uint32_t mark);
  Result<void> load_locked();

  const Driver load_;
  std::mutex mutex_;
  std::optional<Result<cuda::DriverTable>> driver_;
  std::map<int, std::shared_ptr<const CopyGpu>> opened_;
};

}  // namespace headrace::rail::cuda_ipc
