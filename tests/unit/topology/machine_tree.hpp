// SPDX-License-Identifier: Apache-2.0
// Writes the /sys of a machine with PCI devices into a folder: real folders for devices, links as the
// kernel's.
#pragma once

#include "unit/topology/recorded_machine.hpp"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace headrace::test {

/// What a card is made of; the fields are texts of the kernel's files.
struct Card {
  std::string path;  ///< "pci0000:16/0000:16:01.0/0000:17:00.0": bridges and the device, last
  std::string node = "0";
  std::string device = "0x1021";  ///< model
  std::string rate = "400 Gb/sec (4X NDR)";
  std::string state = "4: ACTIVE";
  std::string interface = {};  ///< network interface on it; empty: none
  std::string speed = "400000";
};

class MachineTree : public RecordedMachine {
 public:
  /// Nodes of so many CPUs each, with a thread a core.
  explicit MachineTree(unsigned nodes = 1, unsigned cpus_of_node = 8) {
    const auto range = [](unsigned from, unsigned count) {
      return std::to_string(from) + "-" + std::to_string(from + count - 1);
    };
    append("/sys/devices/system/cpu/online", range(0, nodes * cpus_of_node));
    append("/sys/devices/system/node/online", range(0, nodes));
    for (unsigned i = 0; i < nodes; ++i)
      append("/sys/devices/system/node/node" + std::to_string(i) + "/cpulist",
             range(i * cpus_of_node, cpus_of_node));
  }

  void pci(const std::string& path, const std::string& vendor, const std::string& device,
           const std::string& kind, const std::string& node) {
    const std::string folder = pci_folder(path);
    for (const auto& [file, text] : {std::pair{"/vendor", vendor}, std::pair{"/device", device},
                                     std::pair{"/class", kind}, std::pair{"/numa_node", node}})
      replace(folder + file, text);
    // Each bridge on the way is a device of the bus, too.
    for (std::size_t end = path.find('/'); end != std::string::npos;) {
      end = path.find('/', end + 1);
      const std::string part = path.substr(0, end);
      link("/sys/bus/pci/devices/" + part.substr(part.rfind('/') + 1), pci_folder(part));
    }
  }

  void gpu(const std::string& path, const std::string& node = "0") {
    pci(path, "0x10de", "0x2330", "0x030200", node);
  }

  /// An RDMA device, with its interface if it has one.
  void rdma(const std::string& name, const Card& card) {
    pci(card.path, "0x15b3", card.device, "0x020000", card.node);
    const std::string device = pci_folder(card.path) + "/infiniband/" + name;
    append(device + "/ports/1/rate", card.rate);
    append(device + "/ports/1/state", card.state);
    append(device + "/ports/1/link_layer", card.interface.empty() ? "InfiniBand" : "Ethernet");
    link("/sys/class/infiniband/" + name, device);
    const std::string file = "uverbs" + std::to_string(files_++);
    append("/sys/class/infiniband_verbs/" + file + "/ibdev", name);
    append("/dev/infiniband/" + file, "");
    if (!card.interface.empty()) interface(card.interface, card);
  }

  void interface(const std::string& name, const Card& card) {
    pci(card.path, "0x15b3", card.device, "0x020000", card.node);
    const std::string folder = pci_folder(card.path) + "/net/" + name;
    describe_interface(folder, card.state.starts_with("4") ? "up" : "down", card.speed);
    link(folder + "/device", pci_folder(card.path));
    link("/sys/class/net/" + name, folder);
  }

  /// An interface without hardware. For `other_end` see iflink of the kernel.
  void software_interface(const std::string& name, const std::string& other_end = "7") {
    const std::string folder = "/sys/devices/virtual/net/" + name;
    describe_interface(folder, "up", "10000");
    append(folder + "/ifindex", "7");
    append(folder + "/iflink", other_end);
    link("/sys/class/net/" + name, folder);
  }

  void bond(const std::string& name, const std::vector<std::string>& members, const std::string& speed) {
    software_interface(name);
    const std::string folder = "/sys/devices/virtual/net/" + name;
    std::string list;
    for (const std::string& member : members) {
      list += (list.empty() ? "" : " ") + member;
      link("/sys/class/net/" + member + "/master", folder);
    }
    replace(folder + "/bonding/slaves", list);
    replace(folder + "/speed", speed);
  }

  /// A link as the kernel makes it, with a relative target.
  void link(const std::string& at, const std::string& target) {
    namespace fs = std::filesystem;
    if (fs::exists(root() + at)) return;
    fs::create_directories(fs::path(root() + at).parent_path());
    const fs::path from = fs::canonical(fs::path(root() + at).parent_path());
    fs::create_symlink(fs::canonical(root() + target).lexically_relative(from),
                       from / fs::path(at).filename());
  }

  static std::string pci_folder(const std::string& path) { return "/sys/devices/" + path; }

 private:
  void describe_interface(const std::string& folder, const std::string& state, const std::string& speed) {
    append(folder + "/type", "1");
    append(folder + "/operstate", state);
    append(folder + "/speed", speed);
  }

  int files_ = 0;
};

}  // namespace headrace::test
