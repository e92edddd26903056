# SPDX-License-Identifier: Apache-2.0
# Device code: kernels/*/*.cu -> cubins -> lib/libheadrace_kernels.so, if there is a compiler for it. The host's half is compiled
# in any case, as headrace_kernels_host, and the CPU references, as headrace_kernels_reference, for tests with the fake driver.
#
# What others will run is compiled by NVRTC 12.8, for all kinds of GPU: a driver runs cubins of its own CUDA version and of older
# ones. A developer's build (CMAKE_BUILD_TYPE=Debug) has one kind, by nvcc. Either takes the other's place where it is missing.

set(HEADRACE_CUDA_ARCHS "" CACHE STRING "Kinds of GPU that device code is compiled for, as in 80;90a; empty: those that suit the build")
set(HEADRACE_DEVICE_COMPILER "" CACHE STRING "What compiles device code: nvrtc, nvcc, or nothing for the one that suits the build")
set_property(CACHE HEADRACE_DEVICE_COMPILER PROPERTY STRINGS "" nvrtc nvcc)
find_program(HEADRACE_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
mark_as_advanced(HEADRACE_NVCC)
set(headrace_device_code ${PROJECT_SOURCE_DIR}/tools/device_code.py)

# headrace_find_nvrtc(<python> <why not>): the Python whose package NVRTC 12.8 is, or "" and the reason.
function(headrace_find_nvrtc python why)
  set(candidate ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  if(SKBUILD)
    set(candidate "${Python_EXECUTABLE}")
  elseif(NOT EXISTS ${candidate})
    set(candidate python3)
  endif()
  execute_process(COMMAND ${candidate} ${headrace_device_code} --check RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE said
                  ERROR_STRIP_TRAILING_WHITESPACE)
  if(said STREQUAL "")
    set(said "${candidate} cannot be run: ${failed}")
  endif()
  if(failed EQUAL 0)
    set(${python} "${candidate}" PARENT_SCOPE)
  else()
    set(${python} "" PARENT_SCOPE)
  endif()
  set(${why} "${said}" PARENT_SCOPE)
endfunction()

# headrace_choose_archs(<compiler>): sets headrace_cuda_archs in the caller. Kinds that an older nvcc does not know are left out.
function(headrace_choose_archs compiler)
  set(archs "${HEADRACE_CUDA_ARCHS}")
  if(archs STREQUAL "" AND CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(archs 90a)
  elseif(archs STREQUAL "")
    set(archs 80 90a 100 120)
    if(compiler STREQUAL "nvcc")
      execute_process(COMMAND ${HEADRACE_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
      foreach(arch 80 90a 100 120)
        string(REPLACE "a" "" number ${arch})
        if(NOT known MATCHES "sm_${number}[^0-9]")
          list(REMOVE_ITEM archs ${arch})
        endif()
      endforeach()
    endif()
  endif()
  set(headrace_cuda_archs "${archs}" PARENT_SCOPE)
endfunction()

# headrace_choose_device_compiler(): sets device_compiler to nvrtc, nvcc or "" in the caller, nvrtc_python with nvrtc, and
# headrace_cuda_archs.
function(headrace_choose_device_compiler)
  if(NOT HEADRACE_DEVICE_COMPILER MATCHES "^(nvrtc|nvcc|)$")
    message(FATAL_ERROR "HEADRACE_DEVICE_COMPILER is \"${HEADRACE_DEVICE_COMPILER}\": write nvrtc, nvcc, or nothing.")
  endif()
  set(compiler "${HEADRACE_DEVICE_COMPILER}")
  set(python "")
  if(compiler STREQUAL "nvrtc" OR (compiler STREQUAL "" AND (NOT CMAKE_BUILD_TYPE STREQUAL "Debug" OR NOT HEADRACE_NVCC)))
    headrace_find_nvrtc(python why)
    if(NOT python AND compiler STREQUAL "nvrtc")
      message(FATAL_ERROR "${why}")
    elseif(python)
      set(compiler nvrtc)
    endif()
  endif()
  if(compiler STREQUAL "nvcc" AND NOT HEADRACE_NVCC)
    message(FATAL_ERROR "HEADRACE_DEVICE_COMPILER is nvcc, and there is none: install the CUDA toolkit, or name it by -DHEADRACE_NVCC=...")
  elseif(compiler STREQUAL "" AND HEADRACE_NVCC)
    set(compiler nvcc)
    if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
      message(WARNING "Device code by ${HEADRACE_NVCC}: drivers older than its CUDA will not run it. For drivers from 570 on: ${why}")
    endif()
  endif()
  headrace_choose_archs("${compiler}")
  if(compiler STREQUAL "")
    message(STATUS "libheadrace_kernels.so is not built, and GPUs need it: there is no nvcc, and ${why}")
  else()
    message(STATUS "Device code by ${compiler} for ${headrace_cuda_archs}")
  endif()
  set(device_compiler "${compiler}" PARENT_SCOPE)
  set(nvrtc_python "${python}" PARENT_SCOPE)
  set(headrace_cuda_archs "${headrace_cuda_archs}" PARENT_SCOPE)
endfunction()

# headrace_image_table(<output> <symbol> <cubin>...): writes C++ that holds the cubins, named <anything>.sm_<arch>.cubin, as
# `<symbol>s[]` and `<symbol>_count` of headrace_kernel_image_v1.
function(headrace_image_table output symbol)
  set(data "")
  set(rows "")
  set(count 0)
  foreach(cubin IN LISTS ARGN)
    string(REGEX MATCH "sm_(([0-9]+)([0-9])(a?))\\.cubin$" matched ${cubin})
    set(name ${CMAKE_MATCH_1})
    set(major ${CMAKE_MATCH_2})
    set(minor ${CMAKE_MATCH_3})
    set(exact 0)
    if(CMAKE_MATCH_4)
      set(exact 1)
    endif()
    string(APPEND data "asm(\".pushsection .rodata\\n.balign 64\\n.globl ${symbol}_${name}\\n.hidden ${symbol}_${name}\\n\"\n"
                       "    \"${symbol}_${name}: .incbin \\\"${cubin}\\\"\\n\"\n"
                       "    \".globl ${symbol}_${name}_end\\n.hidden ${symbol}_${name}_end\\n${symbol}_${name}_end: .byte 0\\n.popsection\");\n"
                       "extern \"C\" __attribute__((visibility(\"hidden\"))) const char ${symbol}_${name}[], ${symbol}_${name}_end[];\n")
    string(APPEND rows "    {\"sm_${name}\", ${major}, ${minor}, ${exact}, 0, ${symbol}_${name},\n"
                       "     static_cast<uint64_t>(${symbol}_${name}_end - ${symbol}_${name})},\n")
    math(EXPR count "${count} + 1")
  endforeach()
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT
"// Written by cmake/kernels.cmake.
#include <headrace/plugin/kernels_v1.h>

@data@
extern \"C\" const headrace_kernel_image_v1 @symbol@s[];
const headrace_kernel_image_v1 @symbol@s[] = {
@rows@};
extern \"C\" const uint64_t @symbol@_count;
const uint64_t @symbol@_count = @count@;
")
  # The assembler reads the cubins behind the compiler's back. A source inside a unity loses what it depends on.
  set_source_files_properties(${output} PROPERTIES OBJECT_DEPENDS "${ARGN}" SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# headrace_cubins(<variable> <source> [<what it includes>...]): a cubin of the source for each of headrace_cuda_archs, by
# device_compiler.
function(headrace_cubins variable source)
  cmake_path(GET source STEM stem)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cuh ${PROJECT_SOURCE_DIR}/kernels/nvrtc/*.h
       ${PROJECT_SOURCE_DIR}/include/headrace/plugin/kernels/*.h ${PROJECT_SOURCE_DIR}/src/moe/*.hpp)
  foreach(header backend columns comm dtype kernels)
    list(APPEND headers ${PROJECT_SOURCE_DIR}/include/headrace/plugin/${header}_v1.h)
  endforeach()
  # Of src/ device code sees headers without the standard library alone: layers.toml says which family uses which.
  set(includes -I ${PROJECT_SOURCE_DIR}/include -I ${PROJECT_SOURCE_DIR} -I ${PROJECT_SOURCE_DIR}/src)
  set(cubins "")
  foreach(arch IN LISTS headrace_cuda_archs)
    if(NOT arch MATCHES "^[0-9]+[0-9]a?$")
      message(FATAL_ERROR "HEADRACE_CUDA_ARCHS has \"${arch}\": write kinds of GPU like 80;90a;100;120.")
    endif()
    set(cubin ${PROJECT_BINARY_DIR}/kernels/${stem}.sm_${arch}.cubin)
    if(device_compiler STREQUAL "nvrtc")
      set(compile ${nvrtc_python} ${headrace_device_code} --arch ${arch})
    else()
      set(compile ${HEADRACE_NVCC} -cubin -std=c++20 -O3 $<$<CONFIG:Debug>:-lineinfo> -gencode=arch=compute_${arch},code=sm_${arch})
    endif()
    add_custom_command(
      OUTPUT ${cubin}
      COMMAND ${compile} ${includes} -o ${cubin} ${source}
      DEPENDS ${source} ${ARGN} ${headers} ${headrace_device_code}
      COMMENT "Compiling device code ${stem} for sm_${arch} by ${device_compiler}"
      VERBATIM COMMAND_EXPAND_LISTS)
    list(APPEND cubins ${cubin})
  endforeach()
  set(${variable} ${cubins} PARENT_SCOPE)
endfunction()

# headrace_family_list(<output> <list> <its header> <header> <object>): writes C++ that defines <list>, which <its header>
# declares: the <object> of each family, which <header> of the family's folder declares. NAME stands for the family.
function(headrace_family_list output list own_header header object)
  set(includes "")
  set(rows "")
  foreach(family IN LISTS headrace_families)
    string(REPLACE NAME ${family} include "#include \"kernels/NAME/${header}\"\n")
    string(APPEND includes "${include}")
    string(APPEND rows "    &headrace::kernels::${family}::${object},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT
"// Written by cmake/kernels.cmake: the folders of kernels/ with device code.
#include \"@own_header@\"
@includes@
#include <type_traits>

namespace {
using List = std::remove_const_t<decltype(@list@)>;
constexpr List::value_type entries[] = {
@rows@};
}  // namespace

constinit const List @list@(entries);
")
endfunction()

# The host's half of the families, as headrace_kernels_host, and their CPU references, as headrace_kernels_reference.
function(headrace_add_kernel_hosts)
  headrace_glob(sources kernels/*/*.cpp)
  set(references ${sources})
  list(FILTER references INCLUDE REGEX "/reference\\.cpp$")
  list(REMOVE_ITEM sources ${references} ${PROJECT_SOURCE_DIR}/kernels/library/exports.cpp)
  set(folder ${PROJECT_BINARY_DIR}/kernels)
  headrace_family_list(${folder}/families.cpp headrace::kernels::families kernels/library/library.hpp NAME.hpp family)
  headrace_family_list(${folder}/references.cpp headrace::kernels::reference::families kernels/common/reference.hpp
                       reference.hpp reference_family)
  add_library(headrace_kernels_host STATIC ${sources} ${folder}/families.cpp)
  add_library(headrace_kernels_reference STATIC ${references} ${folder}/references.cpp)
  foreach(target headrace_kernels_host headrace_kernels_reference)
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${target} PUBLIC headrace_options)
  endforeach()
endfunction()

# A folder of kernels/ with a .cu file is a family. All .cu files are one translation unit, hence one cubin for each kind of GPU.
function(headrace_add_kernels)
  file(GLOB device_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*/*.cu)
  if(NOT device_sources)
    return()
  endif()
  list(TRANSFORM device_sources REPLACE "^.*/kernels/([^/]+)/[^/]+$" "\\1" OUTPUT_VARIABLE headrace_families)
  list(REMOVE_DUPLICATES headrace_families)
  headrace_add_kernel_hosts()

  if(HEADRACE_FUZZ)
    return()
  endif()
  headrace_choose_device_compiler()
  if(device_compiler STREQUAL "")
    return()
  endif()
  set(all ${PROJECT_BINARY_DIR}/kernels/headrace_kernels.cu)
  set(includes "")
  foreach(source IN LISTS device_sources)
    string(APPEND includes "#include \"${source}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT ${all} @ONLY CONTENT "@includes@")
  headrace_cubins(cubins ${all} ${device_sources})
  set(images ${PROJECT_BINARY_DIR}/kernels/images.cpp)
  headrace_image_table(${images} headrace_kernel_image ${cubins})
  add_library(headrace_kernels SHARED kernels/library/exports.cpp ${images})
  target_link_libraries(headrace_kernels PRIVATE headrace_kernels_host headrace_options)
  set_target_properties(headrace_kernels PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${headrace_lib_dir})
  target_link_options(headrace_kernels PRIVATE -Wl,--exclude-libs,ALL)
  if(HEADRACE_BENCH AND TARGET headrace_gpu)
    headrace_add_gpu_bench(bench_gpu_probe gpu_probe.cpp probe_kernels.cu headrace_probe_image)
    headrace_add_gpu_bench(bench_gpu_ceilings ceilings.cpp ceiling_kernels.cu headrace_ceiling_image)
    headrace_add_gpu_bench(bench_gpu_collectives collectives.cpp collective_kernels.cu headrace_bare_collective_image)
    headrace_add_gpu_bench(bench_gpu_moe moe.cpp moe_kernels.cu headrace_bare_moe_image)
  endif()
endfunction()

# bench/gpu/<source> -> <name>, on src/gpu alone, with kernels of its own beside those of the library.
function(headrace_add_gpu_bench name source kernels symbol)
  headrace_cubins(cubins ${PROJECT_SOURCE_DIR}/bench/gpu/${kernels})
  set(images ${PROJECT_BINARY_DIR}/kernels/${symbol}s.cpp)
  headrace_image_table(${images} ${symbol} ${cubins})
  add_executable(${name} ${PROJECT_SOURCE_DIR}/bench/gpu/${source} ${images})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
  headrace_existing(rooms headrace_moe headrace_gpu headrace_memory headrace_vendor headrace_base)
  target_link_libraries(${name} PRIVATE headrace_kernels_reference headrace_kernels_host ${rooms} headrace_options headrace_foreign)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  add_dependencies(${name} headrace_kernels)
endfunction()

# cuda.h is needed nowhere; where it is, a test holds our own declarations against it.
find_path(HEADRACE_CUDA_DIR cuda.h HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include NO_DEFAULT_PATH)
mark_as_advanced(HEADRACE_CUDA_DIR)
if(HEADRACE_CUDA_DIR)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/unit/vendor/cuda_types_test.cpp
                              PROPERTIES COMPILE_OPTIONS "-isystem${HEADRACE_CUDA_DIR}")
endif()

# bindings/triton/window.cu -> lib/headrace_window.bc, LLVM bitcode for headrace.triton, where a clang compiles for NVIDIA's GPUs.
# It needs no CUDA.
function(headrace_add_window_bitcode)
  if(HEADRACE_FUZZ)
    return()
  endif()
  find_program(HEADRACE_CLANG NAMES clang++ clang++-22 clang++-21 clang++-20 clang++-19 clang++-18 clang++-17 clang++-16)
  mark_as_advanced(HEADRACE_CLANG)
  set(compile ${HEADRACE_CLANG} -x c++ --target=nvptx64-nvidia-cuda -march=sm_80 -ffreestanding -Xclang -fconvergent-functions
              -std=c++20 -O2 -fno-exceptions -Wno-unknown-cuda-version -emit-llvm -c)
  set(failed "there is no clang++")
  if(HEADRACE_CLANG)
    execute_process(COMMAND ${compile} /dev/null -o /dev/null RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  endif()
  if(failed)
    message(STATUS "lib/headrace_window.bc is not built, and headrace.triton needs it: install a clang that compiles for nvptx64")
    return()
  endif()
  set(source ${PROJECT_SOURCE_DIR}/bindings/triton/window.cu)
  set(bitcode ${headrace_lib_dir}/headrace_window.bc)
  add_custom_command(
    OUTPUT ${bitcode}
    COMMAND ${compile} -I${PROJECT_SOURCE_DIR}/include -o ${bitcode} ${source}
    DEPENDS ${source} ${PROJECT_SOURCE_DIR}/include/headrace/device/window.cuh
            ${PROJECT_SOURCE_DIR}/include/headrace/device/window_v1.h ${PROJECT_SOURCE_DIR}/include/headrace/device/words.cuh
    COMMENT "Compiling windows for Triton"
    VERBATIM)
  add_custom_target(headrace_window_bitcode ALL DEPENDS ${bitcode})
endfunction()
