// SPDX-License-Identifier: Apache-2.0
// Memory that is registered with one NIC, and the keys by which peers name it.
//
// A pointer into memory is used while a View is held, which keeps the look-up's lock, and no longer. So
// memory is quiet when `remove` has returned.
#pragma once

#include "gpu/memory_identity.hpp"
#include "rail/provider.hpp"
#include "transport/region_table.hpp"

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::rail::stream {

/// Bytes of a memory of this side, for this side's own posts or for a peer.
using transport::Range;

struct RegisteredMemory : transport::Region {
  Access access = Access::local;
  std::optional<int> device;  ///< its GPU: `base` is no address of the host
  std::shared_ptr<const gpu::MemoryIdentity> identity = nullptr;  ///< of a GPU's: null if nobody has asked
};

/// Which memory a range may lie in.
enum class Reach : bool {
  host,  ///< which this thread can touch
  any,   ///< also a GPU's
};

/// Thread-safe.
class Memories {
 public:
  ///   errors  invalid_argument (empty)
  Result<MemoryId> add(const Memory& memory, std::shared_ptr<const gpu::MemoryIdentity> identity = nullptr);
  /// Waits for those that hold a View.
  /// Returns whether it was a GPU's.
  bool remove(MemoryId id);
  /// For tests: this number is looked at next.
  void skip_to(std::uint32_t next) { next_ = next; }

  class View {
   public:
    explicit View(const Memories& memories) : view_(memories.table_) {}
    [[nodiscard]] bool has(std::uint32_t id) {
      return view_.find({id, 0, 0}, transport::Access::read).region != nullptr;
    }
    /// Null: no such memory, outside of it, out of reach, or not for peers in this way.
    [[nodiscard]] std::byte* find(const Range& range, Access least, Reach reach = Reach::host);
    /// The memory in which the range lies; null as above, or if memory of a GPU was freed since: its address
    /// may have another allocation.
    [[nodiscard]] const RegisteredMemory* memory_of(const Range& range, Access least);

   private:
    transport::RegionTable<RegisteredMemory>::View view_;
    std::uint32_t unchanged_ = 0;  // the last memory whose identity was looked at; ids begin at 1
  };

 private:
  transport::RegionTable<RegisteredMemory> table_;
  std::mutex next_mutex_;
  std::uint32_t next_ = 1;
};

struct Key {
  std::uint64_t life = 0;
  std::uint32_t memory = 0;
  std::uint64_t bytes = 0;
  bool gpu = false;
};
[[nodiscard]] std::string encode(const Key& key);
/// Bytes from outside.
///   errors  corrupt
[[nodiscard]] Result<Key> read_key(std::string_view bytes);

}  // namespace headrace::rail::stream
