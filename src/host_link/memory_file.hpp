// SPDX-License-Identifier: Apache-2.0
// Memory files and their mappings, each with one owner.
#pragma once

#include "base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace headrace::host_link {

/// A mapped range, unmapped when the owner goes.
class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(void* address, std::size_t length) noexcept : address_(address), length_(length) {}
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), length_(std::exchange(other.length_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(length_, other.length_);
    return *this;
  }
  ~Mapping();

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(address_); }
  [[nodiscard]] std::size_t size() const noexcept { return length_; }
  explicit operator bool() const noexcept { return address_ != nullptr; }

  enum class Access { read, read_write };
  /// Maps a part of a file shared; offset must be a multiple of the file's page size.
  [[nodiscard]] static Result<Mapping> of_file(int fd, std::uint64_t offset, std::size_t length,
                                               Access access);
  /// Maps the first `length` bytes from `offset` on twice, back to back, so that what wraps around lies in
  /// one piece.
  [[nodiscard]] static Result<Mapping> of_file_twice(int fd, std::uint64_t offset, std::size_t length);

 private:
  void* address_ = nullptr;
  std::size_t length_ = 0;
};

/// A new memory file of that size, to be sealed by the caller.
[[nodiscard]] Result<UniqueFd> create_memory_file(const char* name, std::uint64_t size_bytes);
/// Adds seals (F_SEAL_SHRINK, ...): from then on neither side can undo them.
[[nodiscard]] Result<void> seal_memory_file(int fd, int seals);

/// What must be known of a memory file that a stranger sent before a byte of it is touched.
struct MemoryFile {
  std::uint64_t size_bytes = 0;
  std::uint64_t page_bytes = 0;  ///< offsets and lengths of mappings are multiples of it
  bool writable = true;          ///< false: sealed against mappings that can be written
};
/// Refuses a file that could shrink under a mapping, which would end this process with SIGBUS.
///   errors   corrupt (no memory file, or not sealed against shrinking)
[[nodiscard]] Result<MemoryFile> inspect_memory_file(int fd);

}  // namespace headrace::host_link
