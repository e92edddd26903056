// SPDX-License-Identifier: Apache-2.0
// Regions: registered memory of a kind, the thing that pages are parts of.
#pragma once

#include <headrace/result.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

enum class MemoryKind : std::int32_t {
  dram = 0,    ///< host memory: address, length
  vram = 1,    ///< GPU memory: device ordinal, address, length
  block = 2,   ///< a block device: path
  file = 3,    ///< a file: path or descriptor
  object = 4,  ///< an object in a store: key
};

/// "dram", "vram", "block", "file", "object".
HEADRACE_API std::string_view kind_name(MemoryKind kind) noexcept;
/// The kind of that name; invalid_argument lists the names.
HEADRACE_API Result<MemoryKind> kind_from_name(std::string_view name);

/// Names a region within one life of one agent; counts from 1 and is never used twice.
struct RegionId {
  std::uint32_t value = 0;
  friend constexpr auto operator<=>(const RegionId&, const RegionId&) = default;
};

/// What is to be registered.
struct MemoryRange {
  void* address = nullptr;       ///< dram, vram
  std::size_t length_bytes = 0;  ///< dram, vram: > 0; file, block, object: 0 means all of it
  MemoryKind kind = MemoryKind::dram;
  int device = -1;           ///< vram: ordinal
  int file_descriptor = -1;  ///< file, block: an open descriptor, or -1 and a path; stays the caller's
  std::string path = {};     ///< file, block: path; object: key
  bool writable = true;      ///< false: requests read it and never write it, neither ours nor peers'
};

struct RegisterOptions {
  std::string name = {};  ///< unique in the agent; empty: unnamed
  std::string note = {};  ///< travels with the metadata, up to 64 KiB: dtype and shape, a checksum, ...
  std::vector<std::string> backends = {};  ///< only these; empty: every one that takes the kind
  std::shared_ptr<const void> keep_alive =
      {};  ///< held until the region is deregistered: the array or tensor behind it
};

/// A region of this agent or of a peer.
struct Region {
  RegionId id;
  MemoryKind kind = MemoryKind::dram;
  std::uint64_t address = 0;  ///< the owner's address; 0 for files and objects
  std::uint64_t length_bytes = 0;
  std::string name;
  std::string note;
  std::vector<std::string> backends;  ///< registered with these
  bool writable = true;               ///< whether requests may write it

  /// A region of our own as bytes. Only for dram of this agent.
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {reinterpret_cast<std::byte*>(address), static_cast<std::size_t>(length_bytes)};
  }
};

struct AllocateOptions {
  MemoryKind kind = MemoryKind::dram;
  int numa_node = -1;  ///< -1: that of `near_gpu`, or of the thread that touches a page first
  int near_gpu = -1;   ///< a CUDA ordinal: memory of the node next to this GPU, where the firmware names it
  bool huge_pages = false;  ///< 2 MiB pages; exhausted if the system has none reserved
  bool writable =
      true;  ///< false: this process fills it through `storage`; requests and peers' mappings only read
  RegisterOptions registration = {};
};

/// A peer's region as memory of this process. The memory stays until the last copy is gone. Once the peer has
/// revoked it, left or died `alive()` is false. What was allocated by the agent then shows old bytes, never a
/// fault. GPU memory shows them, too, or what its owner has put there since, and what a kernel writes lands
/// there; what became of memory of cudaMalloc that its owner has freed is left open by NVIDIA, so let go once
/// it is not alive.
///   threads  any. The last copy of a mapping for a GPU waits until this GPU has done what was queued on it,
///   on streams of its
///            primary context: kernels that were launched before may use the memory to their end. While a
///            stream of it is being captured nobody can wait, which may spoil the capture, and the memory
///            stays mapped to the end of the process
class Mapping {
 public:
  struct State;
  explicit Mapping(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// Of a mapping for a GPU, addresses that its kernels and copies use; the CPU does not. Of a region that is
  /// not writable the bytes can be read only: a write of the CPU's ends the process, and nothing keeps a
  /// kernel from writing GPU memory.
  [[nodiscard]] HEADRACE_API std::span<std::byte> bytes() const;
  /// The GPU whose kernels use it, by its ordinal in this process; -1: the CPU.
  [[nodiscard]] HEADRACE_API int device() const;
  [[nodiscard]] HEADRACE_API bool writable() const;
  [[nodiscard]] HEADRACE_API bool alive() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace headrace
