// SPDX-License-Identifier: Apache-2.0
// Regions: registered memory of one kind. Pages name bytes of regions.
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

/// The name of a kind: "dram", "vram", "block", "file", "object".
HEADRACE_API std::string_view kind_name(MemoryKind kind) noexcept;
/// The kind of a name. errors: invalid_argument (lists the names)
HEADRACE_API Result<MemoryKind> kind_from_name(std::string_view name);

/// Names a region within one incarnation of one agent. Ids count from 1 and are never used twice.
struct RegionId {
  std::uint32_t value = 0;
  friend constexpr auto operator<=>(const RegionId&, const RegionId&) = default;
};

/// Memory to register.
struct MemoryRange {
  void* address = nullptr;       ///< dram, vram
  std::size_t length_bytes = 0;  ///< dram, vram: > 0; file, block, object: 0 means all of it
  MemoryKind kind = MemoryKind::dram;
  int device = -1;           ///< vram: ordinal
  int file_descriptor = -1;  ///< file, block: open descriptor, stays the caller's; -1: use `path`
  std::string path = {};     ///< file, block: path; object: key
  bool writable = true;      ///< false: requests of this agent and of peers read it and never write it
};

struct RegisterOptions {
  std::string name = {};  ///< unique in the agent; empty: unnamed
  std::string note = {};  ///< travels with the metadata, up to 64 KiB: dtype and shape, a checksum, ...
  /// Only these, and `local` if one of them reaches peers; empty: every backend that takes the kind.
  std::vector<std::string> backends = {};
  /// Held until the region is deregistered: for example the array or tensor that owns the memory.
  std::shared_ptr<const void> keep_alive = {};
};

/// A region of this agent or of a peer.
struct Region {
  RegionId id;
  MemoryKind kind = MemoryKind::dram;
  std::uint64_t address = 0;  ///< the owner's address; 0 for files and objects
  std::uint64_t length_bytes = 0;
  std::string name;
  std::string note;
  std::vector<std::string> backends;  ///< that it is registered with
  bool writable = true;               ///< requests may write it

  /// The bytes of a region. Only for dram of this agent.
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {reinterpret_cast<std::byte*>(address), static_cast<std::size_t>(length_bytes)};
  }
};

/// How Agent::allocate makes memory.
struct AllocateOptions {
  MemoryKind kind = MemoryKind::dram;
  int numa_node = -1;  ///< -1: the node of `near_gpu`, else the node of the thread that first touches a page
  int near_gpu = -1;   ///< CUDA ordinal: use the NUMA node next to this GPU, if the firmware names it
  bool huge_pages = false;  ///< 2 MiB pages; `exhausted` if the system has none reserved
  /// False: this process fills it through `storage`; requests and peers' mappings only read it.
  bool writable = true;
  RegisterOptions registration = {};
};

/// A peer's region as memory of this process. The memory stays mapped until the last copy of the mapping is
/// gone.
///
/// `alive()` becomes false once the peer has revoked the region, has left or has died. After that, memory
/// from the peer's `allocate` still shows its old bytes; a read does not fault. GPU memory shows its old
/// bytes or what its owner has written since, and kernels can still write it. NVIDIA leaves open what happens
/// to memory of cudaMalloc that its owner has freed, so drop a mapping that is not alive.
///   threads  any. Dropping the last copy of a mapping for a GPU waits until this GPU has done what was
///            queued on streams of its primary context: earlier kernels may still use the memory. It cannot
///            wait while such a stream is being captured: the capture may fail, and the memory stays mapped
///            until the process ends
class Mapping {
 public:
  struct State;
  explicit Mapping(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// The addresses. Those of a mapping for a GPU are for its kernels and copies, not for the CPU. If the
  /// region is not writable, a write by the CPU ends the process; nothing stops a kernel from writing GPU
  /// memory.
  [[nodiscard]] HEADRACE_API std::span<std::byte> bytes() const;
  /// The GPU that uses the mapping, by its ordinal in this process; -1: the CPU.
  [[nodiscard]] HEADRACE_API int device() const;
  /// Whether the region may be written.
  [[nodiscard]] HEADRACE_API bool writable() const;
  /// Whether the peer still offers the region.
  [[nodiscard]] HEADRACE_API bool alive() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace headrace
