// SPDX-License-Identifier: Apache-2.0
// Memory to be registered in tests of backends, patterns to fill it with, and the plain loop that says what
// must be in it.
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

/// Fills with bytes that depend on the seed and the place, so that bytes in a wrong place show.
void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed);

// Loops over bytes are slow under sanitizers; these are not.
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

/// Where the memories of a test come from, if not from the host: a GPU's, for one.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Memory that the CPU can touch, and what gives it back. The one kind is as most programs make it, the
  /// other as a peer can have it without asking.
  struct Taken {
    std::byte* base = nullptr;
    std::shared_ptr<void> owner;
  };
  [[nodiscard]] virtual Taken take_plain(std::size_t length_bytes) = 0;
  [[nodiscard]] virtual Taken take_shared(std::size_t length_bytes) = 0;
  [[nodiscard]] virtual headrace_memory_kind_v1 region_kind() const = 0;
  [[nodiscard]] virtual int device() const = 0;  ///< of regions in it

  /// What every Memory that is made from now on comes from; null: the host.
  static void use(MemorySource* source) { current() = source; }
  [[nodiscard]] static MemorySource*& current() {
    static MemorySource* source = nullptr;
    return source;
  }
};

/// Memories that are made while this lives are the host's, whatever the current source.
class FromTheHost {
 public:
  FromTheHost() : before_(MemorySource::current()) { MemorySource::use(nullptr); }
  ~FromTheHost() { MemorySource::use(before_); }
  FromTheHost(const FromTheHost&) = delete;
  FromTheHost& operator=(const FromTheHost&) = delete;

 private:
  MemorySource* before_;
};

/// Memory to move: the host's, private to the process or a sealed memfd as `Agent::allocate` gives out, or
/// the current source's. Or a file, of which `bytes` is what stands in it.
class Memory {
 public:
  enum class Kind { plain, shared, file };

  /// `skew` bytes past an address that is a multiple of 64 (plain) or of the page size (shared); a file has
  /// none.
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
  std::shared_ptr<void> owner_;  // of what came from a source
  headrace_memory_kind_v1 region_kind_ = HEADRACE_DRAM;
  int device_ = -1;
};

/// One page of a request, by the numbers of its regions: the truth that sides and reference are made of.
struct PagePair {
  std::uint32_t local_region = 0;
  std::uint64_t local_offset = 0;
  std::uint32_t remote_region = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t bytes = 0;
};

using Bytes = std::vector<std::byte>;

/// What the request must do, one page after the other: pages of `from` into `to`, both given as copies of the
/// regions.
void move_pages(const std::vector<PagePair>& pages, headrace_op_v1 op, std::vector<Bytes>& local,
                std::vector<Bytes>& remote);

struct RandomPages {
  std::uint64_t count = 1;
  std::uint64_t min_bytes = 1;
  std::uint64_t max_bytes = 1;   ///< equal to min_bytes: one length
  std::uint32_t neighbours = 0;  ///< of 100 pages, how many continue the one before on both sides
};

/// Random pages whose destinations do not overlap. The regions must be large enough for them (it throws when
/// they are not).
std::vector<PagePair> random_pages(std::mt19937_64& random, const RandomPages& shape, headrace_op_v1 op,
                                   const std::vector<std::uint64_t>& local_regions,
                                   const std::vector<std::uint64_t>& remote_regions);

enum class SideShape {
  general,          ///< arrays of regions, offsets and lengths, page i in slot i
  general_indexed,  ///< the same in slots that are shuffled and more than the pages
};

/// One side of `pages` as arrays over `regions` (handles by region number).
PageSide side_of(const std::vector<PagePair>& pages, bool local, SideShape shape,
                 const std::vector<void*>& regions, std::mt19937_64& random);

}  // namespace headrace::test
