// SPDX-License-Identifier: Apache-2.0
// What a hostile peer of this host brings: an address, the head of its memory file, positions and bytes of
// its ring, where bytes are to be fetched, and memory of GPUs. The first byte chooses.
#include "host_link/memory_file.hpp"
#include "rail/cuda_ipc/shown_memory.hpp"
#include "rail/shm/address.hpp"
#include "rail/shm/pipe.hpp"
#include "rail/stream/fetch.hpp"
#include "rail/stream/frame_reader.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace headrace;
using namespace headrace::rail;

constexpr std::uint64_t ring_bytes = 64 * 1024;
constexpr std::uint64_t head_bytes = 64 * 1024;

void read_address(std::string_view bytes) {
  const auto address = shm::read_near_address(bytes);
  const auto again = address ? shm::read_near_address(shm::encode(*address)) : address;
  if (address ? again->host != address->host || again->life != address->life
              : address.error().message.empty())
    std::abort();
}

/// A file whose first bytes are the peer's.
void adopt(std::string_view bytes) {
  auto file = host_link::create_memory_file("headrace-fuzz", head_bytes + 2 * ring_bytes);
  auto ours = host_link::BellPair::create(), theirs = host_link::BellPair::create();
  if (!file || !ours || !theirs) return;
  if (::pwrite(file->get(), bytes.data(), std::min<std::size_t>(bytes.size(), head_bytes), 0) < 0) return;
  if (!host_link::seal_memory_file(file->get(), F_SEAL_SHRINK | F_SEAL_GROW)) return;
  std::vector<UniqueFd> came;
  came.push_back(std::move(*file));
  came.push_back(std::move(theirs->rings));
  came.push_back(std::move(ours->waits));
  auto pipe = shm::Pipe::adopt(std::move(came), 1 << 20);
  if (!pipe) return;
  std::array<char, 100> some;
  const iovec place{some.data(), some.size()};
  for (int i = 0; i < 10; ++i) {
    const auto read = pipe->reader.read({&place, 1});
    const auto written = pipe->writer.write({&place, 1});
    if ((read && *read > some.size()) || (written && *written > some.size())) std::abort();
  }
}

/// Packets that show memory of GPUs, each behind its length and its number of descriptors.
void read_show(std::string_view bytes) {
  cuda_ipc::ShownMemories shown(false);
  while (bytes.size() > 2) {
    const std::size_t length = std::min<std::size_t>(static_cast<std::uint8_t>(bytes[0]), bytes.size() - 2);
    const std::size_t descriptors = static_cast<std::uint8_t>(bytes[1]);
    const std::string_view one = bytes.substr(2, length);
    bytes.remove_prefix(2 + length);
    auto packet = cuda_ipc::read_show_packet(one, descriptors);
    if (packet ? packet->piece_bytes.size() != descriptors : packet.error().message.empty()) std::abort();
    if (!packet) continue;
    if (packet->says == cuda_ipc::ShowPacket::Says::shown && cuda_ipc::encode(*packet) != one) std::abort();
    if (packet->says == cuda_ipc::ShowPacket::Says::closed) continue;
    const std::uint64_t address = packet->address;
    static_cast<void>(shown.take(std::move(*packet), std::vector<UniqueFd>(descriptors)));
    static_cast<void>(shown.gpu_of(address, 1));
    static_cast<void>(shown.gpu_of(UINT64_MAX, UINT64_MAX));
  }
}

struct Taker final : stream::FrameReader::Handler {
  explicit Taker(stream::FrameReader& the_reader) : reader(the_reader) {}
  Result<void> begin(const stream::FrameHeader& header, std::vector<stream::Range> ranges) override {
    bytes = 0;
    for (const stream::Range& range : ranges) bytes += range.length;
    if (header.type == stream::FrameType::fetch || header.type == stream::FrameType::offer) reader.keep();
    return {};
  }
  Result<void> end(const stream::FrameHeader& header, std::string_view kept, bool) override {
    if (header.type != stream::FrameType::fetch) return {};
    if (kept.size() != header.payload) std::abort();
    HEADRACE_TRY(sources, stream::read_sources(kept, bytes));
    std::uint64_t sum = 0;
    for (const stream::Source& source : sources) sum += source.bytes;
    if (sum != bytes || stream::encode(sources) != kept) std::abort();
    return {};
  }
  stream::FrameReader& reader;
  std::uint64_t bytes = 0;
};

/// The peer writes the bytes and says that its position is another one.
void read_ring(std::string_view bytes) {
  std::uint64_t lie = 0;
  if (bytes.size() < sizeof lie) return;
  std::memcpy(&lie, bytes.data(), sizeof lie);
  bytes.remove_prefix(sizeof lie);
  host_link::RingControl control{};
  std::vector<std::byte> data(2 * ring_bytes);
  const host_link::RingMemory memory{&control, data.data(), ring_bytes};
  shm::ByteRingWriter writer(memory);
  shm::ByteRingReader ring(memory);
  const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  static_cast<void>(writer.write({&piece, 1}));
  if (lie % 3 == 0) control.tail += lie;
  stream::Memories memories;
  stream::FrameReader reader(memories);
  Taker taker(reader);
  for (std::uint64_t taken = 0;;) {
    std::optional<std::size_t> n;
    {
      stream::Memories::View view(memories);
      n = ring.read(reader.targets(view));
    }
    if (!n || *n == 0) return;
    taken += *n;
    if (taken > ring_bytes) std::abort();
    if (!reader.took(*n, taker)) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 0) read_address(bytes);
  if (data[0] % 4 == 1) adopt(bytes);
  if (data[0] % 4 == 2) read_ring(bytes);
  if (data[0] % 4 == 3) read_show(bytes);
  return 0;
}
