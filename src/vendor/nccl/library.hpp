// SPDX-License-Identifier: Apache-2.0
// NCCL, or a library with its interface (NCCLX, RCCL, RCCLX): found and bound at run time, never linked.
#pragma once

#include "base/errors.hpp"
#include "vendor/nccl/types.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Functions that every supported version has: result, name in the table, name in the library, arguments.
#define HEADRACE_NCCL_FUNCTIONS(FUNCTION)                                                                   \
  FUNCTION(Outcome, get_version, "ncclGetVersion", int* version)                                            \
  FUNCTION(Outcome, get_unique_id, "ncclGetUniqueId", UniqueId* id)                                         \
  FUNCTION(const char*, get_error_string, "ncclGetErrorString", Outcome outcome)                            \
  FUNCTION(const char*, get_last_error, "ncclGetLastError", Comm comm)                                      \
  FUNCTION(Outcome, comm_init_rank_config, "ncclCommInitRankConfig", Comm* comm, int ranks, UniqueId id,    \
           int rank, Config* config)                                                                        \
  FUNCTION(Outcome, comm_split, "ncclCommSplit", Comm comm, int color, int key, Comm* part, Config* config) \
  FUNCTION(Outcome, comm_finalize, "ncclCommFinalize", Comm comm)                                           \
  FUNCTION(Outcome, comm_destroy, "ncclCommDestroy", Comm comm)                                             \
  FUNCTION(Outcome, comm_abort, "ncclCommAbort", Comm comm)                                                 \
  FUNCTION(Outcome, comm_get_async_error, "ncclCommGetAsyncError", Comm comm, Outcome* error)               \
  FUNCTION(Outcome, comm_count, "ncclCommCount", const Comm comm, int* count)                               \
  FUNCTION(Outcome, comm_user_rank, "ncclCommUserRank", const Comm comm, int* rank)                         \
  FUNCTION(Outcome, red_op_create_pre_mul_sum, "ncclRedOpCreatePreMulSum", ReduceOp* op, void* scalar,      \
           DataType type, ScalarResidence residence, Comm comm)                                             \
  FUNCTION(Outcome, red_op_destroy, "ncclRedOpDestroy", ReduceOp op, Comm comm)                             \
  FUNCTION(Outcome, all_reduce, "ncclAllReduce", const void* from, void* to, std::size_t count,             \
           DataType type, ReduceOp op, Comm comm, Stream stream)                                            \
  FUNCTION(Outcome, broadcast, "ncclBroadcast", const void* from, void* to, std::size_t count,              \
           DataType type, int root, Comm comm, Stream stream)                                               \
  FUNCTION(Outcome, reduce, "ncclReduce", const void* from, void* to, std::size_t count, DataType type,     \
           ReduceOp op, int root, Comm comm, Stream stream)                                                 \
  FUNCTION(Outcome, all_gather, "ncclAllGather", const void* from, void* to, std::size_t sent,              \
           DataType type, Comm comm, Stream stream)                                                         \
  FUNCTION(Outcome, reduce_scatter, "ncclReduceScatter", const void* from, void* to, std::size_t received,  \
           DataType type, ReduceOp op, Comm comm, Stream stream)                                            \
  FUNCTION(Outcome, send, "ncclSend", const void* from, std::size_t count, DataType type, int peer,         \
           Comm comm, Stream stream)                                                                        \
  FUNCTION(Outcome, recv, "ncclRecv", void* to, std::size_t count, DataType type, int peer, Comm comm,      \
           Stream stream)                                                                                   \
  FUNCTION(Outcome, group_start, "ncclGroupStart")                                                          \
  FUNCTION(Outcome, group_end, "ncclGroupEnd")

/// Functions of later versions: null where the library is older. The version is that in which NCCL has them.
#define HEADRACE_NCCL_LATER_FUNCTIONS(FUNCTION)                                                              \
  FUNCTION(Outcome, comm_register, "ncclCommRegister", 21901, const Comm comm, void* memory,                 \
           std::size_t bytes, void** handle)                                                                 \
  FUNCTION(Outcome, comm_deregister, "ncclCommDeregister", 21901, const Comm comm, void* handle)             \
  FUNCTION(Outcome, comm_shrink, "ncclCommShrink", 22703, Comm comm, int* excluded, int excluded_count,      \
           Comm* part, Config* config, int flags)                                                            \
  FUNCTION(Outcome, comm_revoke, "ncclCommRevoke", 22807, Comm comm, int flags)                              \
  FUNCTION(Outcome, comm_get_unique_id, "ncclCommGetUniqueId", 22902, Comm comm, UniqueId* id)               \
  FUNCTION(Outcome, comm_grow, "ncclCommGrow", 22902, Comm comm, int ranks, const UniqueId* id, int rank,    \
           Comm* made, Config* config)                                                                       \
  FUNCTION(Outcome, comm_suspend, "ncclCommSuspend", 22907, Comm comm, int flags)                            \
  FUNCTION(Outcome, comm_resume, "ncclCommResume", 22907, Comm comm)                                         \
  FUNCTION(Outcome, window_register, "ncclCommWindowRegister", 22703, Comm comm, void* memory,               \
           std::size_t bytes, Window* window, int flags)                                                     \
  FUNCTION(Outcome, window_deregister, "ncclCommWindowDeregister", 22703, Comm comm, Window window)          \
  FUNCTION(Outcome, put_signal, "ncclPutSignal", 22902, const void* from, std::size_t count, DataType type,  \
           int peer, Window window, std::size_t offset, int signal, int context, unsigned flags, Comm comm,  \
           Stream stream)                                                                                    \
  FUNCTION(Outcome, wait_signal, "ncclWaitSignal", 22902, int count, AwaitedSignals* awaited, Comm comm,     \
           Stream stream)                                                                                    \
  FUNCTION(Outcome, get_peer_pointer, "ncclGetPeerDevicePointer", 22902, Window window, std::size_t offset,  \
           int peer, void** address)                                                                         \
  FUNCTION(Outcome, all_to_all, "ncclAlltoAll", 22803, const void* from, void* to, std::size_t count,        \
           DataType type, Comm comm, Stream stream)                                                          \
  FUNCTION(Outcome, gather, "ncclGather", 22803, const void* from, void* to, std::size_t count,              \
           DataType type, int root, Comm comm, Stream stream)                                                \
  FUNCTION(Outcome, scatter, "ncclScatter", 22803, const void* from, void* to, std::size_t count,            \
           DataType type, int root, Comm comm, Stream stream)                                                \
  FUNCTION(Outcome, all_reduce_config, "ncclAllReduceConfig", 23100, const void* from, void* to,             \
           std::size_t count, DataType type, ReduceOp op, Comm comm, Stream stream,                          \
           const CollConfig* config)                                                                         \
  FUNCTION(Outcome, broadcast_config, "ncclBroadcastConfig", 23100, const void* from, void* to,              \
           std::size_t count, DataType type, int root, Comm comm, Stream stream, const CollConfig* config)   \
  FUNCTION(Outcome, reduce_config, "ncclReduceConfig", 23100, const void* from, void* to, std::size_t count, \
           DataType type, ReduceOp op, int root, Comm comm, Stream stream, const CollConfig* config)         \
  FUNCTION(Outcome, all_gather_config, "ncclAllGatherConfig", 23100, const void* from, void* to,             \
           std::size_t count, DataType type, Comm comm, Stream stream, const CollConfig* config)             \
  FUNCTION(Outcome, reduce_scatter_config, "ncclReduceScatterConfig", 23100, const void* from, void* to,     \
           std::size_t count, DataType type, ReduceOp op, Comm comm, Stream stream,                          \
           const CollConfig* config)                                                                         \
  FUNCTION(Outcome, all_to_all_config, "ncclAlltoAllConfig", 23100, const void* from, void* to,              \
           std::size_t count, DataType type, Comm comm, Stream stream, const CollConfig* config)             \
  FUNCTION(Outcome, gather_config, "ncclGatherConfig", 23100, const void* from, void* to, std::size_t count, \
           DataType type, int root, Comm comm, Stream stream, const CollConfig* config)

namespace headrace::nccl {

/// The oldest supported version, as ncclGetVersion gives it: 2.18.1.
inline constexpr int oldest_version = 21801;
/// The first with types of 8 bit floats.
inline constexpr int version_of_float8 = 22403;
/// The first whose communicators grow.
inline constexpr int version_of_grow = 22902;
/// The first with configurations of single calls.
inline constexpr int version_of_call_config = 23100;

struct Table {
#define HEADRACE_NCCL_MEMBER(result, member, symbol, ...) result (*member)(__VA_ARGS__) = nullptr;
  HEADRACE_NCCL_FUNCTIONS(HEADRACE_NCCL_MEMBER)
#undef HEADRACE_NCCL_MEMBER
#define HEADRACE_NCCL_MEMBER(result, member, symbol, since, ...) result (*member)(__VA_ARGS__) = nullptr;
  HEADRACE_NCCL_LATER_FUNCTIONS(HEADRACE_NCCL_MEMBER)
#undef HEADRACE_NCCL_MEMBER
};

/// A library with this interface: its names, and where it lies.
struct Flavour {
  const char* name;  ///< "nccl"
  const char* file;  ///< by which the loader knows it
  const char*
      package_folder;  ///< where its pip package has it, below the folder of packages; "": it has none
  /// Its file has the name of another flavour's, so only a path says which is meant.
  bool only_by_path;
  const char* install;  ///< how to install it
  /// Its streams and memory are those of AMD's HIP, not of the CUDA driver.
  bool on_hip = false;
};
inline constexpr std::array flavours{
    Flavour{"nccl", "libnccl.so.2", "nvidia/nccl/lib", false, "pip install nvidia-nccl-cu13"},
    Flavour{"ncclx", "libnccl.so.2", "", true, "build it from github.com/meta-pytorch/torchcomms"},
    Flavour{"rccl", "librccl.so.1", "", false, "install ROCm with RCCL", true},
    Flavour{"rcclx", "librccl.so.1", "", true, "build it from github.com/meta-pytorch/torchcomms", true}};
/// Null: there is none of that name.
[[nodiscard]] const Flavour* find_flavour(std::string_view name);

/// Copied freely: the library is never unloaded.
struct Library {
  Table table;
  int version = 0;   ///< 22809
  std::string path;  ///< by which it was loaded
};

/// Loads the library at `path`. Without a path: the one that this process has loaded already (torch's), else
/// that of the pip package beside Headrace's own, else the one that the loader finds.
///   errors   not_supported (there is none, it does not load, too old: both versions; a function is missing),
///            not_found (no such file)
[[nodiscard]] Result<Library> load_library(const Flavour& flavour, const std::string& path);

/// "2.28.9" for 22809.
[[nodiscard]] std::string version_text(int version);

/// A function of later versions.
struct Feature {
  std::string_view symbol;
  int since = 0;
  bool there = false;
};
[[nodiscard]] std::vector<Feature> features(const Library& library);
/// Why a call cannot be served: "ncclCommShrink needs NCCL 2.27.3, and libnccl.so.2 is 2.26.2".
[[nodiscard]] Error needs_version(const Library& library, std::string_view what, int since);

/// An error whose cause is the library: "init: remote process exited (...)". `comm` may be null.
[[nodiscard]] Error library_error(const Library& library, Comm comm, Outcome outcome, std::string_view what);

}  // namespace headrace::nccl
