// SPDX-License-Identifier: Apache-2.0
// Network cards as `headrace doctor` shows them: which are near which GPU, and what could use them.
#pragma once

#include "cli/common/backend_report.hpp"
#include "cli/doctor/machine_probe.hpp"

#include <headrace/topology.hpp>

#include <string>
#include <vector>

namespace headrace::cli {

struct InterfaceAddress {
  std::string interface;
  std::string address;  ///< "10.0.0.1", "2001:db8::1"
};

/// The addresses of interfaces that are up, but for those of loopback and of one link (fe80::).
[[nodiscard]] std::vector<InterfaceAddress> read_addresses();

/// A way for a fabric to reach peers.
struct Provider {
  std::string name;
  bool usable = false;
  std::string reason;  ///< why not
};

/// tcp and shm are usable. `verbs` also says whether there are RDMA devices.
[[nodiscard]] std::vector<Provider> list_providers(const DetectedTopology& topology);

/// Findings "topology", "interfaces", "RDMA devices", "fabric".
[[nodiscard]] std::vector<Finding> show_fabric(const DetectedTopology& topology,
                                               const std::vector<InterfaceAddress>& addresses);

/// {"groups": [...], "left_out": [...], "interfaces": [...], "providers": [...]}
[[nodiscard]] Json fabric_json(const DetectedTopology& topology,
                               const std::vector<InterfaceAddress>& addresses);

}  // namespace headrace::cli
