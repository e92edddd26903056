// SPDX-License-Identifier: Apache-2.0
// A request between GPUs of this process. It is driven by the GPU of its local side, which reaches the
// other's memory.
#pragma once

#include "backends/cuda_ipc/region.hpp"

#include <memory>

namespace headrace::cuda_ipc {

class Request {
 public:
  ///   errors   not_supported (local pages of several GPUs, or a GPU that cannot be reached: the next path
  ///   may), not_found (a
  ///            region's memory was freed), invalid_argument (a read-only target), exhausted, backend_failed
  [[nodiscard]] static Result<std::unique_ptr<Request>> prepare(const headrace_prepare_v1& args);

  [[nodiscard]] std::uint64_t token() const noexcept { return token_; }
  [[nodiscard]] const WorkingGpu& gpu() const noexcept { return *gpu_; }
  [[nodiscard]] Result<void> post() { return move_.post(gpu_->stream.handle()); }
  [[nodiscard]] bool poll_done() const noexcept { return move_.poll_done(); }

 private:
  Request(std::uint64_t token, const WorkingGpu& gpu, gpu::PreparedMove move)
      : token_(token), gpu_(&gpu), move_(std::move(move)) {}

  std::uint64_t token_;
  const WorkingGpu* gpu_;  // the instance keeps what it has opened
  gpu::PreparedMove move_;
};

}  // namespace headrace::cuda_ipc
