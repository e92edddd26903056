// SPDX-License-Identifier: Apache-2.0
// Which NICs and CPUs a fabric's groups get.
#pragma once

#include <headrace/fabric.hpp>
#include <headrace/topology.hpp>

#include "base/errors.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace headrace::fabric {

/// The NIC of peers of this host: shared memory.
inline constexpr const char* this_host = "this host";

/// A group before its NICs are opened.
struct GroupPlan {
  struct Nic {
    std::string name;   ///< as the topology or the caller names it
    std::string where;  ///< an interface or a local address, for the provider of sockets; empty: this_host
  };
  std::optional<int> device;
  std::vector<unsigned> cpus;
  std::vector<Nic> nics;
  bool by_hand = false;  ///< a NIC that cannot be opened is an error; else it is left out
};

/// What the plan asks of the machine.
struct Machine {
  DetectedTopology topology;
  std::optional<unsigned> numa_node;  ///< of the calling thread
  /// The address of an interface, or a local address itself; nullopt: it has none.
  std::function<std::optional<std::string>(const std::string&)> address_of;
};
/// This machine.
///   ask_driver  whether the GPUs' ordinals are needed
[[nodiscard]] Machine this_machine(bool ask_driver);

///   errors  invalid_argument, not_found
[[nodiscard]] Result<std::vector<GroupPlan>> plan_groups(const FabricOptions& options,
                                                         const Machine& machine);

}  // namespace headrace::fabric
