// SPDX-License-Identifier: Apache-2.0
// The memory that GPUs of the fake driver can access: host memory, most of it in files without a name, so
// that other processes can open it.
#pragma once

#include "vendor/cuda/types.hpp"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace headrace::cuda {

inline constexpr std::size_t page_bytes = 4096;

inline std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }
inline void* pointer(Address address) { return reinterpret_cast<void*>(address); }
inline Address address_of(const void* p) { return reinterpret_cast<Address>(p); }

/// Numbers of allocations. No two processes of a test give the same.
class BufferIds {
 public:
  std::uint64_t next() { return next_++; }

 private:
  std::uint64_t next_ = static_cast<std::uint64_t>(::getpid()) << 32;
};

// The files behind memory. The name says which allocation and which GPU it belongs to.

[[nodiscard]] std::string file_name(std::uint64_t id, Device device);
/// The name of the file behind a descriptor, as /proc shows it; empty if there is none.
[[nodiscard]] std::string name_behind(const std::string& descriptor);
[[nodiscard]] int new_file(std::uint64_t id, std::size_t bytes, Device device);
/// Maps a file at `where`, or anywhere if that is 0; 0 on failure.
[[nodiscard]] Address map_file(int fd, std::size_t bytes, Address where);
/// Like memset. Of a long range the thread sanitizer hears the beginning alone: it would write two bytes for
/// each of ours, and ranks of a test fill tens of megabytes each.
void fill_memory(Address where, unsigned char value, std::size_t bytes);
/// Keeps the addresses, and lets no access to them succeed.
void make_unreachable(Address address, std::size_t bytes);

struct Piece {
  enum class Kind { device, pinned, registered, imported, mapped };

  std::size_t bytes = 0;
  std::size_t mapped_bytes = 0;
  Kind kind = Kind::device;
  Device device = 0;
  int fd = -1;
  std::uint64_t id = 0;
  PhysicalMemory physical = 0;
  int opened = 0;        // imports: how many times
  Device opened_by = 0;  // imports: the GPU whose context opened it
  bool accessible = true;

  [[nodiscard]] bool is_host() const { return kind == Kind::pinned || kind == Kind::registered; }
};

class FakePieces {
 public:
  using Map = std::map<Address, Piece>;

  explicit FakePieces(BufferIds& ids) : ids_(ids) {}
  ~FakePieces();
  FakePieces(const FakePieces&) = delete;
  FakePieces& operator=(const FakePieces&) = delete;

  /// New memory in a file of its own. Its content is undefined, as that of fresh memory.
  Address allocate(std::size_t bytes, Piece::Kind kind, Device device);
  /// Frees memory of `allocate`. The next allocation of this size gets the address again.
  [[nodiscard]] Outcome free(Address address, Piece::Kind kind);
  /// Adds memory that is there already.
  void add(Address address, const Piece& piece) { pieces_[address] = piece; }
  void remove(Map::iterator piece) { pieces_.erase(piece); }

  /// The piece that begins at the address; `end` if there is none.
  [[nodiscard]] Map::iterator find(Address address) { return pieces_.find(address); }
  /// The piece with all of these bytes; `end` if there is none.
  [[nodiscard]] Map::const_iterator with(Address address, std::size_t bytes = 1) const;
  [[nodiscard]] Map::iterator begin() { return pieces_.begin(); }
  [[nodiscard]] Map::iterator end() { return pieces_.end(); }
  [[nodiscard]] Map::const_iterator end() const { return pieces_.end(); }
  [[nodiscard]] bool any_in(Address address, std::size_t bytes) const;
  [[nodiscard]] int count(Piece::Kind kind) const;
  [[nodiscard]] std::size_t allocated_bytes(Device device) const;

  /// Whether GPUs can access all of these bytes.
  [[nodiscard]] bool reachable(Address address, std::size_t bytes) const;
  /// The driver accepts any host address for a copy. Here any address outside the fake's memory counts as
  /// host memory.
  [[nodiscard]] bool touchable(Address address, std::size_t bytes) const;

 private:
  BufferIds& ids_;
  Map pieces_;
  std::multimap<std::size_t, Address> freed_;
};

}  // namespace headrace::cuda
