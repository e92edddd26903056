# SPDX-License-Identifier: Apache-2.0
# Where things go. `cmake --install` puts the library and what belongs to it into one folder of its own, lib/headrace. The
# component `package`, which pip installs, has the build tree's shape inside the Python package.

# headrace_install(<target> <folder in the package> <folder on a system>)
function(headrace_install target package system)
  if(TARGET ${target})
    # A wheel holds no links, only copies: the name without a version, for compilers, would double the library there.
    install(TARGETS ${target} LIBRARY DESTINATION ${package} COMPONENT package EXCLUDE_FROM_ALL NAMELINK_SKIP
                              RUNTIME DESTINATION ${package} COMPONENT package EXCLUDE_FROM_ALL)
    if(system)
      install(TARGETS ${target} LIBRARY DESTINATION ${system} RUNTIME DESTINATION ${system})
    endif()
  endif()
endfunction()

headrace_install(headrace lib lib/headrace)
headrace_install(headrace_probe_plugin lib lib/headrace)
headrace_install(headrace_kernels lib lib/headrace)
headrace_install(headrace_torch lib lib/headrace)
headrace_install(headrace_command bin bin)
headrace_install(_headrace . "")
headrace_install(_compiled compat/nixl "")
get_property(headrace_all_backends GLOBAL PROPERTY HEADRACE_BACKENDS)
foreach(backend IN LISTS headrace_all_backends)
  headrace_install(${backend} lib/backends lib/headrace/backends)
endforeach()
if(TARGET headrace_torch)
  install(FILES ${headrace_lib_dir}/libheadrace_torch.json DESTINATION lib COMPONENT package EXCLUDE_FROM_ALL)
  install(FILES ${headrace_lib_dir}/libheadrace_torch.json DESTINATION lib/headrace)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/headrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
