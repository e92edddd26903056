// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/control_messages.hpp"

#include "base/errors.hpp"
#include "wire/byte_writer.hpp"
#include "wire/packet_reader.hpp"

namespace headrace::shm {
namespace {

using wire::ByteWriter;
using wire::PacketReader;

enum class Type : std::uint16_t { share = 4, unshare = 5, open_lane = 8, serve_lane = 9, drop_lane = 10 };

host_link::Other finish(Type type, ByteWriter out) {
  return {static_cast<std::uint16_t>(type), std::move(out).take()};
}

host_link::Other of_lane(Type type, std::uint32_t lane_id) {
  ByteWriter out;
  out.number(lane_id);
  return finish(type, std::move(out));
}

Share read_share(PacketReader& in) {
  Share share;
  const auto count = in.number<std::uint32_t>();
  if (count == 0 || count > max_regions_in_message) in.fail();
  for (std::uint32_t i = 0; i < count && in.good(); ++i) {
    SharedRegion region;
    region.region_id = in.number<std::uint32_t>();
    region.offset_bytes = in.number<std::uint64_t>();
    region.length_bytes = in.number<std::uint64_t>();
    share.regions.push_back(region);
  }
  return share;
}

Unshare read_unshare(PacketReader& in) {
  Unshare unshare;
  const auto count = in.number<std::uint32_t>();
  if (count > max_ids_in_message) in.fail();
  for (std::uint32_t i = 0; i < count && in.good(); ++i)
    unshare.region_ids.push_back(in.number<std::uint32_t>());
  return unshare;
}

}  // namespace

std::string encode_greeting(const Nonce& nonce) {
  ByteWriter out;
  out.number(nonce.address);
  out.number(nonce.value);
  return std::move(out).take();
}

Nonce decode_greeting(std::string_view greeting) {
  PacketReader in(greeting);
  Nonce nonce;
  nonce.address = in.number<std::uint64_t>();
  nonce.value = in.number<std::uint64_t>();
  return nonce;
}

host_link::Other encode(const Share& share) {
  ByteWriter out;
  out.number(static_cast<std::uint32_t>(share.regions.size()));
  for (const SharedRegion& region : share.regions) {
    out.number(region.region_id);
    out.number(region.offset_bytes);
    out.number(region.length_bytes);
  }
  return finish(Type::share, std::move(out));
}

host_link::Other encode(const Unshare& unshare) {
  ByteWriter out;
  out.number(static_cast<std::uint32_t>(unshare.region_ids.size()));
  for (const std::uint32_t id : unshare.region_ids) out.number(id);
  return finish(Type::unshare, std::move(out));
}

host_link::Other encode(const OpenLane& lane) { return of_lane(Type::open_lane, lane.lane_id); }
host_link::Other encode(const ServeLane& lane) { return of_lane(Type::serve_lane, lane.lane_id); }
host_link::Other encode(const DropLane& lane) { return of_lane(Type::drop_lane, lane.lane_id); }

Result<Said> decode(const host_link::Other& message, std::size_t descriptors) {
  PacketReader in(message.body);
  Said read;
  std::size_t expected = 0;
  switch (static_cast<Type>(message.type)) {
    case Type::share: {
      Share share = read_share(in);
      expected = share.regions.size();
      read = std::move(share);
      break;
    }
    case Type::unshare:
      read = read_unshare(in);
      break;
    case Type::open_lane:
      read = OpenLane{in.number<std::uint32_t>()};
      expected = 1;
      break;
    case Type::serve_lane:
      read = ServeLane{in.number<std::uint32_t>()};
      break;
    case Type::drop_lane:
      read = DropLane{in.number<std::uint32_t>()};
      break;
    default:
      in.fail();
  }
  HEADRACE_TRY_VOID(check_fit(message, in, descriptors, expected));
  return read;
}

}  // namespace headrace::shm
