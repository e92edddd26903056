// SPDX-License-Identifier: Apache-2.0
#include "rail/shm/pipe.hpp"

#include <bit>
#include <new>
#include <utility>

namespace headrace::rail::shm {
namespace {

using host_link::Mapping;
using host_link::RingControl;

constexpr std::uint32_t pipe_magic = 0x53465248;  // "HRFS"
constexpr std::uint32_t pipe_version = 1;
constexpr std::uint64_t head_bytes = 64 * 1024;  // the rings begin on a page, however large pages are here
constexpr std::uint64_t control_offset = 1024;
constexpr std::uint64_t words_offset = 2048;
static_assert(control_offset + 2 * sizeof(RingControl) <= words_offset);
static_assert(words_offset + 2 * sizeof(SideWords) <= head_bytes);

std::uint64_t pipe_file_bytes(std::uint64_t ring_bytes) { return head_bytes + 2 * ring_bytes; }

}  // namespace

Result<Pipe::Made> Pipe::create(std::uint64_t ring_bytes) {
  HEADRACE_TRY(file, host_link::create_memory_file("headrace-fabric", pipe_file_bytes(ring_bytes)));
  HEADRACE_TRY_VOID(host_link::seal_memory_file(file.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  HEADRACE_TRY(ours, host_link::BellPair::create());
  HEADRACE_TRY(theirs, host_link::BellPair::create());
  Pipe pipe(std::move(ours.waits), std::move(theirs.rings), 0);
  HEADRACE_TRY(head, Mapping::of_file(file.get(), 0, head_bytes, Mapping::Access::read_write));
  new (head.data()) PipeHead{pipe_magic, pipe_version, ring_bytes};
  pipe.head_ = std::move(head);
  HEADRACE_TRY_VOID(pipe.map(file.get(), ring_bytes));
  return Made{std::move(pipe), {std::move(file), std::move(ours.rings), std::move(theirs.waits)}};
}

Result<Pipe> Pipe::adopt(std::vector<UniqueFd> came, std::uint64_t most_ring_bytes) {
  if (came.size() != descriptors)
    return make_error(Code::corrupt, "{} descriptors came with a pipe, {} belong to it", came.size(),
                      descriptors);
  HEADRACE_TRY(found, host_link::inspect_memory_file(came[0].get()));
  HEADRACE_TRY_VOID(host_link::check_bell(came[1]));
  HEADRACE_TRY_VOID(host_link::check_bell(came[2]));
  if (found.size_bytes < head_bytes || found.page_bytes > head_bytes || !found.writable)
    return make_error(Code::corrupt, "the file of a pipe has {} bytes in pages of {}", found.size_bytes,
                      found.page_bytes);
  Pipe pipe(std::move(came[2]), std::move(came[1]), 1);
  HEADRACE_TRY(head, Mapping::of_file(came[0].get(), 0, head_bytes, Mapping::Access::read_write));
  pipe.head_ = std::move(head);
  const PipeHead said = *reinterpret_cast<const PipeHead*>(pipe.head_.data());
  const bool fits = std::has_single_bit(said.ring_bytes) && said.ring_bytes >= head_bytes &&
                    said.ring_bytes <= most_ring_bytes &&
                    pipe_file_bytes(said.ring_bytes) == found.size_bytes;
  if (said.magic != pipe_magic || said.version != pipe_version || !fits)
    return make_error(
        Code::corrupt,
        "the file of a pipe begins with {:#x}, version {}, rings of {} bytes in {}; expected is "
        "{:#x}, version {}, rings of at most {} bytes",
        said.magic, said.version, said.ring_bytes, found.size_bytes, pipe_magic, pipe_version,
        most_ring_bytes);
  HEADRACE_TRY_VOID(pipe.map(came[0].get(), said.ring_bytes));
  return pipe;
}

SideWords* Pipe::words() const { return reinterpret_cast<SideWords*>(head_.data() + words_offset); }

Result<void> Pipe::map(int file, std::uint64_t ring_bytes) {
  std::array<host_link::RingMemory, 2> rings;
  for (std::size_t i = 0; i < rings.size(); ++i) {
    HEADRACE_TRY(data, Mapping::of_file_twice(file, head_bytes + i * ring_bytes, ring_bytes));
    data_[i] = std::move(data);
    auto* const control = reinterpret_cast<RingControl*>(head_.data() + control_offset) + i;
    rings[i] = {control, data_[i].data(), ring_bytes};
  }
  writer = ByteRingWriter(rings[own_]);
  reader = ByteRingReader(rings[1 - own_]);
  return {};
}

}  // namespace headrace::rail::shm
