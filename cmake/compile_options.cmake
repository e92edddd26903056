# SPDX-License-Identifier: Apache-2.0
# How everything of ours is compiled: warnings, visibility, sanitizers, paths. A target gets it by linking headrace_options.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# -g1 keeps function names and lines for traces at a fraction of the full information's compile and link time.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
# Sanitized code is compiled more often than it runs. Clang without optimisation takes about half the time of clang -O1 or of
# GCC -Og: src/engine, joined eight files at a time, under both sanitizers: 17, 31 and 32 CPU seconds.
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")
else()
  set(CMAKE_CXX_FLAGS_DEBUG "-Og -g1")
endif()

# A whole folder is one translation unit, or a few: most of the time goes into headers and templates that its files share.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)

if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  find_program(HEADRACE_MOLD mold)
  mark_as_advanced(HEADRACE_MOLD)
  if(HEADRACE_MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
endif()

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug or Release" FORCE)
endif()

find_program(HEADRACE_CCACHE ccache)
mark_as_advanced(HEADRACE_CCACHE)
if(HEADRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
endif()

add_library(headrace_options INTERFACE)
target_compile_options(
  headrace_options
  INTERFACE -Wall -Wextra -Wnon-virtual-dtor
            # In a joined translation unit a local name may shadow a name of another file; the preset `gcc` joins nothing.
            $<$<NOT:$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wshadow>
            $<$<BOOL:${HEADRACE_WERROR}>:-Werror>
            -fno-omit-frame-pointer
            # Build folders inside the tree become relative with it; one mapping more would name the folder in the flags.
            "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/="
            $<$<CONFIG:Debug>:-D_GLIBCXX_ASSERTIONS>)
target_include_directories(headrace_options INTERFACE ${PROJECT_SOURCE_DIR}/include)

if(HEADRACE_SANITIZE)
  set(headrace_sanitize_flags -fsanitize=${HEADRACE_SANITIZE} -fno-sanitize-recover=all)
  if(HEADRACE_SANITIZE_EXCEPT)
    list(APPEND headrace_sanitize_flags -fno-sanitize=${HEADRACE_SANITIZE_EXCEPT})
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND HEADRACE_SANITIZE MATCHES "undefined")
    # A C++ function with a reference to its arguments' struct stands in a C table with a pointer to it: one call on every ABI.
    list(APPEND headrace_sanitize_flags -fno-sanitize=function)
  endif()
  if(HEADRACE_SANITIZE MATCHES "thread")
    # Neither compiler has a macro for it that the other has.
    add_compile_definitions(HEADRACE_THREAD_SANITIZER)
  endif()
  add_compile_options(${headrace_sanitize_flags})
  add_link_options(${headrace_sanitize_flags})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC sees uninitialised reads in the code that its own sanitizers insert.
    target_compile_options(headrace_options INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
if(HEADRACE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "HEADRACE_FUZZ needs clang (its libFuzzer), the compiler is ${CMAKE_CXX_COMPILER_ID}: use `cmake --preset fuzz`.")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
