// SPDX-License-Identifier: Apache-2.0
// What two NICs of this host share: a sealed memory file with a ring for each direction, and two bells.
#pragma once

#include "host_link/bell.hpp"
#include "host_link/memory_file.hpp"
#include "rail/shm/byte_ring.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace headrace::rail::shm {

/// What one side tells the other in the file, beside the bytes of its ring.
struct alignas(64) SideWords {
  std::atomic<std::uint32_t> closed;         ///< it takes and gives no byte any more
  std::atomic<std::uint32_t> fetches;        ///< it can copy from the other's memory by itself
  std::atomic<std::uint64_t> nonce_address;  ///< where it proves that
  std::atomic<std::uint64_t> nonce;
};

/// Layout of the file: the first 64 KiB hold this, at 1024 the control words of the two rings, at 2048 the
/// words of the two sides, the connecting one first; then come the data of ring 0, which the connecting side
/// writes, and of ring 1.
struct PipeHead {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t ring_bytes;
};

/// One thread at a time.
class Pipe {
 public:
  /// What the connecting side sends: the file, the end that rings its bell, the end of the other bell that
  /// waits.
  struct Made;
  static constexpr std::size_t descriptors = 3;

  /// `ring_bytes`: a power of two.
  ///   errors  those of the system
  static Result<Made> create(std::uint64_t ring_bytes);
  /// What came in, in that order. `most_ring_bytes` bounds what a peer can make this process map.
  ///   errors  corrupt (sizes, seals, head or bells are not what they should be)
  static Result<Pipe> adopt(std::vector<UniqueFd> came, std::uint64_t most_ring_bytes);

  ByteRingWriter writer;
  ByteRingReader reader;

  [[nodiscard]] int bell() const { return waits_.get(); }
  void ring() const { host_link::ring_bell(rings_); }
  void drain() const { host_link::drain_bell(waits_); }
  [[nodiscard]] SideWords& own() const { return words()[own_]; }
  [[nodiscard]] SideWords& theirs() const { return words()[1 - own_]; }

 private:
  Pipe(UniqueFd waits, UniqueFd rings, std::size_t own)
      : waits_(std::move(waits)), rings_(std::move(rings)), own_(own) {}
  Result<void> map(int file, std::uint64_t ring_bytes);
  [[nodiscard]] SideWords* words() const;

  UniqueFd waits_, rings_;  // ends of bells: ours, and the peer's
  std::size_t own_;         // 0: the connecting side
  host_link::Mapping head_;
  std::array<host_link::Mapping, 2> data_;
};

struct Pipe::Made {
  Pipe pipe;
  std::array<UniqueFd, descriptors> to_send;
};

}  // namespace headrace::rail::shm
