// SPDX-License-Identifier: Apache-2.0
// What lies near what: the network cards and CPUs next to each GPU, and next to each NUMA node without one.
#pragma once

#include <headrace/result.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// The nearest thing that a network card and its group have in common. Each is farther than the ones before.
enum class Nearness : int {
  pci_switch = 0,   ///< a PCI bridge or switch: data between them passes no CPU
  host_bridge = 1,  ///< a root complex of a CPU
  numa_node = 2,    ///< the NUMA node
  machine = 3,      ///< nothing less than the machine: data crosses between sockets
  unknown = 4,      ///< the firmware does not say, as in most virtual machines
};

/// "pci_switch", "host_bridge", ..., as written in this header.
HEADRACE_API std::string_view nearness_name(Nearness nearness) noexcept;

/// A network card: an RDMA device with its interfaces, or an interface alone. A function of a card with two
/// ports is one. A bond is one, too.
struct TopologyNic {
  std::string name;                     ///< of the RDMA device ("mlx5_0"), else of the interface ("eth0")
  std::vector<std::string> interfaces;  ///< network interfaces on it; empty: none, or none that is shown here
  bool rdma = false;             ///< an RDMA device; only one that is left out may be closed to this process
  std::string link_layer;        ///< "Ethernet", "InfiniBand"; empty: unknown
  std::uint64_t speed_mbit = 0;  ///< of all its ports that are up; 0: unknown
  std::optional<bool> up;        ///< whether a port has a link; nullopt: unknown
  std::string pci;               ///< "0000:1a:00.0"; empty: no PCI device
  std::string model;             ///< vendor and device, "15b3:1021"; empty: unknown
  std::string driver;            ///< "mlx5_core"; empty: unknown
  std::optional<unsigned> numa_node;      ///< nullopt: unknown
  Nearness nearness = Nearness::unknown;  ///< to the GPU of its group, or to the group's NUMA node

  friend bool operator==(const TopologyNic&, const TopologyNic&) = default;
};

struct TopologyGpu {
  std::string pci;           ///< "0000:1b:00.0"
  std::optional<int> index;  ///< that of CUDA in this process; nullopt: the driver was not asked
  std::string name;          ///< "NVIDIA H200"; empty: the driver was not asked

  friend bool operator==(const TopologyGpu&, const TopologyGpu&) = default;
};

/// A GPU and what is near it; or, without a GPU, a NUMA node and what is near that.
struct TopologyGroup {
  std::optional<TopologyGpu> gpu;
  std::optional<unsigned> numa_node;  ///< nullopt: unknown
  std::vector<unsigned> cpus;  ///< CPUs of the node that this process may use; all that it may use if none
  /// The part of `cpus` that no other GPU of the node has, for threads of this group: whole cores. Where
  /// there are fewer cores than GPUs it is `cpus`.
  std::vector<unsigned> own_cpus;
  /// By kind (RDMA devices first), nearness and PCI address. Several groups may have the same one.
  std::vector<TopologyNic> nics;

  friend bool operator==(const TopologyGroup&, const TopologyGroup&) = default;
};

/// A network card that no group has.
struct LeftOutNic {
  TopologyNic nic;
  std::string reason;  ///< a sentence: its link is down, it is of another model than the others, ...

  friend bool operator==(const LeftOutNic&, const LeftOutNic&) = default;
};

struct DetectedTopology {
  std::vector<TopologyGroup> groups;  ///< GPUs by index (else by PCI address), then nodes without a GPU
  std::vector<LeftOutNic> left_out;   ///< by name

  friend bool operator==(const DetectedTopology&, const DetectedTopology&) = default;
};

struct TopologyOptions {
  /// The folder of a recorded machine, in which its sys/, proc/ and dev/ lie; empty: this machine. In a
  /// recorded machine all CPUs are usable, and the GPUs have no index.
  std::string root;
  /// Asks the CUDA driver which GPUs this process sees, and for their indices. That starts the driver: a
  /// child that is forked later cannot use CUDA. Without it, the GPUs are those that /sys and /proc show.
  bool ask_driver = true;
};

/// Reads which network cards and CPUs are near each GPU, and near each NUMA node without one.
///
/// The network cards of a PCI switch are dealt to its GPUs in turn, by PCI address. More GPUs than cards
/// share them. A GPU without a card in its switch or on its root complex takes those of its NUMA node;
/// without one there, those of the machine. RDMA devices and plain interfaces are dealt by themselves. Cards
/// of another model than most of their kind, and those without a link, are left out.
///   errors   none: what cannot be read is unknown. A machine without GPUs and PCI has a group with its CPUs
///   threads  any; it reads files of /sys at each call
[[nodiscard]] HEADRACE_API DetectedTopology detect_topology(const TopologyOptions& options = {});

/// One line: "GPU 0 0000:1b:00.0, node 0, CPUs 0-13: mlx5_0 400 Gbit/s (RDMA, ens1f0np0, pci_switch)".
[[nodiscard]] HEADRACE_API std::string to_text(const TopologyGroup& group);
/// "mlx5_0 400 Gbit/s (RDMA, ens1f0np0)".
[[nodiscard]] HEADRACE_API std::string to_text(const TopologyNic& nic);
/// A line for each group, and one for each card that is left out.
[[nodiscard]] HEADRACE_API std::string to_text(const DetectedTopology& topology);

}  // namespace headrace
