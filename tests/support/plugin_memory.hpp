// SPDX-License-Identifier: Apache-2.0
// Memory for tests of backends, patterns to fill it with, and the plain loop that computes its expected
// content.
#pragma once

#include "base/unique_fd.hpp"
#include "support/page_side.hpp"

#include <headrace/plugin/backend_v1.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace headrace::test {

/// Fills with bytes that depend on the seed and the offset, so that bytes at a wrong place are noticed.
void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed);
/// The same for memory that only the calling thread accesses. The thread sanitizer does not see these writes.
void fill_private(std::span<std::byte> bytes, std::uint64_t seed);

// Byte loops are slow under sanitizers; these functions are not.
inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}
inline bool all_bytes(std::span<const std::byte> bytes, std::byte value) {
  return bytes.empty() ||
         (bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}
inline void set_bytes(std::span<std::byte> bytes, std::byte value) {
  std::memset(bytes.data(), std::to_integer<int>(value), bytes.size());
}

/// A source of the memories of a test other than the host, for example a GPU.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Memory that the CPU can access, and the object that frees it. `take_plain` gives memory as most programs
  /// allocate it, `take_shared` memory that a peer can map without help of the owner.
  struct Taken {
    std::byte* base = nullptr;
    std::shared_ptr<void> owner;
  };
  [[nodiscard]] virtual Taken take_plain(std::size_t length_bytes) = 0;
  [[nodiscard]] virtual Taken take_shared(std::size_t length_bytes) = 0;
  [[nodiscard]] virtual headrace_memory_kind_v1 region_kind() const = 0;
  [[nodiscard]] virtual int device() const = 0;  ///< the device of regions in it

  /// Every Memory that is made from now on comes from this source; null: the host.
  static void use(MemorySource* source) { current() = source; }
  [[nodiscard]] static MemorySource*& current() {
    static MemorySource* source = nullptr;
    return source;
  }
};

/// While this object lives, new memories come from the host, whatever the current source.
class FromTheHost {
 public:
  FromTheHost() : before_(MemorySource::current()) { MemorySource::use(nullptr); }
  ~FromTheHost() { MemorySource::use(before_); }
  FromTheHost(const FromTheHost&) = delete;
  FromTheHost& operator=(const FromTheHost&) = delete;

 private:
  MemorySource* before_;
};

/// Memory to move: private host memory, or a sealed memfd as `Agent::allocate` makes it, or memory of the
/// current source; or a file, whose content is `bytes`.
class Memory {
 public:
  enum class Kind { plain, shared, file };

  /// The memory begins `skew` bytes after an address that is a multiple of 64 (plain) or of the page size
  /// (shared). A file has no skew.
  Memory(Kind kind, std::size_t length_bytes, std::uint64_t seed, std::size_t skew = 0);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return {base_ + skew_, length_}; }
  [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(base_ + skew_); }
  [[nodiscard]] bool is_file() const { return is_file_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::uint64_t fd_offset() const { return skew_; }
  [[nodiscard]] headrace_memory_kind_v1 region_kind() const { return region_kind_; }
  [[nodiscard]] int device() const { return device_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t length_ = 0;
  std::size_t skew_ = 0;
  bool is_file_ = false;
  UniqueFd fd_;
  std::shared_ptr<void> owner_;  // of memory from a source
  headrace_memory_kind_v1 region_kind_ = HEADRACE_DRAM;
  int device_ = -1;
};

/// One page of a request, by the numbers of its regions. Sides and the reference are made from these.
struct PagePair {
  std::uint32_t local_region = 0;
  std::uint64_t local_offset = 0;
  std::uint32_t remote_region = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t bytes = 0;
};

using Bytes = std::vector<std::byte>;

/// The reference: copies the pages one after another. `local` and `remote` hold copies of the regions.
void move_pages(const std::vector<PagePair>& pages, headrace_op_v1 op, std::vector<Bytes>& local,
                std::vector<Bytes>& remote);

struct RandomPages {
  std::uint64_t count = 1;
  std::uint64_t min_bytes = 1;
  std::uint64_t max_bytes = 1;   ///< equal to min_bytes: one length
  std::uint32_t neighbours = 0;  ///< of 100 pages, how many continue the page before on both sides
};

/// Random pages whose destinations do not overlap. Throws if the regions are too small for them.
std::vector<PagePair> random_pages(std::mt19937_64& random, const RandomPages& shape, headrace_op_v1 op,
                                   const std::vector<std::uint64_t>& local_regions,
                                   const std::vector<std::uint64_t>& remote_regions);

enum class SideShape {
  general,          ///< arrays of regions, offsets and lengths, page i in slot i
  general_indexed,  ///< the same in shuffled slots, of which there are more than pages
};

/// One side of `pages` as arrays over `regions` (handles by region number).
PageSide side_of(const std::vector<PagePair>& pages, bool local, SideShape shape,
                 const std::vector<void*>& regions, std::mt19937_64& random);

}  // namespace headrace::test
