# SPDX-License-Identifier: Apache-2.0
# Tests. The folder gives the label (unit, contract, system, command, backend, model, fuzz, example). A suite or test whose name
# ends in _slow, _gpu1, _gpu2, _gpu4, _kernel, _alone, _fabric or _rdma carries that label as well, as pytest's marks do.
# Every program is listed in suites.json of the build folder, from which tools/test.py runs it.

include(GoogleTest)

# The tests of the release build are not what is measured; without optimisation they compile in half the time.
# GoogleTest's macros end in an `else` of their own, which GCC takes for that of an `if` before them; and it does not know the
# `#pragma unroll` of device code that tests run on the CPU.
set(headrace_test_options $<$<CONFIG:Release>:-O0> $<$<CXX_COMPILER_ID:GNU>:-Wno-dangling-else> $<$<CXX_COMPILER_ID:GNU>:-Wno-unknown-pragmas>)

# What a test may need, in link order: what is above comes first. Of the backends these are the ones that tests outside their
# own folder reach into. All others are loaded, so that a change in one links few programs again. The tests of the runner and of
# models name headrace_runner themselves, those of the C API load libheadrace.so: the daily build for the thread sanitizer, which
# runs neither, compiles neither.
function(headrace_test_parts variable)
  get_property(rooms GLOBAL PROPERTY HEADRACE_ROOM_TARGETS)
  list(REMOVE_ITEM rooms headrace_runner headrace_c)
  headrace_existing(static_backends headrace_backend_cuda_ipc_static headrace_backend_fake_static)
  list(REVERSE rooms)
  set(${variable} ${static_backends} ${rooms} PARENT_SCOPE)
endfunction()

# tests/support/*.cpp, tests/support/*/*.cpp -> static library headrace_test_support. It sees every room's headers and links none
# of them, so that a test of base waits for base alone.
function(headrace_add_test_support)
  headrace_glob(sources tests/support/*.cpp tests/support/*/*.cpp)
  if(sources)
    add_library(headrace_test_support STATIC ${sources})
    target_compile_options(headrace_test_support PRIVATE ${headrace_test_options})
    # A test takes the files of the archive that it needs, with the rooms below these; one file would need every room. So only
    # the files of a folder are joined.
    set_target_properties(headrace_test_support PROPERTIES UNITY_BUILD_MODE GROUP POSITION_INDEPENDENT_CODE ON)
    foreach(source IN LISTS sources)
      if(source MATCHES "/tests/support/([a-z_]+)/")
        set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${CMAKE_MATCH_1})
      endif()
    endforeach()
    # It fills and compares the memory of every transfer test.
    set_source_files_properties(tests/support/plugin_memory.cpp PROPERTIES COMPILE_OPTIONS -O2 SKIP_PRECOMPILE_HEADERS ON)
    headrace_precompile(headrace_test_support ${headrace_common_headers} ${headrace_test_headers})
    set(scope PUBLIC)
  else()
    add_library(headrace_test_support INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(headrace_test_support ${scope} ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src
                                                           ${PROJECT_SOURCE_DIR}/tests)
  # The fake driver runs the kernels' CPU references.
  headrace_existing(kernels headrace_kernels_reference headrace_kernels_host)
  target_link_libraries(headrace_test_support ${scope} headrace_options headrace_foreign GTest::gmock ${kernels})
  target_compile_definitions(
    headrace_test_support ${scope} HEADRACE_TEST_DIR="${PROJECT_SOURCE_DIR}/tests"
                                   HEADRACE_TEST_BIN_DIR="${headrace_tests_dir}" HEADRACE_COMMAND="${headrace_bin_dir}/headrace")
endfunction()

# headrace_add_test(<name> <label> SOURCES ... PARTS ... [AFTER <test>]): one GoogleTest program and its tests, which ctest runs
# after the test that prepares what they need.
function(headrace_add_test name label)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "AFTER" "SOURCES;PARTS")
  if(NOT arg_SOURCES)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  # gtest_main stands last: a program with a main of its own keeps it.
  target_link_libraries(${name} PRIVATE headrace_test_support ${arg_PARTS} GTest::gmock GTest::gtest GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${headrace_tests_dir})
  target_compile_options(${name} PRIVATE ${headrace_test_options})
  headrace_take_headers(${name} headrace_test_support)
  list(GET label 0 kind)
  list(TRANSFORM headrace_sanitizer_environment REPLACE "^([A-Z_]+)=(.*)$" "\"\\1\": \"\\2\"" OUTPUT_VARIABLE environment)
  list(JOIN environment ", " environment)
  set_property(GLOBAL APPEND_STRING PROPERTY HEADRACE_SUITES
    ",\n  {\"name\": \"${name}\", \"label\": \"${kind}\", \"program\": \"tests/${name}\",
   \"environment\": {${environment}}}")
  gtest_discover_tests(${name} TEST_PREFIX ${name}. TEST_LIST ${name}_tests DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       WORKING_DIRECTORY ${headrace_tests_dir} PROPERTIES TIMEOUT 120 FIXTURES_REQUIRED "${arg_AFTER}")
  headrace_label_tests(${name} "${label}")
endfunction()

# Clang's sanitizers name functions and lines by a program of its own release.
find_program(HEADRACE_SYMBOLIZER NAMES llvm-symbolizer-16 llvm-symbolizer)
mark_as_advanced(HEADRACE_SYMBOLIZER)
set(headrace_symbolizer "")
if(HEADRACE_SYMBOLIZER AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(headrace_symbolizer ":external_symbolizer_path=${HEADRACE_SYMBOLIZER}")
endif()

set(headrace_sanitizer_environment
    ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1${headrace_symbolizer}
    UBSAN_OPTIONS=print_stacktrace=1${headrace_symbolizer}
    LSAN_OPTIONS=print_suppressions=0:suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp
    TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp${headrace_symbolizer})

# Labels and sanitizer settings are put on the discovered tests when ctest reads them.
function(headrace_label_tests name label)
  set(script ${PROJECT_BINARY_DIR}/test_labels/${name}.cmake)
  file(CONFIGURE OUTPUT ${script} @ONLY CONTENT [=[
cmake_policy(SET CMP0057 NEW)
foreach(test IN LISTS @name@_tests)
  set(labels "@label@")
  string(REGEX MATCHALL "_(slow|gpu1|gpu2|gpu4|kernel|alone|fabric|rdma)([./]|$)" tags "${test}")
  foreach(tag IN LISTS tags)
    string(REGEX REPLACE "^_|[./]$" "" tag "${tag}")
    list(APPEND labels ${tag})
  endforeach()
  set_tests_properties("${test}" PROPERTIES LABELS "${labels}")
  if("slow" IN_LIST labels)
    set_tests_properties("${test}" PROPERTIES TIMEOUT 1800)
  endif()
  if("alone" IN_LIST labels)
    set_tests_properties("${test}" PROPERTIES RUN_SERIAL TRUE)
  endif()
  set_tests_properties("${test}" PROPERTIES ENVIRONMENT "@headrace_sanitizer_environment@")
endforeach()
]=])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
endfunction()

# tests/test_backends/<name>.cpp -> tests/test_backends/<name>.so: forms of the backend <name> for the tests that load it.
# headrace_backend_<name>_gpu.cpp -> headrace_backend_<name>_gpu.so: one that agents open.
function(headrace_add_test_backends)
  set(exports ${PROJECT_SOURCE_DIR}/cmake/test_backend_exports.map)
  headrace_glob(sources tests/test_backends/*.cpp)
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    string(REGEX REPLACE "^headrace_backend_|_gpu$" "" backend ${name})
    add_library(test_backend_${name} MODULE ${source})
    target_link_libraries(test_backend_${name} PRIVATE headrace_test_support headrace_backend_${backend}_static)
    headrace_take_headers(test_backend_${name} headrace_test_support)
    target_link_options(test_backend_${name} PRIVATE -Wl,--version-script=${exports} -Wl,--exclude-libs,ALL)
    set_target_properties(
      test_backend_${name}
      PROPERTIES PREFIX ""
                 OUTPUT_NAME ${name}
                 LIBRARY_OUTPUT_DIRECTORY ${headrace_tests_dir}/test_backends
                 LINK_DEPENDS ${exports})
    headrace_existing(users unit_engine unit_collectives unit_moe backend_tcp contract contract_peer system system_peer)
    foreach(user IN LISTS users)
      add_dependencies(${user} test_backend_${name})
    endforeach()
  endforeach()
endfunction()

function(headrace_add_tests)
  headrace_add_test_support()
  headrace_lay_beside(${headrace_tests_dir})
  headrace_test_parts(everything)

  # Device code on a CPU needs words of CUDA as macros.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/unit/moe/device_code_test.cpp
                              PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  # tests/unit/<room>/*_test.cpp -> unit_<room>, on that room and those below it; tests/unit/cli is on the command's library.
  headrace_folders(folders tests/unit)
  foreach(room IN LISTS folders)
    headrace_glob(sources tests/unit/${room}/*_test.cpp tests/unit/${room}/*/*_test.cpp)
    if(TARGET headrace_${room})
      set(parts headrace_${room})
      # The rooms that load plugins are tested with those of the tree.
      if(room MATCHES "^(engine|agent|collectives)$")
        set(parts ${everything})
      endif()
      headrace_add_test(unit_${room} "unit;${room}" SOURCES ${sources} PARTS ${parts})
      if(TARGET unit_${room} AND room MATCHES "^(engine|agent|collectives|cli|moe)$")
        headrace_needs_plugins(unit_${room})
      elseif(room STREQUAL "gpu" AND TARGET headrace_kernels)
        add_dependencies(unit_gpu headrace_kernels)
        target_compile_definitions(unit_gpu PRIVATE HEADRACE_TEST_KERNELS)
      endif()
    elseif(sources AND NOT room STREQUAL "cli")
      # Tests of what is not in a room: public headers, the plugin adapter; the life cycle, which many parts share.
      headrace_existing(parts headrace_base)
      if(room STREQUAL "lifecycle")
        set(parts ${everything})
      endif()
      headrace_add_test(unit_${room} "unit;${room}" SOURCES ${sources} PARTS ${parts})
    endif()
  endforeach()

  # backends/<name>/*_test.cpp and those of its folders -> backend_<name>, with the backend linked in.
  headrace_folders(folders backends)
  foreach(backend IN LISTS folders)
    if(TARGET headrace_backend_${backend}_static)
      headrace_glob(sources backends/${backend}/*_test.cpp backends/${backend}/*/*_test.cpp)
      headrace_add_test(backend_${backend} "backend;${backend}" SOURCES ${sources} PARTS headrace_backend_${backend}_static
                                                                                      ${everything})
    endif()
  endforeach()

  # tests/contract, tests/system, tests/command -> one program each; tests/<kind>/programs/*.cpp -> helper programs
  # <kind>_<name> beside it.
  foreach(kind contract system command)
    headrace_glob(sources tests/${kind}/*.cpp tests/${kind}/*_test.cpp)
    list(REMOVE_DUPLICATES sources)
    headrace_add_test(${kind} ${kind} SOURCES ${sources} PARTS ${everything})
    headrace_glob(programs tests/${kind}/programs/*.cpp)
    foreach(program IN LISTS programs)
      cmake_path(GET program STEM name)
      add_executable(${kind}_${name} ${program})
      target_link_libraries(${kind}_${name} PRIVATE headrace_test_support ${everything})
      headrace_take_headers(${kind}_${name} headrace_test_support)
      set_target_properties(${kind}_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${headrace_tests_dir})
      if(TARGET ${kind})
        add_dependencies(${kind} ${kind}_${name})
      endif()
    endforeach()
    if(TARGET ${kind})
      headrace_needs_plugins(${kind})
    endif()
  endforeach()
  if(TARGET command AND TARGET headrace_command)
    add_dependencies(command headrace_command)
  endif()

  headrace_add_test_backends()
  headrace_add_c_tests()
  headrace_add_model_tests("${everything}")

  # tests/plugins/*.cpp -> tests/plugins/<name>.so: plugins that lie, throw or crash, for the host's tests.
  headrace_glob(sources tests/plugins/*.cpp)
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    add_library(test_plugin_${name} MODULE ${source})
    target_link_libraries(test_plugin_${name} PRIVATE headrace_options)
    target_include_directories(test_plugin_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    set_target_properties(test_plugin_${name} PROPERTIES PREFIX "" OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY
                                                                                      ${headrace_tests_dir}/plugins)
    headrace_existing(users unit_vendor unit_engine unit_agent unit_collectives contract system)
    if(name STREQUAL "libheadrace_comm_idle")
      headrace_existing(users command)  # the one that it loads
    endif()
    foreach(user IN LISTS users)
      add_dependencies(${user} test_plugin_${name})
    endforeach()
  endforeach()
  headrace_add_example_plugins()
endfunction()

# examples/plugins/transport_<name>.c -> tests/plugins/examples/headrace_backend_<name>.so, on the plugin header alone: a row of the
# contract suite.
function(headrace_add_example_plugins)
  headrace_glob(sources examples/plugins/transport_*.c)
  if(NOT TARGET contract)
    return()
  endif()
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    string(REPLACE "transport_" "headrace_backend_" output ${name})
    add_library(example_plugin_${name} MODULE ${source})
    target_link_libraries(example_plugin_${name} PRIVATE headrace_options)
    set_target_properties(
      example_plugin_${name}
      PROPERTIES PREFIX ""
                 OUTPUT_NAME ${output}
                 C_STANDARD 11
                 C_STANDARD_REQUIRED ON
                 LIBRARY_OUTPUT_DIRECTORY ${headrace_tests_dir}/plugins/examples)
    add_dependencies(contract example_plugin_${name})
  endforeach()
endfunction()

# headrace_add_c_program(<source> <variable>): tests/c/x.c -> c_x, compiled as C on libheadrace.so. The variable gets x.
function(headrace_add_c_program source variable)
  cmake_path(GET source STEM name)
  add_executable(c_${name} ${source})
  target_link_libraries(c_${name} PRIVATE headrace headrace_options)
  set_target_properties(c_${name} PROPERTIES C_STANDARD 11 RUNTIME_OUTPUT_DIRECTORY ${headrace_tests_dir})
  if(HEADRACE_SANITIZE)
    # libheadrace.so takes its sanitizer's functions from the program, and a C compiler links those that C needs.
    set_target_properties(c_${name} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
  set(${variable} ${name} PARENT_SCOPE)
endfunction()

# tests/c/*.c but those of models.
function(headrace_add_c_tests)
  headrace_glob(programs tests/c/*.c)
  list(FILTER programs EXCLUDE REGEX "model_test\\.c$")
  if(NOT TARGET headrace)
    return()
  endif()
  add_custom_target(headrace_c_tests)
  foreach(program IN LISTS programs)
    headrace_add_c_program(${program} name)
    headrace_needs_plugins(c_${name})
    add_dependencies(headrace_c_tests c_${name})
    add_test(NAME c.${name} COMMAND c_${name})
    set_tests_properties(c.${name} PROPERTIES LABELS unit TIMEOUT 120 ENVIRONMENT "${headrace_sanitizer_environment}")
  endforeach()
endfunction()

# tests/model/*_test.cpp -> model: models as torch compiles them, run by libheadrace_torch.so. The packages are exported once for
# all builds, by the test model_packages. Where there is no torch the tests skip themselves.
function(headrace_add_model_tests everything)
  # With torch's many libraries the sanitizer of GCC 12 or clang 16 may take garbage for a thread's blocks of thread-local storage,
  # which the check for leaks then dies of ("Tracer caught signal 11"). Told not to intercept, it does not follow those blocks.
  list(TRANSFORM headrace_sanitizer_environment REPLACE "^(ASAN_OPTIONS=.*)" "\\1:intercept_tls_get_addr=0")
  headrace_glob(sources tests/model/*_test.cpp)
  headrace_existing(runner headrace_runner)
  headrace_add_test(model model AFTER model_packages SOURCES ${sources} PARTS ${runner} ${everything})
  if(NOT TARGET model)
    return()
  endif()
  set(folder ${PROJECT_SOURCE_DIR}/build/models)
  target_compile_definitions(model PRIVATE HEADRACE_TEST_MODELS="${folder}")
  headrace_existing(programs headrace_torch headrace_command)
  if(programs)
    add_dependencies(model ${programs})
  endif()
  headrace_glob(programs tests/c/*model_test.c)
  foreach(program IN LISTS programs)
    headrace_add_c_program(${program} name)
    add_dependencies(model c_${name})
    # Of gpu_* this sees that they compile: test_gpu_runner.py runs them where there is a GPU, also with a build made elsewhere.
    if(TARGET headrace_torch AND NOT name MATCHES "^gpu_")
      add_test(NAME c.${name} COMMAND c_${name} ${folder})
      set_tests_properties(c.${name} PROPERTIES LABELS model TIMEOUT 120 FIXTURES_REQUIRED model_packages
                                                   ENVIRONMENT "${headrace_sanitizer_environment}")
    endif()
  endforeach()
  if(TARGET headrace_torch)
    add_test(NAME model_packages COMMAND ${headrace_torch_python} ${PROJECT_SOURCE_DIR}/tests/support/export_models.py ${folder})
    set_tests_properties(model_packages PROPERTIES FIXTURES_SETUP model_packages LABELS model TIMEOUT 900 RUN_SERIAL TRUE)
  endif()
endfunction()

# headrace_add_included_parts(<target> <source>): links the rooms and backends whose headers the source includes. A fuzz build is
# one more build of everything it links, so it links no more than that, and of a backend only the sources that the target
# reaches: a change in another one leaves the program as it is, and tools/test.py does not fuzz it again.
function(headrace_add_included_parts target source)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(STRINGS ${source} lines REGEX "^#include \"")
  set(backends "")
  set(reached "")
  set(rooms "")
  foreach(line IN LISTS lines)
    if(line MATCHES "\"(backends/([a-z0-9_]+))/")
      if(HEADRACE_FUZZ)
        headrace_reached(found ${CMAKE_MATCH_1} ${source})
        list(APPEND reached ${found})
        headrace_backend_rooms(backends)
      else()
        list(APPEND backends headrace_backend_${CMAKE_MATCH_2}_static)
      endif()
    elseif(line MATCHES "\"([a-z_]+)/")
      list(APPEND rooms ${CMAKE_MATCH_1})
    endif()
  endforeach()
  set(found "")
  foreach(room IN LISTS headrace_rooms)
    if(room IN_LIST rooms)
      list(PREPEND found headrace_${room})
    endif()
  endforeach()
  headrace_existing(found ${backends} ${found})
  list(REMOVE_DUPLICATES reached)
  target_sources(${target} PRIVATE ${reached})
  target_link_libraries(${target} PRIVATE ${found} headrace_options headrace_foreign)
  headrace_take_headers(${target} headrace_base)
endfunction()

# tests/fuzz/<name>.cpp -> fuzz_<name>. With clang a libFuzzer program, else one that replays tests/fuzz/corpus/<name>;
# the replay is a test in both.
function(headrace_add_fuzz)
  headrace_glob(sources tests/fuzz/*.cpp)
  add_custom_target(headrace_fuzz_targets)
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    set(target fuzz_${name})
    add_executable(${target} ${source})
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
    headrace_add_included_parts(${target} ${source})
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
    if(HEADRACE_FUZZ)
      target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    else()
      target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/fuzz_replay.cpp)
    endif()
    add_dependencies(headrace_fuzz_targets ${target})
    file(GLOB corpus CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name}/*)
    if(NOT corpus)
      message(FATAL_ERROR "tests/fuzz/corpus/${name} is empty: put at least one input that the reader accepts there.")
    endif()
    add_test(NAME fuzz.${name} COMMAND ${target} ${corpus})
    set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT 120)
  endforeach()
endfunction()

# suites.json: what tools/test.py runs. "environment" is what a program of a sanitized build needs.
function(headrace_list_suites)
  get_property(suites GLOBAL PROPERTY HEADRACE_SUITES)
  string(REGEX REPLACE "^,\n" "" suites "${suites}")
  file(WRITE ${PROJECT_BINARY_DIR}/suites.json "{\"suites\": [\n${suites}\n]}\n")
endfunction()
