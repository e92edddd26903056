// SPDX-License-Identifier: Apache-2.0
// <headrace/topology.hpp>
#include <headrace/topology.hpp>

#include "base/affinity.hpp"
#include "gpu/shown_gpus.hpp"
#include "topology/groups.hpp"
#include "vendor/cuda/installed.hpp"

#include <optional>
#include <vector>

namespace headrace {
namespace {

std::optional<std::vector<TopologyGpu>> gpus_of_driver() {
  const auto driver = cuda::load_driver();
  return gpu::shown_gpus(driver, cuda::is_driver_loaded());
}

CpuLimits limits_of_this_thread() {
  CpuLimits limits;
  if (auto cpus = read_affinity()) limits.cpus = *std::move(cpus);
  return limits;
}

}  // namespace

DetectedTopology detect_topology(const TopologyOptions& options) {
  if (!options.root.empty())
    return make_groups(read_all_cpus(options.root), read_gpus(options.root), read_nics(options.root));
  auto by_driver = options.ask_driver ? gpus_of_driver() : std::nullopt;
  return make_groups(read_cpus("", limits_of_this_thread()), read_gpus("", std::move(by_driver)),
                     read_nics(""));
}

}  // namespace headrace
