# SPDX-License-Identifier: Apache-2.0
# Other people's libraries, header-only or static, each found by one header. All that are missing are named at once,
# with the Debian packages that hold them.

set(headrace_missing_packages "")
set(headrace_missing_headers "")

# headrace_header(<variable> <header> <Debian package>): finds the folder of a header that the build cannot do without.
macro(headrace_header variable header package)
  find_path(${variable} NAMES "${header}")
  mark_as_advanced(${variable})
  if(NOT ${variable})
    list(APPEND headrace_missing_headers "<${header}>")
    list(APPEND headrace_missing_packages "${package}")
  endif()
endmacro()

# headrace_archive(<variable> <archive> <Debian package>): finds a static library that the build cannot do without.
macro(headrace_archive variable archive package)
  find_library(${variable} NAMES "${archive}")
  mark_as_advanced(${variable})
  if(NOT ${variable})
    list(APPEND headrace_missing_headers "${archive}")
    list(APPEND headrace_missing_packages "${package}")
  endif()
endmacro()

headrace_header(HEADRACE_FMT_DIR fmt/format.h libfmt-dev)
headrace_header(HEADRACE_SPDLOG_DIR spdlog/spdlog.h libspdlog-dev)
headrace_header(HEADRACE_MSGPACK_DIR msgpack.hpp libmsgpack-cxx-dev)
headrace_header(HEADRACE_JSON_DIR nlohmann/json.hpp nlohmann-json3-dev)
headrace_header(HEADRACE_XXHASH_DIR xxhash.h libxxhash-dev)
headrace_header(HEADRACE_TOML_DIR toml++/toml.h libtomlplusplus-dev)
headrace_header(HEADRACE_HWLOC_DIR hwloc.h libhwloc-dev)
headrace_header(HEADRACE_CURL_DIR curl/curl.h libcurl4-openssl-dev)
headrace_header(HEADRACE_OPENSSL_DIR openssl/ssl.h libssl-dev)
headrace_header(HEADRACE_MINIZIP_DIR minizip/unzip.h libminizip-dev)
headrace_archive(HEADRACE_MINIZIP_ARCHIVE libminizip.a libminizip-dev)
headrace_archive(HEADRACE_ZLIB_ARCHIVE libz.a zlib1g-dev)
if(HEADRACE_CLI)
  headrace_header(HEADRACE_CLI11_DIR CLI/CLI.hpp libcli11-dev)
  headrace_header(HEADRACE_BOOST_DIR boost/beast/version.hpp libboost-dev)
endif()
if(HEADRACE_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND OR NOT TARGET GTest::gmock)
    list(APPEND headrace_missing_headers "GoogleTest")
    list(APPEND headrace_missing_packages libgtest-dev libgmock-dev)
  endif()
endif()
if(HEADRACE_BENCH)
  find_package(benchmark QUIET)
  if(NOT benchmark_FOUND)
    list(APPEND headrace_missing_headers "Google Benchmark")
    list(APPEND headrace_missing_packages libbenchmark-dev)
  endif()
endif()

if(headrace_missing_headers)
  list(JOIN headrace_missing_headers ", " headrace_missing_headers)
  list(REMOVE_DUPLICATES headrace_missing_packages)
  list(JOIN headrace_missing_packages " " headrace_missing_packages)
  message(FATAL_ERROR "Headrace needs ${headrace_missing_headers}, not found on this machine. "
                      "On Debian or Ubuntu: apt-get install ${headrace_missing_packages} (or run `make setup`).")
endif()

find_package(Threads REQUIRED)

# {fmt}, its compiled part in one file of ours, linked statically into each shared object.
add_library(headrace_fmt STATIC cmake/fmt.cpp)
target_include_directories(headrace_fmt SYSTEM PUBLIC ${HEADRACE_FMT_DIR})
target_link_libraries(headrace_fmt PRIVATE headrace_options)

# spdlog on the same {fmt}; src/base/log.cpp is its only user.
add_library(headrace_spdlog INTERFACE)
target_include_directories(headrace_spdlog SYSTEM INTERFACE ${HEADRACE_SPDLOG_DIR})
target_compile_definitions(headrace_spdlog INTERFACE SPDLOG_FMT_EXTERNAL SPDLOG_NO_TLS)
target_link_libraries(headrace_spdlog INTERFACE headrace_fmt)

# What every room may use. curl, OpenSSL and hwloc lend their headers alone: the libraries are loaded at run time.
add_library(headrace_foreign INTERFACE)
target_include_directories(
  headrace_foreign SYSTEM
  INTERFACE ${HEADRACE_MSGPACK_DIR} ${HEADRACE_JSON_DIR} ${HEADRACE_XXHASH_DIR} ${HEADRACE_TOML_DIR} ${HEADRACE_HWLOC_DIR}
            ${HEADRACE_CURL_DIR} ${HEADRACE_OPENSSL_DIR})
target_compile_definitions(headrace_foreign INTERFACE MSGPACK_NO_BOOST XXH_INLINE_ALL)
target_link_libraries(headrace_foreign INTERFACE headrace_fmt Threads::Threads ${CMAKE_DL_LIBS})

# Compressed archives; src/formats is their only user.
add_library(headrace_archives INTERFACE)
target_include_directories(headrace_archives SYSTEM INTERFACE ${HEADRACE_MINIZIP_DIR})
target_link_libraries(headrace_archives INTERFACE ${HEADRACE_MINIZIP_ARCHIVE} ${HEADRACE_ZLIB_ARCHIVE})

if(HEADRACE_CLI)
  add_library(headrace_cli_foreign INTERFACE)
  target_include_directories(headrace_cli_foreign SYSTEM INTERFACE ${HEADRACE_CLI11_DIR} ${HEADRACE_BOOST_DIR})
  target_link_libraries(headrace_cli_foreign INTERFACE headrace_foreign)
endif()
