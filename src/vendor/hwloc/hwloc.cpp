// SPDX-License-Identifier: Apache-2.0
#include "vendor/hwloc/hwloc.hpp"

#include "vendor/dynamic_library.hpp"

namespace headrace {

Result<HwlocTable> load_hwloc() {
  HEADRACE_TRY(library, DynamicLibrary::open({"libhwloc.so.15"}, "hwloc", "libhwloc15"));
  HwlocTable table;
  HEADRACE_TRY_VOID(library.bind("hwloc_get_api_version", table.get_api_version));
  HEADRACE_TRY_VOID(library.bind("hwloc_topology_init", table.topology_init));
  HEADRACE_TRY_VOID(library.bind("hwloc_topology_set_xml", table.topology_set_xml));
  HEADRACE_TRY_VOID(library.bind("hwloc_topology_set_flags", table.topology_set_flags));
  HEADRACE_TRY_VOID(library.bind("hwloc_topology_load", table.topology_load));
  HEADRACE_TRY_VOID(library.bind("hwloc_topology_destroy", table.topology_destroy));
  HEADRACE_TRY_VOID(library.bind("hwloc_get_type_depth", table.get_type_depth));
  HEADRACE_TRY_VOID(library.bind("hwloc_get_nbobjs_by_depth", table.get_nbobjs_by_depth));
  HEADRACE_TRY_VOID(library.bind("hwloc_get_obj_by_depth", table.get_obj_by_depth));
  HEADRACE_TRY_VOID(library.bind("hwloc_bitmap_next", table.bitmap_next));
  HEADRACE_TRY_VOID(library.bind("hwloc_distances_get", table.distances_get));
  HEADRACE_TRY_VOID(library.bind("hwloc_distances_release", table.distances_release));
  // Objects are read through structs of the header of this build. They are stable within a major version.
  const unsigned version = table.get_api_version();
  if (version >> 16 != HWLOC_API_VERSION >> 16) {
    return make_error(Code::not_supported, "{} has interface {:#x} and this program was built for {:#x}",
                      library.name(), version, HWLOC_API_VERSION);
  }
  return table;
}

}  // namespace headrace
