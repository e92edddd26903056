// SPDX-License-Identifier: Apache-2.0
// Cross-memory attach: whether the kernel lets us reach into a peer's memory, and copies that do.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace headrace::host_link {

/// What an agent says of itself so that a peer can prove that attach reaches it and nobody else: an address
/// in its memory and the random number that lies there.
struct Nonce {
  std::uint64_t address = 0;
  std::uint64_t value = 0;
};

/// Lets a peer attach to us where the Yama module asks for our consent (kernel.yama.ptrace_scope = 1). Yama
/// keeps one consent a process and does not tell it. The library and each plugin have a copy of this
/// function, and an agent and a fabric of one process have peers of their own: who named one process would
/// take the others' away. So the consent is for every process of this user.
void allow_attach_by(pid_t peer);

enum class Direction : std::uint8_t { from_peer, to_peer };

/// How far an attach call came.
struct AttachResult {
  std::size_t bytes = 0;
  int os_error = 0;  ///< why it stopped, 0: all was moved
};

/// The longest vector that process_vm_readv and process_vm_writev take in one call.
inline constexpr std::size_t attach_vector_limit = 1024;

/// Moves local[i] from or to remote[i]; equal counts and lengths, at most attach_vector_limit of them.
[[nodiscard]] AttachResult attach_copy(pid_t peer, Direction direction, std::span<const iovec> local,
                                       std::span<const iovec> remote, std::size_t total_bytes) noexcept;

/// Whether attach reaches the process that holds the nonce; empty if it does, else a sentence why not.
[[nodiscard]] std::string why_no_attach(pid_t peer, const Nonce& nonce);

}  // namespace headrace::host_link
