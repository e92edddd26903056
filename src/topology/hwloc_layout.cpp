// SPDX-License-Identifier: Apache-2.0
#include "topology/hwloc_layout.hpp"

#include <algorithm>
#include <memory>

namespace headrace {
namespace {

/// The objects of one type, such as all hardware threads.
std::vector<hwloc_obj_t> objects(const HwlocTable& hwloc, hwloc_topology_t topology, hwloc_obj_type_t type) {
  std::vector<hwloc_obj_t> found;
  const int depth = hwloc.get_type_depth(topology, type);
  if (depth == HWLOC_TYPE_DEPTH_UNKNOWN || depth == HWLOC_TYPE_DEPTH_MULTIPLE) return found;
  const unsigned count = hwloc.get_nbobjs_by_depth(topology, depth);
  for (unsigned i = 0; i < count; ++i) found.push_back(hwloc.get_obj_by_depth(topology, depth, i));
  return found;
}

hwloc_obj_t ancestor(hwloc_obj_t object, hwloc_obj_type_t type) {
  while (object != nullptr && object->type != type) object = object->parent;
  return object;
}

Cpu cpu_of(hwloc_obj_t thread) {
  Cpu cpu;
  cpu.id = thread->os_index;
  // Some virtual machines have threads without cores: then each thread is a core.
  const hwloc_obj_t core = ancestor(thread, HWLOC_OBJ_CORE);
  cpu.core = core != nullptr ? core->logical_index : thread->logical_index;
  const hwloc_obj_t package = ancestor(thread, HWLOC_OBJ_PACKAGE);
  if (package != nullptr && package->os_index != HWLOC_UNKNOWN_INDEX) cpu.package = package->os_index;
  return cpu;
}

NumaNode node_of(const HwlocTable& hwloc, hwloc_obj_t object) {
  NumaNode node;
  node.id = object->os_index;
  node.memory_bytes = object->attr->numanode.local_memory;
  for (int cpu = hwloc.bitmap_next(object->cpuset, -1); cpu >= 0;
       cpu = hwloc.bitmap_next(object->cpuset, cpu)) {
    node.cpus.push_back(static_cast<unsigned>(cpu));
  }
  return node;
}

/// The operating system's latencies, if it has them for exactly these nodes.
std::vector<std::vector<unsigned>> distances_of(const HwlocTable& hwloc, hwloc_topology_t topology,
                                                const std::vector<NumaNode>& nodes) {
  unsigned count = 1;
  hwloc_distances_s* matrix = nullptr;
  const unsigned long kind = HWLOC_DISTANCES_KIND_FROM_OS | HWLOC_DISTANCES_KIND_MEANS_LATENCY;
  if (hwloc.distances_get(topology, &count, &matrix, kind, 0) != 0 || count == 0) return {};
  std::vector<std::vector<unsigned>> rows;
  const std::size_t size = matrix->nbobjs;
  const auto place = [&](const NumaNode& node) {
    std::size_t i = 0;
    while (i < size && !(matrix->objs[i]->type == HWLOC_OBJ_NUMANODE && matrix->objs[i]->os_index == node.id))
      ++i;
    return i;
  };
  for (const NumaNode& from : nodes) {
    std::vector<unsigned>& row = rows.emplace_back();
    for (const NumaNode& to : nodes) {
      const std::size_t i = place(from);
      const std::size_t j = place(to);
      if (i < size && j < size) row.push_back(static_cast<unsigned>(matrix->values[i * size + j]));
    }
    if (row.size() != nodes.size()) {
      rows.clear();
      break;
    }
  }
  hwloc.distances_release(topology, matrix);
  return rows;
}

}  // namespace

Result<MachineLayout> read_hwloc_layout(const HwlocTable& hwloc, const std::string& xml_path) {
  hwloc_topology_t raw = nullptr;
  if (hwloc.topology_init(&raw) != 0) return make_error(Code::backend_failed, "hwloc cannot make a topology");
  const std::unique_ptr<hwloc_topology, decltype(hwloc.topology_destroy)> topology(raw,
                                                                                   hwloc.topology_destroy);
  if (!xml_path.empty() && hwloc.topology_set_xml(raw, xml_path.c_str()) != 0) {
    return os_error(errno, "read the machine that {} describes", xml_path);
  }
  // The whole machine, as /sys shows it. What this process may use is read elsewhere.
  hwloc.topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc.topology_load(raw) != 0) return os_error(Code::backend_failed, errno, "hwloc reads the machine");

  MachineLayout layout;
  for (const hwloc_obj_t thread : objects(hwloc, raw, HWLOC_OBJ_PU)) layout.cpus.push_back(cpu_of(thread));
  for (const hwloc_obj_t node : objects(hwloc, raw, HWLOC_OBJ_NUMANODE))
    layout.nodes.push_back(node_of(hwloc, node));
  if (layout.cpus.empty() || layout.nodes.empty()) {
    return make_error(Code::backend_failed, "hwloc found {} CPUs and {} NUMA nodes", layout.cpus.size(),
                      layout.nodes.size());
  }
  std::ranges::sort(layout.nodes, {}, &NumaNode::id);
  layout.distances = distances_of(hwloc, raw, layout.nodes);
  put_in_order(layout);
  return layout;
}

}  // namespace headrace
