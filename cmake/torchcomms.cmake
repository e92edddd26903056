# SPDX-License-Identifier: Apache-2.0
# The backend that torchcomms loads, built where its headers are given. They are those of C++ classes, so torchcomms itself, torch
# and this library belong together.

set(HEADRACE_TORCHCOMMS_ROOT "" CACHE PATH "A source tree of torchcomms, for libheadrace_torchcomms.so; empty: it is not built")
set(HEADRACE_TORCHCOMMS_LIBRARY "" CACHE FILEPATH "Its libtorchcomms.so; empty: that of the package that is installed beside torch")

# headrace_find_torchcomms(): sets torchcomms_library in the caller, or stops with the reason.
function(headrace_find_torchcomms)
  if(NOT EXISTS ${HEADRACE_TORCHCOMMS_ROOT}/comms/torchcomms/TorchCommBackend.hpp)
    message(FATAL_ERROR "HEADRACE_TORCHCOMMS_ROOT=${HEADRACE_TORCHCOMMS_ROOT} has no comms/torchcomms/TorchCommBackend.hpp: give "
                        "a clone of torchcomms' repository")
  endif()
  set(library "${HEADRACE_TORCHCOMMS_LIBRARY}")
  if(NOT library)
    cmake_path(GET torch_root PARENT_PATH packages)
    set(library ${packages}/torchcomms/libtorchcomms.so)
  endif()
  if(NOT EXISTS ${library})
    message(FATAL_ERROR "${library} does not exist: install torchcomms beside torch, or name its libtorchcomms.so by "
                        "-DHEADRACE_TORCHCOMMS_LIBRARY=...")
  endif()
  set(torchcomms_library ${library} PARENT_SCOPE)
endfunction()

# headrace_add_torchcomms(): bindings/torchcomms/*.cpp -> libheadrace_torchcomms.so.
function(headrace_add_torchcomms)
  if(NOT HEADRACE_TORCHCOMMS_ROOT)
    return()
  endif()
  if(NOT TARGET headrace_torch OR HEADRACE_SANITIZE)
    message(STATUS "libheadrace_torchcomms.so is not built: it needs a torch, and no sanitizer")
    return()
  endif()
  headrace_find_torchcomms()
  cmake_path(GET torchcomms_library PARENT_PATH folder)
  headrace_glob(sources bindings/torchcomms/*.cpp bindings/torch/comm/*.cpp)
  add_library(headrace_torchcomms MODULE ${sources})
  headrace_link_torch(headrace_torchcomms)
  target_include_directories(headrace_torchcomms PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(headrace_torchcomms SYSTEM PRIVATE ${HEADRACE_TORCHCOMMS_ROOT})
  target_link_libraries(headrace_torchcomms PRIVATE headrace ${torchcomms_library})
  target_link_options(headrace_torchcomms PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/torchcomms_exports.map)
  set_target_properties(
    headrace_torchcomms
    PROPERTIES UNITY_BUILD ON  # torch's headers take nine tenths of the time
               LIBRARY_OUTPUT_DIRECTORY ${headrace_lib_dir}
               BUILD_RPATH "${torch_root}/lib;${folder}"
               INSTALL_RPATH "$ORIGIN;$ORIGIN/../../torch/lib;$ORIGIN/../../torchcomms;${torch_root}/lib;${folder}"
               LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/torchcomms_exports.map)
endfunction()
