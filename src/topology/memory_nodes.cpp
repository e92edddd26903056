// SPDX-License-Identifier: Apache-2.0
#include "topology/memory_nodes.hpp"

#include "topology/cpu_list.hpp"
#include "topology/small_file.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace headrace {

std::vector<unsigned> read_memory_nodes(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  for (const char* name : {"/has_memory", "/online"}) {
    const auto text = read_small_file(folder + name);
    if (!text) continue;
    if (auto nodes = parse_cpu_list(*text); nodes && !nodes->empty()) return *std::move(nodes);
  }
  return {0};
}

std::optional<unsigned> read_node_of_pci(const std::string& root, std::string device) {
  std::ranges::transform(device, device.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto text = read_small_file(root + "/sys/bus/pci/devices/" + device + "/numa_node");
  if (!text) return std::nullopt;
  unsigned node = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), node);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;  // "-1": unknown
  return node;
}

}  // namespace headrace
