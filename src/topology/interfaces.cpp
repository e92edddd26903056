// SPDX-License-Identifier: Apache-2.0
#include "topology/nics.hpp"
#include "topology/small_file.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

namespace headrace {
namespace {

namespace fs = std::filesystem;

const std::string interface_class = "/sys/class/net/";

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// A whole number in a file; nullopt if it has none, or has more.
std::optional<long long> read_number(const std::string& path, int base = 10) {
  std::string text = read_small_file(path).value_or("");
  if (base == 16 && text.starts_with("0x")) text.erase(0, 2);
  long long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<bool> read_up(const std::string& folder) {
  const auto state = read_small_file(folder + "/operstate");
  if (!state || state->empty()) return std::nullopt;
  if (*state == "up") return true;
  if (*state != "unknown") return false;
  // Drivers that keep no state, as of some virtual machines. An interface that is off refuses the question.
  return read_number(folder + "/carrier") == 1;
}

/// -1 and refusals mean unknown. The bound keeps sums of garbage in range.
std::uint64_t read_speed(const std::string& folder) {
  constexpr long long most = 100'000'000;  // 100 Tbit/s
  const long long speed = read_number(folder + "/speed").value_or(0);
  return speed > 0 && speed <= most ? static_cast<std::uint64_t>(speed) : 0;
}

/// From the kernel's ARPHRD_ numbers.
std::string layer_of(std::optional<long long> type) {
  if (type == 1) return "Ethernet";
  if (type == 32) return "InfiniBand";
  return {};
}

/// Ports for virtual functions are named "pf0vf3", for sub-functions "pf0sf3", those of the card "p0".
bool is_representor(const std::string& folder) {
  const std::string port = read_small_file(folder + "/phys_port_name").value_or("");
  return port.find("vf") != std::string::npos || port.find("sf") != std::string::npos;
}

bool has_lower(const std::string& folder) {
  return std::ranges::any_of(names_in(folder), [](const auto& name) { return name.starts_with("lower_"); });
}

/// An interface of /sys/devices/virtual.
InterfaceKind software_kind(const std::string& folder) {
  if (is_there(folder + "/bonding")) return InterfaceKind::bond;
  const auto own = read_number(folder + "/ifindex");
  const auto other = read_number(folder + "/iflink");
  const bool linked = own && other && *own != *other;
  const std::string event = read_small_file(folder + "/uevent").value_or("");
  const bool plain =
      event.find("DEVTYPE=") == std::string::npos || event.find("macvlan") != std::string::npos;
  // A VLAN has a lower interface here; a cable has its other end elsewhere.
  return linked && plain && !has_lower(folder) && !is_there(folder + "/tun_flags")
             ? InterfaceKind::cable
             : InterfaceKind::other_software;
}

InterfaceKind kind_of(const std::string& folder, const std::string& real) {
  constexpr long long loopback = 772;
  if (read_number(folder + "/type") == loopback) return InterfaceKind::loopback;
  if (real.find("/devices/virtual/") != std::string::npos || !is_there(folder + "/device"))
    return software_kind(folder);
  if (real.find("/usb") != std::string::npos) return InterfaceKind::usb;
  return is_representor(folder) ? InterfaceKind::representor : InterfaceKind::hardware;
}

std::string link_name(const std::string& link) {
  std::error_code ignored;
  return fs::read_symlink(link, ignored).filename().string();
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text + ' ') {
    if (c != ' ' && c != '\n' && c != '\t') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, {}));
    }
  }
  return words;
}

Interface read_interface(const std::string& root, const std::string& name) {
  const std::string folder = root + interface_class + name;
  std::error_code ignored;
  Interface found;
  found.name = name;
  found.kind = kind_of(folder, fs::canonical(folder, ignored).string());
  found.up = read_up(folder);
  found.speed_mbit = read_speed(folder);
  found.link_layer = layer_of(read_number(folder + "/type"));
  found.driver = link_name(folder + "/device/driver");
  found.master = link_name(folder + "/master");
  if (found.kind == InterfaceKind::bond)
    found.members = words_of(read_small_file(folder + "/bonding/slaves").value_or(""));
  found.place = read_pci_device(root, interface_class + name);
  return found;
}

}  // namespace

std::vector<Interface> read_interfaces(const std::string& root) {
  std::vector<Interface> found;
  const std::string folder = root + interface_class;
  for (const std::string& name : names_in(folder)) {
    std::error_code ignored;
    // bonding_masters is a file.
    if (fs::is_directory(fs::path(folder) / name, ignored)) found.push_back(read_interface(root, name));
  }
  return found;
}

}  // namespace headrace
