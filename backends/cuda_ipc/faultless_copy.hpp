// SPDX-License-Identifier: Apache-2.0
// Copies between a buffer of ours and pieces of the caller's memory, which may be read-only or gone: the kernel
// says so where memcpy would end the process.
#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

namespace headrace::cuda_ipc {

enum class Way { out_of_pieces, into_pieces };

/// False: a piece is not there, or may not be touched so.
inline bool copy_unless_it_faults(std::byte* buffer, std::span<const iovec> pieces, Way way) {
  constexpr std::size_t pieces_a_call = 1024;  // IOV_MAX of Linux
  while (!pieces.empty()) {
    const auto some = pieces.first(std::min(pieces.size(), pieces_a_call));
    std::size_t bytes = 0;
    for (const iovec& piece : some) bytes += piece.iov_len;
    const iovec ours{buffer, bytes};
    const auto move = way == Way::out_of_pieces ? ::process_vm_readv : ::process_vm_writev;
    const ssize_t moved = move(::getpid(), &ours, 1, some.data(), some.size(), 0);
    if (moved < 0 && (errno == EPERM || errno == ENOSYS)) {  // a filter forbids the call
      std::byte* at = buffer;
      for (const iovec& piece : some) {
        if (way == Way::out_of_pieces)
          std::memcpy(at, piece.iov_base, piece.iov_len);
        else
          std::memcpy(piece.iov_base, at, piece.iov_len);
        at += piece.iov_len;
      }
    } else if (moved != static_cast<ssize_t>(bytes)) {
      return false;
    }
    buffer += bytes;
    pieces = pieces.subspan(some.size());
  }
  return true;
}

}  // namespace headrace::cuda_ipc
