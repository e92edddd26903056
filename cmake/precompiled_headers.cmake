# SPDX-License-Identifier: Apache-2.0
# Headers that most sources include, compiled once for the rooms and once for the tests. The presets `dev` and `tsan` have them:
# they take a quarter of the compile time of a room, and more of that of a test. A missing #include shows in the presets `gcc`
# and `tidy`, which do without.

option(HEADRACE_PRECOMPILED_HEADERS "Compile the headers that most sources include once for all of them (clang)" OFF)
if(HEADRACE_PRECOMPILED_HEADERS AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "HEADRACE_PRECOMPILED_HEADERS needs clang, which lets targets with other definitions share a header; the "
                      "compiler is ${CMAKE_CXX_COMPILER_ID}: leave it OFF, or use `cmake --preset dev`.")
endif()

set(headrace_common_headers
    <algorithm> <array> <atomic> <bit> <cerrno> <charconv> <chrono> <condition_variable> <cstddef> <cstdint> <cstdio> <cstdlib>
    <cstring> <deque> <filesystem> <fstream> <functional> <iterator> <limits> <map> <memory> <mutex> <numeric> <optional> <random>
    <set> <shared_mutex> <span> <sstream> <stdexcept> <string> <string_view> <system_error> <thread> <tuple> <type_traits>
    <unordered_map> <utility> <variant> <vector>
    <fcntl.h> <poll.h> <sys/mman.h> <sys/socket.h> <sys/stat.h> <sys/wait.h> <unistd.h>
    <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>
    "${PROJECT_SOURCE_DIR}/include/headrace/result.hpp" "${PROJECT_SOURCE_DIR}/src/base/errors.hpp")
set(headrace_test_headers <gtest/gtest.h> <gmock/gmock.h>)

# headrace_precompile(<target> <header>...): compiles them with the target; others take them by headrace_take_headers.
function(headrace_precompile target)
  if(HEADRACE_PRECOMPILED_HEADERS)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    # Without a time stamp in it, equal headers give equal files, which ccache needs.
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
  endif()
endfunction()

# headrace_take_headers(<target> <from>): the target takes what is compiled with another one.
function(headrace_take_headers target from)
  if(HEADRACE_PRECOMPILED_HEADERS AND TARGET ${from})
    target_precompile_headers(${target} REUSE_FROM ${from})
    # Clang refuses headers that were compiled for shared objects in a program's own code, -fPIE.
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()
