// SPDX-License-Identifier: Apache-2.0
#include "topology/sysfs_layout.hpp"

#include "topology/cpu_list.hpp"
#include "topology/small_file.hpp"

#include <cstdlib>
#include <sstream>

namespace headrace {
namespace {

Result<std::vector<unsigned>> read_list(const std::string& path, const std::string& text) {
  auto numbers = parse_cpu_list(text);
  if (!numbers) return std::move(numbers).error().within(path);
  return numbers;
}

/// A core is named by its lowest hardware thread: core_id alone repeats in every socket and die.
Result<unsigned> core_mark(const std::string& folder, unsigned cpu) {
  for (const char* name : {"/core_cpus_list", "/thread_siblings_list"}) {  // the second before Linux 5.3
    const auto text = read_small_file(folder + name);
    if (!text) continue;
    HEADRACE_TRY(siblings, read_list(folder + name, *text));
    if (!siblings.empty()) return siblings.front();
  }
  return cpu;
}

unsigned read_package(const std::string& folder) {
  const auto text = read_small_file(folder + "/physical_package_id");
  const long number = text ? std::strtol(text->c_str(), nullptr, 10) : 0;
  return number < 0 ? 0 : static_cast<unsigned>(number);  // -1 where the firmware does not say
}

/// The value of `key` in a meminfo file, which is in kB, as bytes.
std::uint64_t read_meminfo(const std::string& path, std::string_view key) {
  const std::string text = read_small_file(path).value_or("");
  const std::size_t at = text.find(key);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + key.size(), nullptr, 10) * 1024;
}

Result<std::vector<unsigned>> read_distances(const std::string& folder, std::size_t nodes) {
  std::vector<unsigned> row;
  std::istringstream words(read_small_file(folder + "/distance").value_or(""));
  for (unsigned distance = 0; words >> distance;) row.push_back(distance);
  if (!row.empty() && row.size() != nodes) {
    return make_error(Code::corrupt, "{}/distance has {} numbers for {} nodes", folder, row.size(), nodes);
  }
  return row;
}

Result<void> read_nodes(const std::string& root, MachineLayout& layout) {
  const std::string folder = root + "/sys/devices/system/node";
  const auto online = read_small_file(folder + "/online");
  if (!online) {  // a kernel without NUMA: all memory is one node
    NumaNode& all = layout.nodes.emplace_back();
    for (const Cpu& cpu : layout.cpus) all.cpus.push_back(cpu.id);
    all.memory_bytes = read_meminfo(root + "/proc/meminfo", "MemTotal:");
    return {};
  }
  HEADRACE_TRY(ids, read_list(folder + "/online", *online));
  if (ids.empty()) return make_error(Code::corrupt, "{}/online names no node", folder);
  for (const unsigned id : ids) {
    const std::string node_folder = fmt::format("{}/node{}", folder, id);
    const std::string list_path = node_folder + "/cpulist";
    HEADRACE_TRY(cpus, read_list(list_path, read_small_file(list_path).value_or("")));
    layout.nodes.push_back({id, std::move(cpus), read_meminfo(node_folder + "/meminfo", "MemTotal:")});
    HEADRACE_TRY(row, read_distances(node_folder, ids.size()));
    if (!row.empty()) layout.distances.push_back(std::move(row));
  }
  if (layout.distances.size() != layout.nodes.size()) layout.distances.clear();
  return {};
}

}  // namespace

Result<MachineLayout> read_sysfs_layout(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/cpu";
  const auto online = read_small_file(folder + "/online");
  if (!online) return make_error(Code::not_supported, "{}/online cannot be read: is /sys mounted?", folder);
  HEADRACE_TRY(ids, read_list(folder + "/online", *online));
  if (ids.empty()) return make_error(Code::corrupt, "{}/online names no CPU", folder);
  MachineLayout layout;
  for (const unsigned id : ids) {
    const std::string topology = fmt::format("{}/cpu{}/topology", folder, id);
    HEADRACE_TRY(core, core_mark(topology, id));
    layout.cpus.push_back({id, core, read_package(topology)});
  }
  HEADRACE_TRY_VOID(read_nodes(root, layout));
  put_in_order(layout);
  return layout;
}

}  // namespace headrace
