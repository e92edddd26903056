# SPDX-License-Identifier: Apache-2.0
# Where things go. A wheel holds the build tree's shape inside the package; an installation puts the library and what belongs
# to it into one folder of its own, lib/headrace.

if(TARGET headrace)
  install(TARGETS headrace LIBRARY DESTINATION ${HEADRACE_INSTALL_LIBDIR})
endif()
get_property(headrace_all_backends GLOBAL PROPERTY HEADRACE_BACKENDS)
foreach(backend IN LISTS headrace_all_backends)
  install(TARGETS ${backend} LIBRARY DESTINATION ${HEADRACE_INSTALL_LIBDIR}/backends)
endforeach()
if(TARGET headrace_probe_plugin)
  install(TARGETS headrace_probe_plugin RUNTIME DESTINATION ${HEADRACE_INSTALL_LIBDIR})
endif()
if(TARGET headrace_command)
  install(TARGETS headrace_command RUNTIME DESTINATION bin)
endif()
if(TARGET _headrace)
  install(TARGETS _headrace LIBRARY DESTINATION .)
endif()
if(NOT SKBUILD)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/headrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
