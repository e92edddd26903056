// SPDX-License-Identifier: Apache-2.0
// What this machine and its kernel can do for moving memory, found out by trying where trying is possible.
#pragma once

#include "gpu/device.hpp"
#include "gpu/kernel_library.hpp"

#include <string>
#include <vector>

namespace headrace::cli {

struct Finding {
  enum class State {
    good,   ///< as it should be
    note,   ///< worth knowing, nothing to do
    worse,  ///< works, but slower or with less than it could: `advice` says what to do
    bad,    ///< something cannot work at all: `advice` says what to do
  };
  std::string name;
  State state = State::note;
  std::string value;
  std::string advice;
};

/// "ok", "note", "worse", "bad".
[[nodiscard]] std::string_view state_name(Finding::State state);

/// Forks children to try cross-memory attach: to be called while the process has one thread.
[[nodiscard]] std::vector<Finding> probe_machine();
/// Whether processes of one user may read each other's memory, as a child tries it.
[[nodiscard]] Finding probe_attach();
/// The memories of the machine, with the CPUs and GPUs next to each. `root` is "" on the machine.
[[nodiscard]] Finding probe_numa(const std::string& root);
/// The GPUs of this process, or the driver's sentence why there are none.
[[nodiscard]] Finding probe_gpus(const Result<cuda::DriverTable>& driver);
/// Whether what is installed has kernels for each of them.
[[nodiscard]] Finding probe_kernels(const Result<cuda::DriverTable>& driver,
                                    const Result<gpu::KernelLibrary>& library);
/// Where the agents' sockets lie if option runtime_dir is not set.
[[nodiscard]] std::string default_runtime_folder();
/// Whether a folder can hold the agents' sockets: there or makeable, ours, closed to others.
[[nodiscard]] Finding probe_runtime_folder(const std::string& folder);

}  // namespace headrace::cli
