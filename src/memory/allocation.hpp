// SPDX-License-Identifier: Apache-2.0
// Host memory that other processes can map: a sealed memfd, mapped here.
#pragma once

#include "base/unique_fd.hpp"

#include <cstddef>
#include <span>

namespace headrace {

/// Zero-filled, page-aligned. Sealed against shrinking and growing, so that whoever maps it can never be hit by SIGBUS.
class Allocation {
 public:
  ///   errors  invalid_argument (0 bytes, no such node), exhausted (says which limit to look at)
  static Result<Allocation> make(std::size_t bytes, int numa_node = -1, bool huge_pages = false);
  ~Allocation();
  Allocation(Allocation&& other) noexcept : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})), mapped_(std::exchange(other.mapped_, 0)) {}
  Allocation& operator=(Allocation&&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  Allocation(UniqueFd fd, std::span<std::byte> bytes, std::size_t mapped) : fd_(std::move(fd)), bytes_(bytes), mapped_(mapped) {}

  UniqueFd fd_;
  std::span<std::byte> bytes_;
  std::size_t mapped_;  // bytes_ rounded up to whole pages
};

}  // namespace headrace
