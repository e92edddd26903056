// SPDX-License-Identifier: Apache-2.0
// Peers' memory that came from `allocate`, as memory of this process.
#pragma once

#include "host_link/memory_file.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

namespace headrace::shm {

using host_link::Mapping;

/// What the owner says of a region that lies in a memory file.
struct SharedRegion {
  std::uint32_t region_id = 0;
  std::uint64_t offset_bytes = 0;  ///< where the region begins in the file
  std::uint64_t length_bytes = 0;
};

/// One mapped region. Whoever holds it may read it, also after the owner has died or taken it back: the pages
/// stay.
class ImportedMemory {
 public:
  /// Maps the region; the descriptor is not needed afterwards. Pages are taken when they are first touched.
  ///   errors   corrupt (not sealed, or the region does not lie inside the file), and the system's
  [[nodiscard]] static Result<std::shared_ptr<ImportedMemory>> map(const UniqueFd& file,
                                                                   const SharedRegion& region);

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  /// False: the owner has sealed the file, and it is mapped for reading.
  [[nodiscard]] bool writable() const { return writable_; }

 private:
  ImportedMemory(Mapping mapping, std::span<std::byte> bytes, bool writable)
      : mapping_(std::move(mapping)), bytes_(bytes), writable_(writable) {}
  Mapping mapping_;
  std::span<std::byte> bytes_;
  bool writable_;
};

/// The imports of one link. They are mapped as they come in, so that no descriptor is kept: an address range
/// costs next to nothing, descriptors are few.
///   threads  any
class Imports {
 public:
  /// A failure is remembered, so that nobody waits for the region.
  [[nodiscard]] Result<void> add(const UniqueFd& file, const SharedRegion& region);
  /// The owner has deregistered it; who holds it keeps it.
  void forget(std::uint32_t region_id);
  struct Found {
    bool known = false;                      ///< its memory file has come
    std::shared_ptr<ImportedMemory> memory;  ///< none if it could not be mapped
  };
  [[nodiscard]] Found find(std::uint32_t region_id) const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<ImportedMemory>> by_id_;
};

}  // namespace headrace::shm
