// SPDX-License-Identifier: Apache-2.0
// The functions of libhwloc for reading a machine's CPUs and memory.
#pragma once

#include "base/errors.hpp"

#include <hwloc.h>
#include <hwloc/distances.h>

#include <string>

namespace headrace {

/// The members have hwloc's names without the prefix. Inline helpers of the header are not used: they call
/// the library directly.
struct HwlocTable {
  decltype(&::hwloc_get_api_version) get_api_version = nullptr;
  decltype(&::hwloc_topology_init) topology_init = nullptr;
  decltype(&::hwloc_topology_set_xml) topology_set_xml = nullptr;
  decltype(&::hwloc_topology_set_flags) topology_set_flags = nullptr;
  decltype(&::hwloc_topology_load) topology_load = nullptr;
  decltype(&::hwloc_topology_destroy) topology_destroy = nullptr;
  decltype(&::hwloc_get_type_depth) get_type_depth = nullptr;
  decltype(&::hwloc_get_nbobjs_by_depth) get_nbobjs_by_depth = nullptr;
  decltype(&::hwloc_get_obj_by_depth) get_obj_by_depth = nullptr;
  decltype(&::hwloc_bitmap_next) bitmap_next = nullptr;
  decltype(&::hwloc_distances_get) distances_get = nullptr;
  decltype(&::hwloc_distances_release) distances_release = nullptr;
};

/// Loads libhwloc 2.
///   errors   not_supported (not installed, or another major version)
[[nodiscard]] Result<HwlocTable> load_hwloc();

}  // namespace headrace
