// SPDX-License-Identifier: Apache-2.0
// oneCCL's C interface as it serves host memory: found and bound at run time, never linked. Layouts and
// values are those of oneapi/ccl.h, so the build needs no header of Intel.
#pragma once

#include "base/errors.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::oneccl {

using Comm = struct OnecclComm*;

/// Brings the ranks of a communicator together. Passed by value.
struct UniqueId {
  char bytes[4096];
};

enum class Outcome : std::int32_t { success = 0, error = 1, invalid_argument = 4, invalid_usage = 5 };

enum class DataType : std::int32_t {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

enum class ReduceOp : std::int32_t { sum = 0, product = 1, max = 2, min = 3 };

}  // namespace headrace::oneccl

/// Every function that is used: result, name in the table, name in the library, arguments. On host memory
/// `stream` is null, and a call returns when it has ended.
#define HEADRACE_ONECCL_FUNCTIONS(FUNCTION)                                                                  \
  FUNCTION(Outcome, get_version, "onecclGetVersion", int* version)                                           \
  FUNCTION(const char*, get_last_error, "onecclGetLastError", Comm comm)                                     \
  FUNCTION(Outcome, get_unique_id, "onecclGetUniqueId", UniqueId* id)                                        \
  FUNCTION(Outcome, comm_init_rank, "onecclCommInitRank", Comm* comm, std::size_t ranks, UniqueId id,        \
           int rank)                                                                                         \
  FUNCTION(Outcome, comm_destroy, "onecclCommDestroy", Comm comm)                                            \
  FUNCTION(Outcome, all_reduce, "onecclAllReduce", void* from, void* to, std::size_t count, DataType type,   \
           ReduceOp op, Comm comm, void* stream)                                                             \
  FUNCTION(Outcome, broadcast, "onecclBroadcast", const void* from, void* to, std::size_t count,             \
           DataType type, int root, Comm comm, void* stream)                                                 \
  FUNCTION(Outcome, reduce, "onecclReduce", const void* from, void* to, std::size_t count, DataType type,    \
           ReduceOp op, int root, Comm comm, void* stream)                                                   \
  FUNCTION(Outcome, all_gather, "onecclAllGather", const void* from, void* to, std::size_t sent,             \
           DataType type, Comm comm, void* stream)                                                           \
  FUNCTION(Outcome, reduce_scatter, "onecclReduceScatter", const void* from, void* to, std::size_t received, \
           DataType type, ReduceOp op, Comm comm, void* stream)                                              \
  FUNCTION(Outcome, all_to_all, "onecclAllToAll", const void* from, void* to, std::size_t part,              \
           DataType type, Comm comm, void* stream)                                                           \
  FUNCTION(Outcome, all_to_all_v, "onecclAllToAllV", const void* from, const std::size_t* sent, void* to,    \
           const std::size_t* received, DataType type, Comm comm, void* stream)                              \
  FUNCTION(Outcome, send, "onecclSend", const void* from, std::size_t count, DataType type, int peer,        \
           Comm comm, void* stream)                                                                          \
  FUNCTION(Outcome, recv, "onecclRecv", void* to, std::size_t count, DataType type, int peer, Comm comm,     \
           void* stream)

namespace headrace::oneccl {

struct Table {
#define HEADRACE_ONECCL_MEMBER(result, member, symbol, ...) result (*member)(__VA_ARGS__) = nullptr;
  HEADRACE_ONECCL_FUNCTIONS(HEADRACE_ONECCL_MEMBER)
#undef HEADRACE_ONECCL_MEMBER
};

/// Copied freely: the library is never unloaded.
struct Library {
  Table table;
  std::string version;  ///< "2022.2.0"
  std::string path;     ///< by which it was loaded
};

/// Loads the library at `path`, or the one that open_installed finds, and libfabric, by which its ranks reach
/// each other.
///   errors   those of open_installed; not_supported (a function is missing, its part for host memory or
///            libfabric is not there, its part for XPUs is loaded instead)
[[nodiscard]] Result<Library> load_library(const std::string& path);

/// An error whose cause is the library: "join the other ranks: oneCCL says ...".
[[nodiscard]] Error library_error(const Library& library, Outcome outcome, std::string_view what);

}  // namespace headrace::oneccl
