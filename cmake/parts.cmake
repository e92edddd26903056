# SPDX-License-Identifier: Apache-2.0
# One function per kind of part. Each globs its folder, again at every build, and makes nothing while the folder holds no
# source: a part comes into being with its first file.
#
# The build tree, the wheel and an installation keep one shape, so that the library finds what belongs to it beside itself:
#   lib/libheadrace.so.0   lib/headrace-probe-plugin   lib/backends/headrace_backend_<name>.so   bin/headrace

set(headrace_bin_dir ${PROJECT_BINARY_DIR}/bin)
set(headrace_lib_dir ${PROJECT_BINARY_DIR}/lib)
set(headrace_backends_dir ${headrace_lib_dir}/backends)
set(headrace_tests_dir ${PROJECT_BINARY_DIR}/tests)

# headrace_glob(<variable> <pattern>...): the sources that match; a file named *_test.cpp only if its pattern says so.
function(headrace_glob variable)
  set(found "")
  foreach(pattern IN LISTS ARGN)
    file(GLOB matches CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${pattern})
    if(NOT pattern MATCHES "_test\\.cpp$")
      list(FILTER matches EXCLUDE REGEX "_test\\.cpp$")
    endif()
    list(APPEND found ${matches})
  endforeach()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# headrace_folders(<variable> <folder>): the names of the folders inside it.
function(headrace_folders variable folder)
  file(GLOB entries CONFIGURE_DEPENDS LIST_DIRECTORIES true RELATIVE ${PROJECT_SOURCE_DIR}/${folder}
       ${PROJECT_SOURCE_DIR}/${folder}/*)
  set(found "")
  foreach(entry IN LISTS entries)
    if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/${entry})
      list(APPEND found ${entry})
    endif()
  endforeach()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# headrace_existing(<variable> <target>...): those of the targets that exist.
function(headrace_existing variable)
  set(found "")
  foreach(target IN LISTS ARGN)
    if(TARGET ${target})
      list(APPEND found ${target})
    endif()
  endforeach()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# src/<room>/*.cpp -> static library headrace_<room> that sees the rooms of the levels below it.
function(headrace_add_room room)
  if(room STREQUAL "vendor" OR room STREQUAL "rail")
    headrace_glob(sources src/${room}/*.cpp src/${room}/*/*.cpp)
  else()
    headrace_glob(sources src/${room}/*.cpp)
  endif()
  if(NOT sources)
    return()
  endif()
  add_library(headrace_${room} STATIC ${sources})
  target_include_directories(headrace_${room} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  if(room STREQUAL "memory")
    # Its loops over pages and indices become vector code: a third of the time.
    set_source_files_properties(src/memory/page_list.cpp PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
  endif()
  if(room STREQUAL "fabric")
    # As page_list.cpp of memory.
    set_source_files_properties(src/fabric/page_indices.cpp PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
  endif()
  if(room STREQUAL "base")
    # Plugins and the memory of tests are hashed: not optimised, it takes most of the time of opening an agent.
    set_source_files_properties(src/base/hash.cpp PROPERTIES COMPILE_OPTIONS -O2 SKIP_PRECOMPILE_HEADERS ON)
  endif()
  if(room STREQUAL "moe")
    # As reduction.cpp of collectives.
    set(options -ffp-contract=off -fno-trapping-math $<$<CONFIG:Release>:-O3>)
    set_source_files_properties(src/moe/float8_blocks.cpp src/moe/sums.cpp
                                PROPERTIES COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON)
  endif()
  if(room STREQUAL "collectives")
    # Loops over elements become vector code, those over small floats only if GCC may compute both sides of a choice. Without
    # fused multiply-add the ranks of different CPUs get the same bits.
    set(options -ffp-contract=off -fno-trapping-math $<$<CONFIG:Release>:-O3>)
    set_source_files_properties(src/collectives/reduction.cpp PROPERTIES COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON)
    headrace_comm_left_out(left_out)
    if(left_out)
      message(STATUS "Backends of communicators that are left out: ${left_out}")
      target_compile_definitions(headrace_collectives PUBLIC HEADRACE_COMM_LEFT_OUT="${left_out}")
    endif()
  endif()
  set(below "")
  foreach(other IN LISTS headrace_rooms)
    if(TARGET headrace_${other} AND headrace_level_${other} LESS headrace_level_${room})
      list(PREPEND below headrace_${other})
    endif()
  endforeach()
  target_link_libraries(headrace_${room} PUBLIC headrace_options ${below} headrace_foreign)
  if(room STREQUAL "base")
    target_link_libraries(headrace_base PRIVATE headrace_spdlog)
    headrace_precompile(headrace_base ${headrace_common_headers})
  else()
    headrace_take_headers(headrace_${room} headrace_base)
  endif()
  if(room STREQUAL "formats")
    target_link_libraries(headrace_formats PUBLIC headrace_archives)
    # libheadrace.so takes those files of the archive that other rooms need, and with them no zlib: so the files that read
    # compressed archives, or need one that does, are joined apart from the others.
    set_target_properties(headrace_formats PROPERTIES UNITY_BUILD_MODE GROUP)
    foreach(source IN LISTS sources)
      if(source MATCHES "/(npz|npz_layout|tensor_file)\\.cpp$")
        set_source_files_properties(${source} PROPERTIES UNITY_GROUP zipped)
      else()
        set_source_files_properties(${source} PROPERTIES UNITY_GROUP plain)
      endif()
    endforeach()
  endif()
  set_property(GLOBAL APPEND PROPERTY HEADRACE_ROOM_TARGETS headrace_${room})
endfunction()

# bindings/c/*.cpp -> the C API, a part of libheadrace.so that sees the public headers alone.
function(headrace_add_c_api)
  headrace_glob(sources bindings/c/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_library(headrace_c STATIC ${sources})
  get_property(rooms GLOBAL PROPERTY HEADRACE_ROOM_TARGETS)
  list(REVERSE rooms)
  target_link_libraries(headrace_c PUBLIC headrace_options ${rooms})
  headrace_take_headers(headrace_c headrace_base)
  set_property(GLOBAL APPEND PROPERTY HEADRACE_ROOM_TARGETS headrace_c)
endfunction()

# All rooms -> libheadrace.so, whole, showing only what HEADRACE_API marks. Of formats it holds what the other rooms need.
function(headrace_add_library)
  get_property(rooms GLOBAL PROPERTY HEADRACE_ROOM_TARGETS)
  if(NOT rooms)
    return()
  endif()
  list(REMOVE_ITEM rooms headrace_formats)
  list(TRANSFORM rooms REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_library(headrace SHARED ${objects})
  add_library(headrace::headrace ALIAS headrace)
  set_target_properties(
    headrace
    PROPERTIES LINKER_LANGUAGE CXX
               # libheadrace.so.0: a program finds no library of another major version in its place.
               SOVERSION ${PROJECT_VERSION_MAJOR}
               LIBRARY_OUTPUT_DIRECTORY ${headrace_lib_dir}
               LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  target_include_directories(headrace INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(headrace INTERFACE cxx_std_20)
  target_link_options(headrace PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map -Wl,--exclude-libs,ALL)
  target_link_libraries(headrace PRIVATE $<TARGET_NAME_IF_EXISTS:headrace_formats> headrace_fmt Threads::Threads ${CMAKE_DL_LIBS})
  if(NOT HEADRACE_SANITIZE)
    # Clang leaves its sanitizers' symbols to the executable, so the check runs in the other builds.
    target_link_options(headrace PRIVATE -Wl,-z,defs)
  endif()
endfunction()

# headrace_backend_rooms(<variable>): the rooms that a backend may use, in link order.
function(headrace_backend_rooms variable)
  headrace_existing(rooms headrace_rail headrace_transport headrace_gpu headrace_memory headrace_host_link headrace_vendor headrace_wire headrace_base)
  set(${variable} ${rooms} PARENT_SCOPE)
endfunction()

# backends/<name>/*.cpp and those of its folders -> the plugin lib/backends/headrace_backend_<name>.so, and the static library
# headrace_backend_<name>_static (all but plugin.cpp) for tests that link a backend in.
function(headrace_add_backend name)
  headrace_glob(sources backends/${name}/*.cpp backends/${name}/*/*.cpp)
  if(NOT sources)
    return()
  endif()
  set(entry ${sources})
  list(FILTER entry INCLUDE REGEX "/plugin\\.cpp$")
  if(NOT entry)
    message(FATAL_ERROR "backends/${name} has no plugin.cpp, the file with HEADRACE_EXPORT_BACKEND.")
  endif()
  list(REMOVE_ITEM sources ${entry})
  headrace_backend_rooms(rooms)

  add_library(headrace_backend_${name}_static STATIC ${sources})
  target_include_directories(headrace_backend_${name}_static PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(headrace_backend_${name}_static PUBLIC headrace_options ${rooms} headrace_foreign)
  headrace_take_headers(headrace_backend_${name}_static headrace_base)
  set_property(GLOBAL APPEND PROPERTY HEADRACE_STATIC_BACKENDS headrace_backend_${name}_static)

  add_library(headrace_backend_${name} MODULE ${entry} $<TARGET_OBJECTS:headrace_backend_${name}_static>)
  target_link_libraries(headrace_backend_${name} PRIVATE headrace_backend_${name}_static)
  headrace_take_headers(headrace_backend_${name} headrace_base)
  set_target_properties(
    headrace_backend_${name}
    PROPERTIES PREFIX ""
               LIBRARY_OUTPUT_DIRECTORY ${headrace_backends_dir}
               LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/backend_exports.map)
  target_link_options(headrace_backend_${name} PRIVATE
                      -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/backend_exports.map -Wl,--exclude-libs,ALL)
  set_property(GLOBAL APPEND PROPERTY HEADRACE_BACKENDS headrace_backend_${name})
endfunction()

# tools/probe_plugin/*.cpp -> lib/headrace-probe-plugin, the child process in which an unknown plugin is tried first.
function(headrace_add_probe)
  headrace_glob(sources tools/probe_plugin/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(headrace_probe_plugin ${sources})
  headrace_existing(rooms headrace_engine headrace_memory headrace_vendor headrace_base)
  target_link_libraries(headrace_probe_plugin PRIVATE headrace_options ${rooms} headrace_foreign)
  set_target_properties(headrace_probe_plugin PROPERTIES OUTPUT_NAME headrace-probe-plugin
                                                         RUNTIME_OUTPUT_DIRECTORY ${headrace_lib_dir})
endfunction()

# headrace_reached(<variable> <folder> <source>...): the sources of the folder that these sources reach: x.hpp stands for x.cpp.
function(headrace_reached variable folder)
  set(reached "")
  set(pending ${ARGN})
  while(pending)
    list(POP_FRONT pending file)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(STRINGS ${file} lines REGEX "^#include \"${folder}/")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"(.*)\\.hpp\".*" "${PROJECT_SOURCE_DIR}/\\1" stem "${line}")
      foreach(next ${stem}.hpp ${stem}.cpp)
        if(EXISTS ${next} AND NOT next IN_LIST reached)
          list(APPEND reached ${next})
          list(APPEND pending ${next})
        endif()
      endforeach()
    endforeach()
  endwhile()
  list(FILTER reached INCLUDE REGEX "\\.cpp$")
  list(SORT reached)
  set(${variable} "${reached}" PARENT_SCOPE)
endfunction()

# cli/*.cpp, cli/<folder>/*.cpp -> bin/headrace on libheadrace.so. What tests/unit/cli reaches is the static library
# headrace_cli, so that these tests do not wait for the rest.
function(headrace_add_cli)
  headrace_glob(sources cli/*.cpp cli/*/*.cpp)
  if(NOT sources OR NOT TARGET headrace)
    return()
  endif()
  headrace_glob(tests tests/unit/cli/*_test.cpp tests/unit/cli/*/*_test.cpp)
  headrace_reached(parts cli ${tests})
  if(NOT parts)  # a source package without tests
    set(parts ${sources})
    list(FILTER parts EXCLUDE REGEX "/main\\.cpp$")
  endif()
  list(REMOVE_ITEM sources ${parts})
  headrace_existing(rooms headrace_gpu headrace_memory headrace_formats headrace_vendor headrace_base)
  # Adds as src/moe/sums.cpp.
  set_source_files_properties(cli/demo/expert_sums.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off SKIP_PRECOMPILE_HEADERS ON)
  add_library(headrace_cli STATIC ${parts})
  target_include_directories(headrace_cli PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(headrace_cli PUBLIC headrace headrace_options headrace_cli_foreign ${rooms})
  headrace_take_headers(headrace_cli headrace_base)
  add_executable(headrace_command ${sources})
  target_link_libraries(headrace_command PRIVATE headrace_cli)
  headrace_take_headers(headrace_command headrace_base)
  set_target_properties(
    headrace_command
    PROPERTIES OUTPUT_NAME headrace
               RUNTIME_OUTPUT_DIRECTORY ${headrace_bin_dir}
               INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/../lib/headrace")
  headrace_needs_plugins(headrace_command)
  # The library moves the bytes; the command itself is not worth the other half of its compile time.
  target_compile_options(headrace_cli PRIVATE $<$<CONFIG:Release>:-O1>)
  target_compile_options(headrace_command PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# A program that loads plugins at run time is not ready before they are.
function(headrace_needs_plugins target)
  get_property(backends GLOBAL PROPERTY HEADRACE_BACKENDS)
  headrace_existing(probe headrace_probe_plugin headrace_kernels)
  if(backends OR probe)
    add_dependencies(${target} ${backends} ${probe})
  endif()
endfunction()

# bindings/compat_nixl/*.cpp -> the extension module headrace.compat.nixl._compiled, on Python's own interface alone. Of nanobind
# it has the suffix.
function(headrace_add_compat_nixl)
  headrace_glob(sources bindings/compat_nixl/*.cpp)
  add_library(_compiled MODULE ${sources})
  target_include_directories(_compiled PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(_compiled PRIVATE headrace_options)
  target_link_options(_compiled PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/python_exports.map)
  if(TARGET Python::SABIModule AND Python_VERSION VERSION_GREATER_EQUAL 3.12 AND Python_INTERPRETER_ID STREQUAL "Python")
    target_link_libraries(_compiled PRIVATE Python::SABIModule)
    target_compile_definitions(_compiled PRIVATE Py_LIMITED_API=0x030C0000)
    nanobind_extension_abi3(_compiled)
  else()
    target_link_libraries(_compiled PRIVATE Python::Module)
    nanobind_extension(_compiled)
  endif()
  set_target_properties(_compiled PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/python/compat/nixl
                                             LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/python_exports.map)
endfunction()

# bindings/python/*.cpp -> the extension module _headrace.
function(headrace_add_python)
  headrace_glob(sources bindings/python/*.cpp)
  if(NOT HEADRACE_PYTHON OR NOT sources OR NOT TARGET headrace)
    return()
  endif()
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
  if(NOT nanobind_ROOT)
    execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  find_package(nanobind CONFIG QUIET)
  if(NOT nanobind_FOUND)
    message(FATAL_ERROR "the Python module needs nanobind, which ${Python_EXECUTABLE} does not have: "
                        "`${Python_EXECUTABLE} -m pip install nanobind`, or run `make setup` and use .venv/bin/python.")
  endif()
  nanobind_add_module(_headrace STABLE_ABI NB_STATIC NB_SUPPRESS_WARNINGS ${sources})
  target_include_directories(_headrace PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(_headrace PRIVATE headrace headrace_options)
  target_link_options(_headrace PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/python_exports.map)
  set_target_properties(
    _headrace
    PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/python
               INSTALL_RPATH "$ORIGIN/lib"
               LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/python_exports.map)
  headrace_add_compat_nixl()
  headrace_add_torch_group()
endfunction()

# examples/*.cpp, *.c -> one program each, on the installed surface alone, and a test that runs it. x.c beside x.cpp is x_c.
function(headrace_add_examples)
  headrace_glob(sources examples/*.cpp examples/*.c)
  if(NOT TARGET headrace)
    return()
  endif()
  add_custom_target(headrace_examples)
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    if(source MATCHES "\\.c$" AND EXISTS ${PROJECT_SOURCE_DIR}/examples/${name}.cpp)
      string(APPEND name _c)
    endif()
    add_executable(example_${name} ${source})
    add_dependencies(headrace_examples example_${name})
    target_link_libraries(example_${name} PRIVATE headrace headrace_options Threads::Threads)
    if(HEADRACE_SANITIZE)
      # As in headrace_add_c_program.
      set_target_properties(example_${name} PROPERTIES LINKER_LANGUAGE CXX)
    endif()
    set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY
                                                                         ${PROJECT_BINARY_DIR}/examples)
    headrace_needs_plugins(example_${name})
    if(HEADRACE_TESTS OR BUILD_TESTING)
      add_test(NAME example.${name} COMMAND example_${name})
      set_tests_properties(example.${name} PROPERTIES LABELS example TIMEOUT 120)
    endif()
  endforeach()
  # What README.md and docs/building.md say is done as they say, with a compiler that knows nothing of this build's sanitizers.
  if((HEADRACE_TESTS OR BUILD_TESTING) AND NOT HEADRACE_SANITIZE)
    add_test(NAME example.readme
             COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D BUILD=${PROJECT_BINARY_DIR} -D
                     FOLDER=${PROJECT_BINARY_DIR}/examples/readme -P ${PROJECT_SOURCE_DIR}/cmake/readme_program.cmake)
    add_test(NAME example.installed
             COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D BUILD=${PROJECT_BINARY_DIR} -D
                     FOLDER=${PROJECT_BINARY_DIR}/examples/installed -P ${PROJECT_SOURCE_DIR}/cmake/installed_programs.cmake)
    set_tests_properties(example.readme example.installed PROPERTIES LABELS example TIMEOUT 120)
  endif()
endfunction()

# bench/*.cpp -> one program each on libheadrace.so; bench/internal/*.cpp -> one each on the rooms themselves.
function(headrace_add_bench)
  get_property(rooms GLOBAL PROPERTY HEADRACE_ROOM_TARGETS)
  get_property(static_backends GLOBAL PROPERTY HEADRACE_STATIC_BACKENDS)
  list(REVERSE rooms)
  headrace_glob(surface bench/*.cpp)
  headrace_glob(internal bench/internal/*.cpp)
  if(NOT TARGET headrace)
    return()
  endif()
  foreach(source IN LISTS surface internal)
    cmake_path(GET source STEM name)
    add_executable(bench_${name} ${source})
    target_include_directories(bench_${name} PRIVATE ${PROJECT_SOURCE_DIR})
    if(source IN_LIST internal)
      target_link_libraries(bench_${name} PRIVATE ${static_backends} ${rooms})
    else()
      target_link_libraries(bench_${name} PRIVATE headrace)
    endif()
    target_link_libraries(bench_${name} PRIVATE headrace_options headrace_foreign benchmark::benchmark)
    set_target_properties(bench_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
    headrace_needs_plugins(bench_${name})
  endforeach()
  headrace_lay_beside(${PROJECT_BINARY_DIR}/bench)
endfunction()

# Programs that link the rooms statically look for plugins beside themselves: put links there.
function(headrace_lay_beside folder)
  file(MAKE_DIRECTORY ${folder} ${headrace_backends_dir})
  foreach(entry backends headrace-probe-plugin)
    file(CREATE_LINK ../lib/${entry} ${folder}/${entry} SYMBOLIC)
  endforeach()
endfunction()

# The target headrace_package: what the Python package holds.
function(headrace_add_package)
  get_property(backends GLOBAL PROPERTY HEADRACE_BACKENDS)
  headrace_existing(targets headrace headrace_command headrace_probe_plugin headrace_torch headrace_kernels _headrace _compiled
                    headrace_torch_group headrace_torchcomms headrace_window_bitcode)
  add_custom_target(headrace_package)
  if(targets OR backends)
    add_dependencies(headrace_package ${targets} ${backends})
  endif()
endfunction()

# The target headrace_product: all that is shipped, and the examples and benchmarks on top of it; no test.
function(headrace_add_product)
  get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  list(FILTER targets INCLUDE REGEX "^(headrace|headrace_command|headrace_probe_plugin|headrace_torch|headrace_kernels|_headrace|example_.*|bench_.*)$")
  get_property(backends GLOBAL PROPERTY HEADRACE_BACKENDS)
  add_custom_target(headrace_product)
  if(targets OR backends)
    add_dependencies(headrace_product ${targets} ${backends})
  endif()
endfunction()
