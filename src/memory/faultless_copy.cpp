// SPDX-License-Identifier: Apache-2.0
#include "memory/faultless_copy.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace headrace {
namespace {

constexpr std::size_t pieces_a_call = 1024;  // IOV_MAX of Linux

enum class Way { gather, scatter };

void copy_by_hand(std::byte* whole, std::span<const iovec> pieces, Way way) {
  for (const iovec& piece : pieces) {
    if (way == Way::gather)
      std::memcpy(whole, piece.iov_base, piece.iov_len);
    else
      std::memcpy(piece.iov_base, whole, piece.iov_len);
    whole += piece.iov_len;
  }
}

/// The whole is named as the other process's memory, which the kernel takes hold of in long stretches. The
/// pieces are touched as any system call touches its caller's; named so, each would be taken hold of by
/// itself, under a lock of all threads.
bool move(std::byte* whole, std::span<const iovec> pieces, Way way) {
  const auto call = way == Way::gather ? ::process_vm_writev : ::process_vm_readv;
  while (!pieces.empty()) {
    const auto some = pieces.first(std::min(pieces.size(), pieces_a_call));
    std::size_t bytes = 0;
    for (const iovec& piece : some) bytes += piece.iov_len;
    const iovec here{whole, bytes};
    const ssize_t moved = call(::getpid(), some.data(), some.size(), &here, 1, 0);
    if (moved < 0 && errno != EFAULT)
      copy_by_hand(whole, some, way);
    else if (moved != static_cast<ssize_t>(bytes))
      return false;
    whole += bytes;
    pieces = pieces.subspan(some.size());
  }
  return true;
}

}  // namespace

bool copy_unless_it_faults(void* to, const void* from, std::size_t bytes) {
  const iovec piece{to, bytes};
  return scatter_unless_it_faults({&piece, 1}, from);
}

bool gather_unless_it_faults(void* to, std::span<const iovec> pieces) {
  return move(static_cast<std::byte*>(to), pieces, Way::gather);
}

bool scatter_unless_it_faults(std::span<const iovec> pieces, const void* from) {
  return move(static_cast<std::byte*>(const_cast<void*>(from)), pieces, Way::scatter);
}

}  // namespace headrace
