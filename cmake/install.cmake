# SPDX-License-Identifier: Apache-2.0
# Where things go. `cmake --install` puts the library and what belongs to it into one folder of its own, lib/headrace, and beside
# it what builds of other programs look for: a CMake package and a file for pkg-config. The component `package`, which pip
# installs, has the build tree's shape inside the Python package.

include(CMakePackageConfigHelpers)

# headrace_install(<target> <folder in the package> <folder on a system> <component>). What a program in C or C++ needs is of the
# component `library`.
function(headrace_install target package system component)
  if(TARGET ${target})
    # A wheel holds no links, only copies: the name without a version, for compilers, would double the library there.
    install(TARGETS ${target} LIBRARY DESTINATION ${package} COMPONENT package EXCLUDE_FROM_ALL NAMELINK_SKIP
                              RUNTIME DESTINATION ${package} COMPONENT package EXCLUDE_FROM_ALL)
    set(export "")
    if(target STREQUAL "headrace")
      set(export EXPORT headrace)
    endif()
    if(system)
      install(TARGETS ${target} ${export} LIBRARY DESTINATION ${system} COMPONENT ${component}
                                          RUNTIME DESTINATION ${system} COMPONENT ${component})
    endif()
  endif()
endfunction()

headrace_install(headrace lib lib/headrace library)
headrace_install(headrace_probe_plugin lib lib/headrace library)
headrace_install(headrace_kernels lib lib/headrace library)
headrace_install(headrace_torch lib lib/headrace torch)
headrace_install(headrace_command bin bin command)
headrace_install(_headrace . "" "")
headrace_install(_compiled compat/nixl "" "")
headrace_install(headrace_torch_group _torch "" "")
headrace_install(headrace_torchcomms lib "" "")
get_property(headrace_all_backends GLOBAL PROPERTY HEADRACE_BACKENDS)
foreach(backend IN LISTS headrace_all_backends)
  headrace_install(${backend} lib/backends lib/headrace/backends library)
endforeach()
if(TARGET headrace_torch)
  install(FILES ${headrace_lib_dir}/libheadrace_torch.json DESTINATION lib COMPONENT package EXCLUDE_FROM_ALL)
  install(FILES ${headrace_lib_dir}/libheadrace_torch.json DESTINATION lib/headrace COMPONENT torch)
endif()
if(TARGET headrace_window_bitcode)
  install(FILES ${headrace_lib_dir}/headrace_window.bc DESTINATION lib COMPONENT package EXCLUDE_FROM_ALL)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/headrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)

# find_package(headrace): the target headrace::headrace.
if(TARGET headrace)
  install(EXPORT headrace FILE headraceConfig.cmake NAMESPACE headrace:: DESTINATION lib/cmake/headrace COMPONENT library)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/headraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/headrace.pc.in ${PROJECT_BINARY_DIR}/headrace.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/headraceConfigVersion.cmake DESTINATION lib/cmake/headrace COMPONENT library)
  install(FILES ${PROJECT_BINARY_DIR}/headrace.pc DESTINATION lib/pkgconfig COMPONENT library)
endif()
