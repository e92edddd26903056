// SPDX-License-Identifier: Apache-2.0
// Finds out what this machine and its kernel support for moving memory, by trying it where possible.
#pragma once

#include "gpu/device.hpp"
#include "gpu/kernel_library.hpp"

#include <string>
#include <vector>

namespace headrace::cli {

struct Finding {
  enum class State {
    good,     ///< works
    note,     ///< information; nothing to do
    warning,  ///< works, but slower or in part: `advice` says what to do
    bad,      ///< does not work: `advice` says what to do
  };
  std::string name;
  State state = State::note;
  std::string value;
  std::string advice;
};

/// "ok", "note", "warning", "bad".
[[nodiscard]] std::string_view state_name(Finding::State state);

/// Runs all checks of the machine. It forks a child to test attach: call it while the process has one thread.
[[nodiscard]] std::vector<Finding> probe_machine();
/// Whether processes of one user can read each other's memory, as a child tries it.
[[nodiscard]] Finding probe_attach();
/// The NUMA nodes: memory, CPUs and GPUs of each. `root` is "" for this machine; tests pass a recorded one.
[[nodiscard]] Finding probe_numa(const std::string& root);
/// The GPUs of this process, or the driver's error text.
[[nodiscard]] Finding probe_gpus(const Result<cuda::DriverTable>& driver);
/// Whether the installed kernel library has kernels for each GPU.
[[nodiscard]] Finding probe_kernels(const Result<cuda::DriverTable>& driver,
                                    const Result<gpu::KernelLibrary>& library);
/// The folder of the agents' sockets if option runtime_dir is not set.
[[nodiscard]] std::string default_runtime_folder();
/// Whether a folder can hold the agents' sockets: it exists or can be made, belongs to this user, and other
/// users have no access.
[[nodiscard]] Finding probe_runtime_folder(const std::string& folder);

}  // namespace headrace::cli
