// SPDX-License-Identifier: Apache-2.0
#include "topology/nics.hpp"

#include <algorithm>
#include <filesystem>

namespace headrace {
namespace {

namespace fs = std::filesystem;

void set_place(Nic& nic, PciDevice place) {
  nic.what.pci = place.address;
  nic.what.model = place.model;
  nic.what.numa_node = place.numa_node;
  if (nic.what.driver.empty()) nic.what.driver = place.driver;
  nic.place = std::move(place);
}

Nic nic_of(const Interface& interface) {
  Nic nic;
  nic.what.name = interface.name;
  nic.what.interfaces = {interface.name};
  nic.what.link_layer = interface.link_layer;
  nic.what.speed_mbit = interface.speed_mbit;
  nic.what.up = interface.up;
  nic.what.driver = interface.driver;
  set_place(nic, interface.place);
  return nic;
}

Nic nic_of(const RdmaDevice& device) {
  Nic nic;
  nic.what.name = device.name;
  nic.what.rdma = true;
  nic.what.link_layer = device.link_layer;
  nic.what.speed_mbit = device.speed_mbit;
  nic.what.up = device.up;
  set_place(nic, device.place);
  return nic;
}

/// What all members of a bond have in common.
PciDevice common_place(const std::vector<PciDevice>& members) {
  PciDevice common = members.front();
  for (const PciDevice& other : members) {
    const auto parted = std::ranges::mismatch(common.bridges, other.bridges);
    common.bridges.erase(parted.in1, common.bridges.end());
    if (common.model != other.model) common.model.clear();
    if (common.driver != other.driver) common.driver.clear();
    if (common.numa_node != other.numa_node) common.numa_node.reset();
  }
  return common;
}

/// Sorts the devices of a machine into cards and those that are none.
class NicReader {
 public:
  explicit NicReader(const std::string& root)
      : root_(root), interfaces_(read_interfaces(root)), devices_(read_rdma_devices(root)) {}

  NicList read() {
    for (const RdmaDevice& device : devices_) add_device(device);
    for (const Interface& interface : interfaces_) add_interface(interface);
    leave_out_virtual_functions();
    std::ranges::sort(list_.usable, [](const Nic& a, const Nic& b) {
      if (a.what.pci != b.what.pci) return pci_address_less(a.what.pci, b.what.pci);
      return a.what.name < b.what.name;
    });
    std::ranges::sort(list_.left_out, {}, [](const LeftOutNic& left) { return left.nic.name; });
    return std::move(list_);
  }

 private:
  void leave_out(TopologyNic nic, std::string reason) {
    list_.left_out.push_back({std::move(nic), std::move(reason)});
  }

  /// A card without a link is left out; one whose state is unknown is not.
  void add(Nic nic) {
    if (nic.what.up == false)
      leave_out(std::move(nic.what), "its link is down");
    else
      list_.usable.push_back(std::move(nic));
  }

  [[nodiscard]] bool is_on(const Interface& interface, const RdmaDevice& device) const {
    if (!device.interface.empty()) return interface.name == device.interface;
    return interface.kind == InterfaceKind::hardware && !interface.place.address.empty() &&
           interface.place.address == device.place.address;
  }

  [[nodiscard]] const Interface* find(std::string_view name) const {
    const auto found = std::ranges::find(interfaces_, name, &Interface::name);
    return found == interfaces_.end() ? nullptr : &*found;
  }

  /// Whether another interface uses this one and has its addresses: a bond, or the synthetic interface of a
  /// virtual machine (Azure) above a card's function. A bridge does not count: it is not a card.
  [[nodiscard]] bool is_member(const Interface& interface) const {
    const Interface* const master = find(interface.master);
    return master != nullptr &&
           (master->kind == InterfaceKind::bond || master->kind == InterfaceKind::hardware);
  }

  /// The RDMA devices under an interface, or under the members of a bond.
  [[nodiscard]] std::vector<const RdmaDevice*> devices_under(const Interface& interface) const {
    std::vector<const RdmaDevice*> under;
    for (const RdmaDevice& device : devices_) {
      const auto carries = [&](const std::string& name) {
        const Interface* const one = find(name);
        return one != nullptr && is_on(*one, device);
      };
      const bool any = interface.kind == InterfaceKind::bond ? std::ranges::any_of(interface.members, carries)
                                                             : is_on(interface, device);
      if (any && device.hidden.empty()) under.push_back(&device);
    }
    return under;
  }

  /// A bond is an interface of a device that stands for all its members: it is the only one under them.
  [[nodiscard]] bool is_interface_of(const Interface& interface, const RdmaDevice& device) const {
    if (interface.kind != InterfaceKind::bond && !is_on(interface, device)) return false;
    const auto under = devices_under(interface);
    return under.size() == 1 && under.front() == &device && !is_member(interface);
  }

  void add_device(const RdmaDevice& device) {
    Nic nic = nic_of(device);
    if (!device.hidden.empty()) {
      leave_out(std::move(nic.what), device.hidden);
      return;
    }
    for (const Interface& interface : interfaces_) {
      if (!is_interface_of(interface, device)) continue;
      nic.what.interfaces.push_back(interface.name);
      if (nic.what.speed_mbit == 0) nic.what.speed_mbit = interface.speed_mbit;
      if (nic.what.link_layer.empty()) nic.what.link_layer = interface.link_layer;
    }
    add(std::move(nic));
  }

  void add_interface(const Interface& interface) {
    const bool usb = interface.kind == InterfaceKind::usb;
    if (is_member(interface)) {
      if (devices_under(interface).empty())
        leave_out(nic_of(interface).what, "it is a member of " + interface.master);
    } else if (usb) {
      leave_out(nic_of(interface).what, "it is a USB device, as links to management controllers are");
    } else if (interface.kind == InterfaceKind::bond) {
      add_bond(interface);
    } else if (is_plain_nic(interface)) {
      add(nic_of(interface));
    }
  }

  [[nodiscard]] bool is_plain_nic(const Interface& interface) const {
    if (!devices_under(interface).empty()) return false;
    if (interface.kind == InterfaceKind::hardware) return true;
    // On a host, ends of cables lead to containers. In a container, they lead out.
    return interface.kind == InterfaceKind::cable && interface.master.empty() &&
           std::ranges::none_of(interfaces_,
                                [](const Interface& i) { return i.kind == InterfaceKind::hardware; });
  }

  void add_bond(const Interface& bond) {
    std::vector<PciDevice> members;
    for (const std::string& name : bond.members)
      if (const Interface* const member = find(name)) members.push_back(member->place);
    if (members.empty() || devices_under(bond).size() == 1) return;
    std::ranges::sort(members, pci_address_less, &PciDevice::address);
    Nic nic = nic_of(bond);
    set_place(nic, common_place(members));
    add(std::move(nic));
  }

  /// A machine that shows a card shows its virtual functions, too, which share its link.
  void leave_out_virtual_functions() {
    std::vector<Nic> kept;
    for (const Nic& nic : list_.usable) {
      std::error_code ignored;
      const fs::path link = root_ + "/sys/bus/pci/devices/" + nic.what.pci + "/physfn";
      const std::string card = fs::read_symlink(link, ignored).filename().string();
      const auto same = [&](const Nic& other) { return !card.empty() && other.what.pci == card; };
      const auto found = std::ranges::find_if(list_.usable, same);
      if (found == list_.usable.end())
        kept.push_back(nic);
      else
        leave_out(nic.what, "it is a virtual function of " + found->what.name);
    }
    list_.usable = std::move(kept);
  }

  const std::string root_;
  const std::vector<Interface> interfaces_;
  const std::vector<RdmaDevice> devices_;
  NicList list_;
};

}  // namespace

NicList read_nics(const std::string& root) { return NicReader(root).read(); }

}  // namespace headrace
