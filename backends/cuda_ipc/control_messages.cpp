// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/control_messages.hpp"

#include "base/errors.hpp"
#include "wire/byte_writer.hpp"
#include "wire/packet_reader.hpp"

#include <cstring>
#include <string_view>

namespace headrace::cuda_ipc {
namespace {

using wire::ByteWriter;
using wire::PacketReader;

enum class Type : std::uint16_t {
  want = 16,
  offer = 17,
  pieces = 18,
  refused = 19,
  gone = 20,
  by_owner = 21,
  move = 22,
  go = 23,
  drop = 24,
};

void put_handle(ByteWriter& out, const cuda::IpcMemoryHandle& handle) {
  out.bytes({reinterpret_cast<const char*>(handle.bytes), sizeof handle.bytes});
}

cuda::IpcMemoryHandle get_handle(PacketReader& in) {
  cuda::IpcMemoryHandle handle{};
  const std::string_view bytes = in.bytes(sizeof handle.bytes);
  if (bytes.size() == sizeof handle.bytes) std::memcpy(handle.bytes, bytes.data(), bytes.size());
  return handle;
}

struct Encoder {
  ByteWriter& out;

  Type operator()(const Want& want) const {
    out.number(want.region_id);
    out.number(want.device);
    return Type::want;
  }
  Type operator()(const Offer& offer) const {
    out.number(offer.region_id);
    out.number(offer.device);
    out.number(offer.allocation);
    out.number(offer.address);
    out.number(offer.offset);
    out.number(offer.bytes);
    out.text(offer.uuid, max_uuid_bytes);
    out.number(offer.pieces);
    put_handle(out, offer.handle);
    put_handle(out, offer.proof);
    out.number(offer.nonce);
    return Type::offer;
  }
  Type operator()(const Pieces& pieces) const {
    out.number(static_cast<std::uint32_t>(pieces.bytes.size()));
    for (const std::uint64_t bytes : pieces.bytes) out.number(bytes);
    return Type::pieces;
  }
  Type operator()(const Refused& refused) const {
    out.number(refused.region_id);
    out.number(refused.device);
    out.number(static_cast<std::int32_t>(refused.code));
    out.text(refused.text, max_refused_bytes);
    return Type::refused;
  }
  Type operator()(const Gone& gone) const {
    out.number(gone.region_id);
    return Type::gone;
  }
  Type operator()(const ByOwner& by_owner) const {
    out.number(by_owner.region_id);
    out.number(by_owner.device);
    return Type::by_owner;
  }
  Type operator()(const Move& move) const {
    out.number(move.number);
    out.number(move.end_word);
    return Type::move;
  }
  Type operator()(const Go& go) const {
    out.number(go.number);
    return Type::go;
  }
  Type operator()(const Drop& drop) const {
    out.number(drop.number);
    return Type::drop;
  }
};

Offer read_offer(PacketReader& in) {
  Offer offer;
  offer.region_id = in.number<std::uint32_t>();
  offer.device = in.number<std::uint32_t>();
  offer.allocation = in.number<std::uint64_t>();
  offer.address = in.number<std::uint64_t>();
  offer.offset = in.number<std::uint64_t>();
  offer.bytes = in.number<std::uint64_t>();
  offer.uuid = in.text(0, max_uuid_bytes);
  offer.pieces = in.number<std::uint32_t>();
  offer.handle = get_handle(in);
  offer.proof = get_handle(in);
  offer.nonce = in.number<std::uint64_t>();
  if (offer.pieces > max_pieces || (offer.is_host_memory() && offer.pieces != 1)) in.fail();
  return offer;
}

Pieces read_pieces(PacketReader& in) {
  Pieces pieces;
  const auto count = in.number<std::uint32_t>();
  if (count == 0 || count > max_pieces_in_message) in.fail();
  for (std::uint32_t i = 0; i < count && in.good(); ++i) pieces.bytes.push_back(in.number<std::uint64_t>());
  return pieces;
}

Refused read_refused(PacketReader& in) {
  Refused refused;
  refused.region_id = in.number<std::uint32_t>();
  refused.device = in.number<std::uint32_t>();
  const auto code = in.number<std::int32_t>();
  if (code <= 0 || code > static_cast<std::int32_t>(Code::internal)) in.fail();
  refused.code = static_cast<Code>(code);
  refused.text = in.text(0, max_refused_bytes);
  return refused;
}

Message read_body(std::uint16_t type, PacketReader& in) {
  switch (static_cast<Type>(type)) {
    case Type::want: {
      Want want;
      want.region_id = in.number<std::uint32_t>();
      want.device = in.number<std::uint32_t>();
      return want;
    }
    case Type::offer:
      return read_offer(in);
    case Type::pieces:
      return read_pieces(in);
    case Type::refused:
      return read_refused(in);
    case Type::gone:
      return Gone{in.number<std::uint32_t>()};
    case Type::by_owner: {
      ByOwner by_owner;
      by_owner.region_id = in.number<std::uint32_t>();
      by_owner.device = in.number<std::uint32_t>();
      return by_owner;
    }
    case Type::move: {
      Move move;
      move.number = in.number<std::uint32_t>();
      move.end_word = in.number<std::uint32_t>();
      return move;
    }
    case Type::go:
      return Go{in.number<std::uint32_t>()};
    case Type::drop:
      return Drop{in.number<std::uint32_t>()};
  }
  in.fail();
  return Gone{};
}

/// How many come with it.
std::size_t descriptors_of(const Message& message) {
  if (const auto* const pieces = std::get_if<Pieces>(&message)) return pieces->bytes.size();
  return std::holds_alternative<Move>(message) || std::holds_alternative<ByOwner>(message) ? 1 : 0;
}

}  // namespace

host_link::Other encode(const Message& message) {
  ByteWriter out;
  const Type type = std::visit(Encoder{out}, message);
  return {static_cast<std::uint16_t>(type), std::move(out).take()};
}

Result<Message> decode(const host_link::Other& message, std::size_t descriptors) {
  PacketReader in(message.body);
  Message read = read_body(message.type, in);
  HEADRACE_TRY_VOID(check_fit(message, in, descriptors, descriptors_of(read)));
  return read;
}

}  // namespace headrace::cuda_ipc
