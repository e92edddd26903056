// SPDX-License-Identifier: Apache-2.0
// The backend of communicators whose ranks' GPUs map each other's memory, as a table of comm_v1.h.
#pragma once

#include "gpu/kernel_library.hpp"
#include "p2p/communicator.hpp"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace headrace::p2p {

inline constexpr const char* backend_name = "p2p";

/// Where driver, kernels and agents come from; tests supply their own.
struct Source {
  std::function<Result<cuda::DriverTable>()> driver;
  std::function<Result<gpu::KernelLibrary>()> kernels;
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
  ///   errors  those of Source, of gpu::Device::open and of gpu::Kernels::open
  [[nodiscard]] Result<Parts> parts_for(int device);

 private:
  [[nodiscard]] Result<std::shared_ptr<const gpu::Kernels>> kernels_of(int device);

  const std::string name_;
  const Source source_;
  AgentOptions agent_;
  std::mutex mutex_;
  std::optional<cuda::DriverTable> driver_;
  std::optional<gpu::KernelLibrary> library_;
  std::map<int, std::weak_ptr<const gpu::Kernels>> kernels_;  // by GPU
};

/// The table of the installed one.
[[nodiscard]] headrace_comm_backend_v1 installed_table();

}  // namespace headrace::p2p
