// SPDX-License-Identifier: Apache-2.0
#include "rail/cuda_ipc/shown_memory.hpp"

#include "base/unix_socket.hpp"
#include "wire/byte_writer.hpp"
#include "wire/packet_reader.hpp"

#include <cstring>
#include <utility>

namespace headrace::rail::cuda_ipc {
namespace {

constexpr std::string_view show_magic = "HRSHOW1:";

bool is_sound(const ShowPacket& packet, std::size_t descriptors) {
  const bool ends = packet.address + packet.bytes >= packet.address;
  if (packet.says != ShowPacket::Says::shown) return descriptors == 0;
  return packet.bytes > 0 && ends && packet.pieces <= max_shown_pieces &&
         packet.piece_bytes.size() <= packet.pieces && (packet.pieces == 0 || !packet.piece_bytes.empty());
}

}  // namespace

std::string encode(const ShowPacket& packet) {
  wire::ByteWriter out;
  out.bytes(show_magic);
  out.number(packet.memory);
  out.number(static_cast<std::uint32_t>(packet.says));
  out.number(packet.gpu);
  out.number(packet.address);
  out.number(packet.bytes);
  out.number(packet.offset);
  out.number(packet.pieces);
  out.write(reinterpret_cast<const char*>(&packet.handle), sizeof packet.handle);
  for (const std::uint64_t bytes : packet.piece_bytes) out.number(bytes);
  return std::move(out).take();
}

Result<ShowPacket> read_show_packet(std::string_view bytes, std::size_t descriptors) {
  wire::PacketReader in(bytes);
  ShowPacket packet;
  const bool ours = in.bytes(show_magic.size()) == show_magic;
  packet.memory = in.number<std::uint32_t>();
  const auto says = in.number<std::uint32_t>();
  packet.says = ShowPacket::Says{says};
  packet.gpu = in.number<std::uint32_t>();
  packet.address = in.number<std::uint64_t>();
  packet.bytes = in.number<std::uint64_t>();
  packet.offset = in.number<std::uint64_t>();
  packet.pieces = in.number<std::uint32_t>();
  const std::string_view handle = in.bytes(sizeof packet.handle);
  if (handle.size() == sizeof packet.handle) std::memcpy(&packet.handle, handle.data(), handle.size());
  if (descriptors > UnixSocket::max_descriptors) in.fail();
  for (std::size_t i = 0; in.good() && i < descriptors; ++i)
    packet.piece_bytes.push_back(in.number<std::uint64_t>());
  if (ours && says <= static_cast<std::uint32_t>(ShowPacket::Says::closed) && in.complete() &&
      is_sound(packet, descriptors))
    return packet;
  return make_error(Code::corrupt, "a packet of {} bytes and {} descriptors shows no GPU memory",
                    bytes.size(), descriptors);
}

Result<void> ShownMemories::take(ShowPacket packet, std::vector<UniqueFd> descriptors) {
  if (packet.says == ShowPacket::Says::gone) {
    shown_.erase(packet.memory);
    return {};
  }
  const bool fresh = !shown_.contains(packet.memory);
  if (fresh && shown_.size() >= max_shown_memories)
    return make_error(Code::exhausted, "the peer shows more than {} memories of GPUs", max_shown_memories);
  Shown& shown = shown_[packet.memory];
  if (fresh) {
    if (closed_ != nullptr) shown.hold = closed_->hold(packet.memory);
    shown.gpu = packet.gpu;
    shown.address = packet.address;
    shown.pieces = packet.pieces;
    shown.shared.sharing = packet.pieces == 0 ? gpu::Sharing::ipc : gpu::Sharing::descriptor;
    shown.shared.offset = packet.offset;
    shown.shared.bytes = packet.bytes;
    shown.shared.handle = packet.handle;
  }
  const bool same = shown.address == packet.address && shown.shared.bytes == packet.bytes &&
                    shown.pieces == packet.pieces && packet.pieces > 0;
  if ((!fresh && !same) || shown.shared.pieces.size() + descriptors.size() > shown.pieces)
    return make_error(Code::corrupt, "memory {} of a GPU is shown twice", packet.memory);
  for (std::size_t i = 0; i < descriptors.size(); ++i)
    shown.shared.pieces.push_back(
        {std::move(descriptors[i]), static_cast<std::size_t>(packet.piece_bytes[i])});
  return {};
}

const ShownMemories::Shown* ShownMemories::find(std::uint64_t address, std::uint64_t bytes) const {
  for (const auto& [id, shown] : shown_) {
    if (address < shown.address || address - shown.address > shown.shared.bytes) continue;
    const bool whole = shown.opened.empty() ? shown.shared.pieces.size() == shown.pieces : true;
    if (whole && bytes <= shown.shared.bytes - (address - shown.address)) return &shown;
  }
  return nullptr;
}

std::optional<std::uint32_t> ShownMemories::gpu_of(std::uint64_t address, std::uint64_t bytes) const {
  const Shown* const found = find(address, bytes);
  return found == nullptr ? std::nullopt : std::optional(found->gpu);
}

Result<ReachedMemory> ShownMemories::reach(const std::shared_ptr<const gpu::Device>& device,
                                           gpu::Closer& closer, std::uint64_t address, std::uint64_t bytes) {
  auto* const found = const_cast<Shown*>(find(address, bytes));
  if (found == nullptr)
    return make_error(Code::not_found, "the peer has shown no GPU memory at {:#x} for {} bytes", address,
                      bytes);
  if (same_process_) return ReachedMemory{nullptr, address};
  auto& opened = found->opened[device->ordinal()];
  if (opened == nullptr) {
    auto memory = gpu::PeerMemory::open(device, found->shared);
    if (!memory) {
      found->opened.erase(device->ordinal());
      return std::move(memory).error();
    }
    opened = closer.hold(Opened{found->hold, std::move(*memory), Quiet(device)});
  }
  return ReachedMemory{opened, opened->memory.address() + (address - found->address)};
}

}  // namespace headrace::rail::cuda_ipc
