// SPDX-License-Identifier: Apache-2.0
// Bytes to and from one peer, in order: what carries the frames of a NIC. A socket, or rings of shared
// memory.
#pragma once

#include "base/epoll.hpp"
#include "base/errors.hpp"
#include "rail/stream/memories.hpp"

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace headrace::rail::stream {

/// Bytes of the peer's process.
struct Source {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  bool gpu = false;
};

/// A copy by a GPU that has begun. The destructor waits for it.
class RunningCopy {
 public:
  RunningCopy() = default;
  RunningCopy(const RunningCopy&) = delete;
  RunningCopy& operator=(const RunningCopy&) = delete;
  virtual ~RunningCopy() = default;
  ///   errors  of the GPU
  [[nodiscard]] virtual Result<bool> ended() = 0;
};

/// The destructor ends both directions at once: no byte is sent, and none is taken, afterwards.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  /// Lets the set tell of news. Before any other call.
  [[nodiscard]] virtual Result<void> watch(Epoll& epoll, std::uint64_t key) = 0;
  /// Bytes may go.
  [[nodiscard]] virtual bool is_open() const = 0;
  /// Goes on with opening, at each event until it is open.
  ///   errors  it cannot be opened
  [[nodiscard]] virtual Result<void> open() = 0;

  /// Takes some bytes of the pieces, in order. 0: none now.
  ///   errors  of the network; then nothing more may be sent
  [[nodiscard]] virtual Result<std::size_t> send(std::span<const iovec> pieces) = 0;
  /// Whether the set tells, by EPOLLOUT, that there is room again.
  ///   errors  of the system
  [[nodiscard]] virtual Result<void> tell_room(bool on) = 0;
  /// Fills places, in order. 0: nothing is there now.
  ///   errors  peer_lost (closed, and all bytes were taken), corrupt, those of the network
  [[nodiscard]] virtual Result<std::size_t> receive(std::span<const iovec> places) = 0;

  // A stream of shared memory has news that no set tells of.

  /// An event of the set has come.
  virtual void woken() {}
  /// EPOLLIN, EPOLLOUT: what may be done now and the set has not told.
  [[nodiscard]] virtual std::uint32_t news() { return 0; }
  /// From now on the set tells of all news, until `disarm`. False: there are some already.
  [[nodiscard]] virtual bool arm() { return true; }
  virtual void disarm() {}

  // A stream to a process of this host may let the owner copy from the writer's memory.

  /// Both sides have said hello.
  virtual void greeted() {}
  /// This side could copy from the peer's memory, when it was tried.
  [[nodiscard]] virtual bool can_fetch() const { return false; }
  /// The peer copies out of this process by itself, if it is told the addresses.
  [[nodiscard]] virtual bool peer_fetches() const { return false; }
  /// Copies some bytes from the peer's addresses; both lists have the same number of bytes.
  ///   errors  not_supported (the system does not let us: the bytes are to be sent), peer_lost
  [[nodiscard]] virtual Result<std::size_t> fetch(std::span<const iovec> to, std::span<const iovec> from);

  // The same where memory of GPUs takes part.

  /// Lets the peer reach memory of a GPU, before it is told a place in it.
  ///   errors  not_supported, not_found (it was freed), would_block
  [[nodiscard]] virtual Result<void> show(const RegisteredMemory& memory);
  virtual void hide(std::uint32_t /*memory*/) {}
  /// Memory that was hidden: the peer has not said that it has closed it.
  [[nodiscard]] virtual bool is_open_there(std::uint32_t /*memory*/) const { return false; }
  struct Begun {
    std::unique_ptr<RunningCopy> copy;
    std::uint64_t bytes = 0;
  };
  /// Begins to copy some bytes. `gpu`: ours that takes part, if there is one.
  ///   errors  as of `fetch`, and those of the GPU
  [[nodiscard]] virtual Result<Begun> begin_copy(std::span<const iovec> to, std::span<const Source> from,
                                                 std::optional<int> gpu);
  /// After a copy: its bytes are right, for the peer still lives.
  ///   errors  peer_lost
  [[nodiscard]] virtual Result<void> check_peer() { return {}; }
};

/// A stream to a peer, and what is known of it.
struct NewStream {
  std::unique_ptr<Stream> stream;
  std::string where;       ///< for sentences
  std::uint64_t life = 0;  ///< of the NIC there, by its address
};

}  // namespace headrace::rail::stream
