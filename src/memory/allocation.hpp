// SPDX-License-Identifier: Apache-2.0
// Host memory that a peer on this host can map: a sealed memfd, mapped here, placed on a NUMA node.
//
// Sealed, because a peer that maps a file which its owner can shrink dies of SIGBUS at the first touch beyond
// the end. With the size sealed before anybody sees the descriptor, neither side can do that to the other.
#pragma once

#include "base/unique_fd.hpp"

#include <cstddef>
#include <span>

namespace headrace {

class Allocation {
 public:
  /// Maps `bytes` bytes of zeros, rounded up to whole pages.
  ///   numa_node    -1: each page on the node of the thread that touches it first
  ///   huge_pages   pages of 2 MiB, taken from those that the system keeps in reserve
  ///   writable     false: the mapping made here is the last one that can be written; peers map it for
  ///   reading errors       invalid_argument (0 bytes, a node that is not there), exhausted (memory, reserved
  ///   pages, descriptors,
  ///                address space: the text says which limit to raise), not_supported (no memfd or no NUMA
  ///                policy here)
  [[nodiscard]] static Result<Allocation> make(std::size_t bytes, int numa_node = -1, bool huge_pages = false,
                                               bool writable = true);

  Allocation(Allocation&& other) noexcept
      : fd_(std::move(other.fd_)),
        bytes_(std::exchange(other.bytes_, {})),
        mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}
  Allocation& operator=(Allocation&& other) noexcept;
  ~Allocation();

  /// What was asked for; begins on a page.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  /// What is mapped: whole pages.
  [[nodiscard]] std::size_t mapped_bytes() const noexcept { return mapped_bytes_; }
  /// The memfd that holds it, from offset 0 on.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  Allocation(UniqueFd fd, std::span<std::byte> bytes, std::size_t mapped_bytes) noexcept
      : fd_(std::move(fd)), bytes_(bytes), mapped_bytes_(mapped_bytes) {}

  UniqueFd fd_;
  std::span<std::byte> bytes_;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace headrace
