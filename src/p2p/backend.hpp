// SPDX-License-Identifier: Apache-2.0
// The backend of communicators whose ranks' GPUs map each other's memory, as a table of comm_v1.h.
#pragma once

#include "gpu/loaded_kernels.hpp"
#include "p2p/communicator.hpp"

#include <string>

namespace headrace::p2p {

inline constexpr const char* backend_name = "p2p";

/// Where driver, kernels and agents come from; tests supply their own.
struct Source {
  gpu::GpuSource gpus;
  std::string agent_backend;  ///< of the agents: it maps boxes
  AgentOptions agent = {};

  /// The installed driver and kernels, and `cuda_ipc`.
  [[nodiscard]] static Source installed();
};

/// Lives to the end of the process, as its table does.
class Backend {
 public:
  Backend(std::string name, Source source);
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// Loads nothing.
  [[nodiscard]] headrace_comm_backend_v1 table();
  /// Loads the driver, and the kernels on a GPU on which no communicator is.
  ///   errors  those of gpu::LoadedKernels
  [[nodiscard]] Result<Parts> parts_for(int device);

 private:
  const std::string name_;
  gpu::LoadedKernels kernels_;
  AgentOptions agent_;
};

/// The table of the installed one.
[[nodiscard]] headrace_comm_backend_v1 installed_table();

}  // namespace headrace::p2p
