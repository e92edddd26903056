// SPDX-License-Identifier: Apache-2.0
#include "base/errors.hpp"
#include "topology/nics.hpp"
#include "topology/small_file.hpp"

#include <cmath>
#include <cstdlib>
#include <filesystem>

namespace headrace {
namespace {

namespace fs = std::filesystem;

const std::string rdma_class = "/sys/class/infiniband/";

/// "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)".
std::uint64_t read_rate(const std::string& port) {
  constexpr double most = 100'000;  // Gbit/s
  const std::string text = read_small_file(port + "/rate").value_or("");
  const double rate = std::strtod(text.c_str(), nullptr);
  if (!(rate > 0 && rate <= most) || text.find("Gb/sec") == std::string::npos) return 0;
  return static_cast<std::uint64_t>(std::lround(rate * 1000));
}

/// "4: ACTIVE". Nullopt if the file cannot be read.
std::optional<bool> read_port_up(const std::string& port) {
  const auto state = read_small_file(port + "/state");
  if (!state || state->empty()) return std::nullopt;
  return state->find("ACTIVE") != std::string::npos;
}

void add_port(RdmaDevice& device, const std::string& port) {
  const std::optional<bool> up = read_port_up(port);
  if (up) device.up = device.up.value_or(false) || *up;
  if (up.value_or(true)) device.speed_mbit += read_rate(port);
  const std::string layer = read_small_file(port + "/link_layer").value_or("");
  if (device.link_layer.empty() && (layer == "Ethernet" || layer == "InfiniBand")) device.link_layer = layer;
}

/// Why the device cannot be opened here. A container sees all devices of the machine in /sys, and has files
/// in /dev for its own.
std::string why_hidden(const std::string& root, const std::string& name) {
  const std::string verbs = root + "/sys/class/infiniband_verbs/";
  for (const std::string& file : names_in(verbs)) {
    if (read_small_file(fmt::format("{}{}/ibdev", verbs, file)) != name) continue;
    std::error_code ignored;
    if (fs::exists(fmt::format("{}/dev/infiniband/{}", root, file), ignored)) return {};
    return fmt::format("this process has no /dev/infiniband/{}: give it to the container", file);
  }
  return "no file in /dev/infiniband belongs to it: load the kernel's module ib_uverbs";
}

RdmaDevice read_rdma_device(const std::string& root, const std::string& name) {
  const std::string folder = root + rdma_class + name;
  RdmaDevice device;
  device.name = name;
  for (const std::string& port : names_in(folder + "/ports"))
    add_port(device, fmt::format("{}/ports/{}", folder, port));
  device.hidden = why_hidden(root, name);
  device.interface = read_small_file(folder + "/parent").value_or("");
  device.place = read_pci_device(
      root, device.interface.empty() ? rdma_class + name : "/sys/class/net/" + device.interface);
  return device;
}

}  // namespace

std::vector<RdmaDevice> read_rdma_devices(const std::string& root) {
  std::vector<RdmaDevice> devices;
  for (const std::string& name : names_in(root + rdma_class)) devices.push_back(read_rdma_device(root, name));
  return devices;
}

}  // namespace headrace
