// SPDX-License-Identifier: Apache-2.0
#include "topology/pci_device.hpp"

#include "base/errors.hpp"
#include "topology/memory_nodes.hpp"
#include "topology/small_file.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace headrace {
namespace {

namespace fs = std::filesystem;

/// Whether all characters of a text, at least one, are digits of base 16.
bool is_hex(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isxdigit(c) != 0; });
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// "pci0000:16".
bool is_host_bridge(std::string_view text) {
  if (!text.starts_with("pci")) return false;
  text.remove_prefix(3);
  const std::size_t colon = text.find(':');
  return colon != std::string_view::npos && is_hex(text.substr(0, colon)) && is_hex(text.substr(colon + 1));
}

/// The number behind "0x", of four digits; empty if the file has none.
std::string read_id(const std::string& path) {
  const std::string text = read_small_file(path).value_or("");
  if (!text.starts_with("0x") || text.size() != 6 || !is_hex(std::string_view(text).substr(2))) return {};
  return lower(text.substr(2));
}

std::string read_model(const std::string& folder) {
  const std::string vendor = read_id(folder + "/vendor");
  const std::string device = read_id(folder + "/device");
  return vendor.empty() || device.empty() ? std::string() : vendor + ":" + device;
}

std::string read_driver(const std::string& folder) {
  std::error_code ignored;
  return fs::read_symlink(folder + "/driver", ignored).filename().string();
}

/// Firmware often names the node of a bridge alone.
std::optional<unsigned> read_node(const std::string& root, const PciDevice& device) {
  if (auto node = read_node_of_pci(root, device.address)) return node;
  for (auto bridge = device.bridges.rbegin(); bridge != device.bridges.rend(); ++bridge) {
    if (auto node = read_node_of_pci(root, *bridge)) return node;
  }
  return std::nullopt;
}

/// "0x030000" and "0x030200" are GPUs; NVIDIA's bridges and sound devices have other classes.
bool is_gpu(const std::string& folder) {
  return read_small_file(folder + "/vendor") == "0x10de" &&
         read_small_file(folder + "/class").value_or("").starts_with("0x03");
}

/// Whether this process has the device file of a GPU, /dev/nvidia0, by the number that the driver tells. The
/// /proc of a container lists GPUs of other containers.
bool has_device_file(const std::string& root, const std::string& address) {
  const std::string text =
      read_small_file(root + "/proc/driver/nvidia/gpus/" + address + "/information").value_or("");
  constexpr std::string_view key = "Device Minor:";
  const std::size_t at = text.find(key);
  if (at == std::string::npos) return true;
  std::string_view number = std::string_view(text).substr(at + key.size());
  number = trim(number.substr(0, number.find('\n')));
  std::error_code ignored;
  return fs::exists(root + "/dev/nvidia" + std::string(number), ignored);
}

}  // namespace

bool is_pci_address(std::string_view text) {
  const std::size_t bus = text.find(':');
  if (bus == std::string_view::npos || bus < 4 || text.size() != bus + 8) return false;
  return text[bus + 3] == ':' && text[bus + 6] == '.' && is_hex(text.substr(0, bus)) &&
         is_hex(text.substr(bus + 1, 2)) && is_hex(text.substr(bus + 4, 2)) && is_hex(text.substr(bus + 7));
}

bool pci_address_less(std::string_view a, std::string_view b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

PciDevice read_pci_device(const std::string& root, const std::string& path) {
  PciDevice device;
  std::error_code failed;
  const fs::path real = fs::canonical(root + path, failed);
  if (failed) return device;
  fs::path folder;
  fs::path walked;
  for (const fs::path& part : real) {
    walked /= part;
    const std::string name = part.string();
    if (is_host_bridge(name)) {
      device.bridges.push_back(name);
    } else if (is_pci_address(name)) {
      if (!device.address.empty()) device.bridges.push_back(device.address);
      device.address = lower(name);
      folder = walked;
    }
  }
  if (device.address.empty()) return {};
  device.model = read_model(folder.string());
  device.driver = read_driver(folder.string());
  device.numa_node = read_node(root, device);
  return device;
}

Nearness nearness_of(const PciDevice& a, const PciDevice& b) {
  const std::size_t most = std::min(a.bridges.size(), b.bridges.size());
  std::size_t common = 0;
  while (common < most && a.bridges[common] == b.bridges[common]) ++common;
  // Devices that lie on the root bus have the host bridge alone in common, as in most virtual machines.
  if (common > 1 || (common == 1 && is_pci_address(a.bridges.front()))) return Nearness::pci_switch;
  if (common == 1) return Nearness::host_bridge;
  if (!a.numa_node || !b.numa_node) return Nearness::unknown;
  return *a.numa_node == *b.numa_node ? Nearness::numa_node : Nearness::machine;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed); !failed && entry != fs::directory_iterator();
       entry.increment(failed)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

PciGpus read_pci_gpus(const std::string& root) {
  PciGpus gpus;
  const std::string folder = "/sys/bus/pci/devices/";
  for (const std::string& name : names_in(root + folder)) {
    const std::string path = fmt::format("{}{}", folder, name);
    if (!is_gpu(root + path)) continue;
    PciDevice gpu = read_pci_device(root, path);
    if (gpu.address.empty()) gpu.address = lower(name);  // no link: its place is not known
    gpus.all.push_back(std::move(gpu));
  }
  std::ranges::sort(gpus.all, pci_address_less, &PciDevice::address);
  const std::vector<std::string> driven = names_in(root + "/proc/driver/nvidia/gpus");
  for (const std::string& name : driven) {
    if (is_pci_address(name) && has_device_file(root, name)) gpus.shown.push_back(lower(name));
  }
  if (driven.empty()) {
    for (const PciDevice& gpu : gpus.all) gpus.shown.push_back(gpu.address);
  }
  return gpus;
}

}  // namespace headrace
