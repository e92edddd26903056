// SPDX-License-Identifier: Apache-2.0
// The network cards of a machine, as /sys shows them to this process.
#pragma once

#include "topology/pci_device.hpp"

#include <headrace/topology.hpp>

#include <string>
#include <vector>

namespace headrace {

/// A card and its place.
struct Nic {
  TopologyNic what;  ///< `nearness` is not set
  PciDevice place;

  friend bool operator==(const Nic&, const Nic&) = default;
};

struct NicList {
  std::vector<Nic> usable;           ///< by PCI address, then by name
  std::vector<LeftOutNic> left_out;  ///< down, a member of a bond, hidden by the container, ...; by name
};

/// Reads RDMA devices and network interfaces. Interfaces without hardware (loopback, bridges, tunnels) are in
/// no list, but for bonds, and for a container's end of a virtual cable where it has no hardware.
///   errors   none: a missing or damaged file is unknown
[[nodiscard]] NicList read_nics(const std::string& root);

/// What an interface is.
enum class InterfaceKind {
  hardware,
  loopback,
  cable,           ///< an end of a pair (veth), or a macvlan of an interface outside this network namespace
  bond,            ///< several interfaces as one
  usb,             ///< mostly a link to the machine's own management controller
  representor,     ///< a switch's port for a virtual function
  other_software,  ///< bridge, VLAN, tunnel, dummy, ...
};

struct Interface {
  std::string name;
  InterfaceKind kind = InterfaceKind::other_software;
  std::optional<bool> up;
  std::uint64_t speed_mbit = 0;
  std::string link_layer;
  std::string driver;
  std::string master;                ///< the bond or bridge that it is a member of; empty: none
  std::vector<std::string> members;  ///< of a bond
  PciDevice place;
};

/// All interfaces of this network namespace, by name.
[[nodiscard]] std::vector<Interface> read_interfaces(const std::string& root);

struct RdmaDevice {
  std::string name;
  std::optional<bool> up;
  std::uint64_t speed_mbit = 0;
  std::string link_layer;
  std::string hidden;     ///< why this process cannot open it; empty: it can
  std::string interface;  ///< under a device that is software (rxe, siw); empty: hardware
  PciDevice place;
};

/// All RDMA devices that /sys shows, by name.
[[nodiscard]] std::vector<RdmaDevice> read_rdma_devices(const std::string& root);

}  // namespace headrace
