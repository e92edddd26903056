# SPDX-License-Identifier: Apache-2.0
# What links libtorch, built where a torch is installed: libheadrace_torch.so, and in the Python package the compiled process
# group of torch.distributed. Everything else builds and runs without.
#
# torch is the package of a Python: HEADRACE_TORCH_PYTHON, or the one that the Python module is built for, or .venv's, or
# python3. Its own CMake files are not used: they ask for the CUDA toolkit, of which nothing is needed here.

include(CheckCXXSourceCompiles)

set(HEADRACE_TORCH_PYTHON "" CACHE FILEPATH "The Python whose torch libheadrace_torch.so is built against; empty: .venv's or python3")

set(HEADRACE_BACKEND "" CACHE STRING "What the torch has to be for that libheadrace_torch.so is built against: cpu, cuda, rocm; empty: any")
if(DEFINED ENV{BACKEND})  # make build BACKEND=rocm
  set(HEADRACE_BACKEND "$ENV{BACKEND}" CACHE STRING "" FORCE)
endif()

# headrace_check_backend(): stops where the torch that was found is not of the kind that was asked for.
function(headrace_check_backend)
  if(HEADRACE_BACKEND STREQUAL "")
    return()
  endif()
  if(NOT HEADRACE_BACKEND MATCHES "^(cpu|cuda|rocm)$")
    message(FATAL_ERROR "BACKEND=${HEADRACE_BACKEND}: there are cpu, cuda and rocm, or nothing for whatever torch is installed.")
  endif()
  set(advice "Install one for ${HEADRACE_BACKEND}, and name its Python by -DHEADRACE_TORCH_PYTHON=... if it is not .venv's.")
  if(torch_absent)
    message(FATAL_ERROR "BACKEND=${HEADRACE_BACKEND} needs a torch: ${torch_absent}. ${advice}")
  endif()
  if(NOT torch_accelerator STREQUAL HEADRACE_BACKEND)
    message(FATAL_ERROR "BACKEND=${HEADRACE_BACKEND}: torch ${torch_version} in ${torch_root} is one for ${torch_accelerator}. ${advice}")
  endif()
endfunction()

# headrace_find_torch(): sets torch_python, torch_root, torch_version, torch_accelerator in the caller, or torch_absent to the
# reason.
function(headrace_find_torch)
  set(python "${HEADRACE_TORCH_PYTHON}")
  if(NOT python AND SKBUILD)
    set(python "${Python_EXECUTABLE}")
  endif()
  if(NOT python AND EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  endif()
  if(NOT python)
    find_program(python3 NAMES python3 NO_CACHE)
    set(python "${python3}")
  endif()
  # version.py alone is run: importing torch takes seconds.
  execute_process(
    COMMAND "${python}" -c "
import importlib.util, pathlib, runpy, sys
spec = importlib.util.find_spec('torch')
if spec is None or not spec.origin: sys.exit('absent')
root = pathlib.Path(spec.origin).parent
about = runpy.run_path(str(root / 'version.py'))
kind = 'rocm' if about.get('hip') else 'cuda' if about.get('cuda') else 'cpu'
print(root, about['__version__'], kind, sep='|', end='')"
    RESULT_VARIABLE failed OUTPUT_VARIABLE found ERROR_QUIET)
  if(NOT failed EQUAL 0)
    set(torch_absent "${python} has no torch" PARENT_SCOPE)
    return()
  endif()
  string(REPLACE "|" ";" found "${found}")
  list(GET found 0 root)
  if(NOT EXISTS ${root}/lib/libtorch_cpu.so OR NOT EXISTS ${root}/include/torch/csrc/inductor/aoti_package/model_package_loader.h)
    set(torch_absent "the torch in ${root} has no library or no header of AOTInductor: 2.11 or newer is needed" PARENT_SCOPE)
    return()
  endif()
  list(GET found 1 version)
  list(GET found 2 accelerator)
  set(torch_python ${python} PARENT_SCOPE)
  set(torch_root ${root} PARENT_SCOPE)
  set(torch_version ${version} PARENT_SCOPE)
  set(torch_accelerator ${accelerator} PARENT_SCOPE)
endfunction()

# headrace_link_torch(<target>): its headers and libraries, found again at run time by their path.
function(headrace_link_torch target)
  target_include_directories(${target} SYSTEM PRIVATE ${torch_root}/include ${torch_root}/include/torch/csrc/api/include)
  target_link_libraries(${target} PRIVATE headrace_options -Wl,--no-as-needed ${torch_root}/lib/libtorch.so
                                          ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
  set_target_properties(${target} PROPERTIES BUILD_RPATH ${torch_root}/lib)
endfunction()

# headrace_check_torch(): sets HEADRACE_TORCH_LOADS_FOLDERS where the loader takes a package's folder. The class does not show
# that; a method that came with the same release, 2.13, does. Asked once for each torch.
function(headrace_check_torch)
  if(HEADRACE_TORCH_CHECKED STREQUAL "${torch_root} ${torch_version}")
    return()
  endif()
  unset(HEADRACE_TORCH_LOADS_FOLDERS CACHE)
  set(CMAKE_REQUIRED_INCLUDES ${torch_root}/include ${torch_root}/include/torch/csrc/api/include)
  set(CMAKE_REQUIRED_FLAGS "-w -O0")
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  check_cxx_source_compiles("
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
void allow_copy(torch::inductor::AOTIModelPackageLoader& loader, std::unordered_map<std::string, at::Tensor>& values) {
  loader.load_constants(values, false, false, false, true);
}" HEADRACE_TORCH_LOADS_FOLDERS)
  set(HEADRACE_TORCH_CHECKED "${torch_root} ${torch_version}" CACHE INTERNAL "The torch that was asked what it can do")
endfunction()

# bindings/torch/*.cpp -> lib/libheadrace_torch.so, and beside it libheadrace_torch.json, which says what it was built for
# to those who find that it does not load.
function(headrace_add_torch)
  headrace_glob(sources bindings/torch/*.cpp)
  if(NOT sources)
    return()
  endif()
  if(HEADRACE_FUZZ)
    message(STATUS "libheadrace_torch.so is not built: it is not fuzzed")
    return()
  endif()
  headrace_find_torch()
  headrace_check_backend()
  if(torch_absent)
    message(STATUS "libheadrace_torch.so is not built: ${torch_absent}. Models need it: install torch there, or name another "
                   "Python by -DHEADRACE_TORCH_PYTHON=..., and configure again")
    return()
  endif()
  message(STATUS "libheadrace_torch.so: torch ${torch_version} (${torch_accelerator}) in ${torch_root}")

  add_library(headrace_torch MODULE ${sources})
  headrace_link_torch(headrace_torch)
  target_include_directories(headrace_torch PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(headrace_torch PRIVATE HEADRACE_TORCH_VERSION="${torch_version}"
                                                    HEADRACE_TORCH_ACCELERATOR="${torch_accelerator}")
  set_target_properties(
    headrace_torch
    PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${headrace_lib_dir}
               INSTALL_RPATH "$ORIGIN/../../torch/lib;${torch_root}/lib")
  headrace_check_torch()
  if(HEADRACE_TORCH_LOADS_FOLDERS)
    target_compile_definitions(headrace_torch PRIVATE HEADRACE_TORCH_LOADS_FOLDERS)
  else()
    message(STATUS "torch ${torch_version} unpacks packages into the temporary folder by itself: 2.13 loads them from the cache")
  endif()
  file(CONFIGURE OUTPUT ${headrace_lib_dir}/libheadrace_torch.json @ONLY CONTENT
       "{\"torch\": \"@torch_version@\", \"accelerator\": \"@torch_accelerator@\", \"folder\": \"@torch_root@\"}\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${torch_root}/version.py)
  set(headrace_torch_python ${torch_python} PARENT_SCOPE)
  foreach(name torch_python torch_root torch_version)
    set(${name} ${${name}} PARENT_SCOPE)
  endforeach()

  # bench/torch/*.cpp -> bench_<name>: what is compared with, on libtorch alone.
  headrace_glob(programs bench/torch/*.cpp)
  foreach(program IN LISTS programs)
    if(HEADRACE_BENCH)
      cmake_path(GET program STEM name)
      add_executable(bench_${name} ${program})
      headrace_link_torch(bench_${name})
      set_target_properties(bench_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
    endif()
  endforeach()
endfunction()

# The versions of torch whose c10d::Backend the compiled process group has been built and tested with.
set(headrace_group_torches 2.13)

# headrace_add_torch_group(): bindings/torch/{c10d,comm}/*.cpp -> the extension module headrace._torch._c10d_torch2_13. It is for this
# version of torch and of Python; with others a group written in Python serves (headrace._torch.compiled).
function(headrace_add_torch_group)
  headrace_glob(sources bindings/torch/c10d/*.cpp bindings/torch/comm/*.cpp)
  if(NOT sources OR NOT TARGET headrace_torch OR HEADRACE_SANITIZE)
    return()
  endif()
  cmake_path(GET torch_python PARENT_PATH folder_of_torch)
  cmake_path(GET Python_EXECUTABLE PARENT_PATH folder_of_package)
  if(NOT folder_of_torch STREQUAL folder_of_package)
    message(STATUS "the compiled process group is not built: torch is that of ${torch_python}, and the package is for ${Python_EXECUTABLE}")
    return()
  endif()
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" version "${torch_version}")
  if(NOT version IN_LIST headrace_group_torches)
    message(STATUS "the compiled process group is not built: it is for torch ${headrace_group_torches}, and this is ${torch_version}")
    return()
  endif()
  string(REPLACE . _ name "_c10d_torch${version}")
  add_library(headrace_torch_group MODULE ${sources})
  headrace_link_torch(headrace_torch_group)
  target_include_directories(headrace_torch_group PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(headrace_torch_group PRIVATE HEADRACE_C10D_MODULE=${name})
  target_link_libraries(headrace_torch_group PRIVATE headrace Python::Module ${torch_root}/lib/libtorch_python.so)
  target_link_options(headrace_torch_group PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/python_exports.map)
  nanobind_extension(headrace_torch_group)  # the suffix
  if(NOT DEFINED CMAKE_UNITY_BUILD)  # torch's headers take nine tenths of the time
    set_target_properties(headrace_torch_group PROPERTIES UNITY_BUILD ON)
  endif()
  set_target_properties(
    headrace_torch_group
    PROPERTIES OUTPUT_NAME ${name}
               LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/python/_torch
               INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/../../torch/lib;${torch_root}/lib"
               LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/python_exports.map)
endfunction()
