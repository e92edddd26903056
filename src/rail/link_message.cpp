// SPDX-License-Identifier: Apache-2.0
#include "rail/link_message.hpp"

#include "wire/byte_writer.hpp"
#include "wire/packet_reader.hpp"

namespace headrace::rail {
namespace {

enum class Type : std::uint8_t {
  announcement = 1,
  counted_below = 2,
  rail_down = 3,
  offer = 4,
  withdraw = 5,
  done = 6,
  beat = 7,
};
constexpr std::uint32_t hello_magic = 0x4C52'5248;  // "HRRL"
constexpr std::uint16_t hello_version = 1;

wire::ByteWriter begin(Type type) {
  wire::ByteWriter out;
  out.number(static_cast<std::uint8_t>(type));
  return out;
}

std::string write(const Announcement& message) {
  auto out = begin(Type::announcement);
  out.number(message.number);
  out.number(message.chunks);
  out.number(message.scope);
  out.number(message.immediate);
  out.number(message.amount);
  return std::move(out).take();
}
std::string write(const CountedBelow& message) {
  auto out = begin(Type::counted_below);
  out.number(message.below);
  return std::move(out).take();
}
std::string write(const RailDown& message) {
  auto out = begin(Type::rail_down);
  out.number(message.rail);
  out.number(message.epoch);
  out.number(message.next);
  out.number(message.counted.below);
  for (const std::uint64_t bits : message.counted.bits) out.number(bits);
  return std::move(out).take();
}
std::string write(const Offer& message) {
  auto out = begin(Type::offer);
  out.number(message.id);
  out.number(message.bytes);
  out.number(static_cast<std::uint8_t>(message.keys.size()));
  for (const std::string& key : message.keys) out.text(key, max_bytes_of_nic);
  out.bytes(message.content);
  return std::move(out).take();
}
std::string write(const Withdraw& message) {
  auto out = begin(Type::withdraw);
  out.number(message.id);
  return std::move(out).take();
}
std::string write(const Done& message) {
  auto out = begin(Type::done);
  out.number(message.id);
  out.number(static_cast<std::uint8_t>(message.code));
  out.number(message.room);
  return std::move(out).take();
}
std::string write(const Beat&) { return begin(Type::beat).take(); }

Announcement read_announcement(wire::PacketReader& in) {
  Announcement message;
  message.number = in.number<std::uint64_t>();
  message.chunks = in.number<std::uint32_t>();
  message.scope = in.number<std::uint32_t>();
  message.immediate = in.number<std::uint32_t>();
  message.amount = in.number<std::uint32_t>();
  return message;
}
RailDown read_rail_down(wire::PacketReader& in) {
  RailDown message;
  message.rail = in.number<std::uint32_t>();
  message.epoch = in.number<std::uint32_t>();
  message.next = in.number<std::uint64_t>();
  message.counted.below = in.number<std::uint64_t>();
  for (std::uint64_t& bits : message.counted.bits) bits = in.number<std::uint64_t>();
  return message;
}
Offer read_offer(wire::PacketReader& in) {
  Offer message;
  message.id = in.number<std::uint64_t>();
  message.bytes = in.number<std::uint64_t>();
  const std::size_t keys = in.number<std::uint8_t>();
  while (in.good() && message.keys.size() < keys) message.keys.push_back(in.text(1, max_bytes_of_nic));
  if (keys == 0) message.content = in.rest();
  return message;
}
Done read_done(wire::PacketReader& in) {
  Done message;
  message.id = in.number<std::uint64_t>();
  message.code = static_cast<Code>(in.number<std::uint8_t>());
  message.room = in.number<std::uint64_t>();
  return message;
}

bool sound(const Offer& offer) {
  if (offer.id == 0 || offer.keys.size() > max_rails) return false;
  if (!offer.keys.empty()) return offer.bytes > 0;
  return offer.content.size() == offer.bytes && offer.bytes <= max_inline_bytes;
}
bool sound(const Done& done) {
  return done.id > 0 && (done.code == Code::ok || done.code == Code::invalid_argument ||
                         done.code == Code::canceled || done.code == Code::backend_failed);
}

bool sound(const LinkMessage& message) {
  if (const auto* announced = std::get_if<Announcement>(&message))
    return announced->number > 0 && announced->chunks <= most_marked_chunks;
  if (const auto* down = std::get_if<RailDown>(&message))
    return down->rail < max_rails && down->epoch > 0 && down->next > 0;
  if (const auto* offer = std::get_if<Offer>(&message)) return sound(*offer);
  if (const auto* withdraw = std::get_if<Withdraw>(&message)) return withdraw->id > 0;
  if (const auto* done = std::get_if<Done>(&message)) return sound(*done);
  return true;
}

}  // namespace

std::string encode(const LinkMessage& message) {
  return std::visit([](const auto& each) { return write(each); }, message);
}

Result<LinkMessage> read_link_message(std::string_view bytes) {
  wire::PacketReader in(bytes);
  const auto type = in.number<std::uint8_t>();
  LinkMessage message;
  switch (static_cast<Type>(type)) {
    case Type::announcement:
      message = read_announcement(in);
      break;
    case Type::counted_below:
      message = CountedBelow{in.number<std::uint64_t>()};
      break;
    case Type::rail_down:
      message = read_rail_down(in);
      break;
    case Type::offer:
      message = read_offer(in);
      break;
    case Type::withdraw:
      message = Withdraw{in.number<std::uint64_t>()};
      break;
    case Type::done:
      message = read_done(in);
      break;
    case Type::beat:
      message = Beat{};
      break;
    default:
      return make_error(Code::corrupt, "a message of a link has the unknown type {}", type);
  }
  if (!in.complete() || !sound(message))
    return make_error(Code::corrupt, "a message of type {} of a link has {} bytes that do not fit it", type,
                      bytes.size());
  return message;
}

std::string encode(const RailHello& hello) {
  wire::ByteWriter out;
  out.number(hello_magic);
  out.number(hello_version);
  out.number(hello.engine);
  out.number(hello.link);
  out.number(hello.rail);
  out.number(hello.rails);
  out.number(hello.nics);
  out.number(hello.epoch);
  out.number(hello.nic);
  return std::move(out).take();
}

Result<RailHello> read_rail_hello(std::string_view bytes) {
  wire::PacketReader in(bytes);
  const auto magic = in.number<std::uint32_t>();
  const auto version = in.number<std::uint16_t>();
  if (magic != hello_magic) return make_error(Code::corrupt, "the hello of a rail does not begin with HRRL");
  if (version != hello_version)
    return make_error(Code::not_supported, "the peer speaks version {} of rails, this side version {}",
                      version, hello_version);
  RailHello hello;
  hello.engine = in.number<std::uint64_t>();
  hello.link = in.number<std::uint64_t>();
  hello.rail = in.number<std::uint32_t>();
  hello.rails = in.number<std::uint32_t>();
  hello.nics = in.number<std::uint32_t>();
  hello.epoch = in.number<std::uint32_t>();
  hello.nic = in.number<std::uint32_t>();
  if (!in.complete() || hello.rails == 0 || hello.rails > max_rails || hello.rail >= hello.rails ||
      hello.nics == 0 || hello.nics > max_rails || hello.nic >= hello.nics || hello.epoch == 0)
    return make_error(Code::corrupt, "the hello of a rail has {} bytes that do not fit it", bytes.size());
  return hello;
}

}  // namespace headrace::rail
