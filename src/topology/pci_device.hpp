// SPDX-License-Identifier: Apache-2.0
// Where a device lies in the tree of PCI bridges, and what /sys tells about it.
#pragma once

#include <headrace/topology.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

struct PciDevice {
  std::string address;                ///< "0000:1b:00.0", lower case; empty: not a PCI device
  std::vector<std::string> bridges;   ///< from the host bridge ("pci0000:16") to the nearest bridge
  std::string model;                  ///< "15b3:1021"; empty: unknown
  std::string driver;                 ///< empty: none or unknown
  std::optional<unsigned> numa_node;  ///< its own, else that of its nearest bridge which has one

  friend bool operator==(const PciDevice&, const PciDevice&) = default;
};

/// The PCI device that the path of a device in /sys ("/sys/class/net/eth0", links are followed) leads through
/// last. `root` is "" on the machine itself.
[[nodiscard]] PciDevice read_pci_device(const std::string& root, const std::string& path);

/// By number: domains may have more than four digits.
[[nodiscard]] bool pci_address_less(std::string_view a, std::string_view b);

/// Whether a text is an address such as "0000:1b:00.0".
[[nodiscard]] bool is_pci_address(std::string_view text);

/// What two devices have in common.
[[nodiscard]] Nearness nearness_of(const PciDevice& a, const PciDevice& b);

struct PciGpus {
  std::vector<PciDevice> all;      ///< those that /sys shows, by address
  std::vector<std::string> shown;  ///< addresses of those that this process can open
};

/// The NVIDIA GPUs. A process can open those that the driver lists in /proc and that have a device file;
/// where the driver lists none, it is taken to see all.
[[nodiscard]] PciGpus read_pci_gpus(const std::string& root);

/// The names in a folder, sorted; none if it cannot be read.
[[nodiscard]] std::vector<std::string> names_in(const std::string& folder);

}  // namespace headrace
