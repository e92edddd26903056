// SPDX-License-Identifier: Apache-2.0
#include "host_link/control_messages.hpp"

#include "base/errors.hpp"
#include "wire/byte_writer.hpp"
#include "wire/packet_reader.hpp"

#include <optional>

namespace headrace::host_link {
namespace {

using wire::ByteWriter;
using wire::PacketReader;

constexpr std::size_t max_boot_id_bytes = 64;
constexpr std::size_t max_socket_name_bytes = 100;

// 4 and 5 are shm's own.
enum class Type : std::uint16_t { hello = 1, welcome = 2, refusal = 3, settled = 6, goodbye = 7 };

ByteWriter begin(const Protocol& protocol, std::uint32_t magic, std::uint16_t type) {
  ByteWriter out;
  out.number(magic);
  out.number(protocol.version);
  out.number(type);
  return out;
}

struct Encoder {
  const Protocol& protocol;

  [[nodiscard]] ByteWriter begin(Type type) const {
    return host_link::begin(protocol, protocol.control_magic, static_cast<std::uint16_t>(type));
  }
  std::string operator()(const Hello& hello) const {
    ByteWriter out = begin(Type::hello);
    out.number(hello.incarnation);
    out.number(hello.expected_incarnation);
    out.bytes(hello.greeting);
    out.text(hello.name, max_name_bytes);
    return std::move(out).take();
  }
  std::string operator()(const Welcome& welcome) const {
    ByteWriter out = begin(Type::welcome);
    out.number(welcome.incarnation);
    out.bytes(welcome.greeting);
    out.text(welcome.name, max_name_bytes);
    return std::move(out).take();
  }
  std::string operator()(const Refusal& refusal) const {
    ByteWriter out = begin(Type::refusal);
    out.number(static_cast<std::int32_t>(refusal.code));
    out.text(refusal.text, max_refusal_bytes);
    return std::move(out).take();
  }
  std::string operator()(const Settled& /*message*/) const { return begin(Type::settled).take(); }
  std::string operator()(const Goodbye& /*message*/) const { return begin(Type::goodbye).take(); }
  std::string operator()(const Other& other) const {
    ByteWriter out = host_link::begin(protocol, protocol.control_magic, other.type);
    out.bytes(other.body);
    return std::move(out).take();
  }
};

ControlMessage read_body(const Protocol& protocol, std::uint16_t type, PacketReader& in) {
  switch (static_cast<Type>(type)) {
    case Type::hello: {
      Hello hello;
      hello.incarnation = in.number<std::uint64_t>();
      hello.expected_incarnation = in.number<std::uint64_t>();
      hello.greeting = in.bytes(protocol.greeting_bytes);
      hello.name = in.text(1, max_name_bytes);
      return hello;
    }
    case Type::welcome: {
      Welcome welcome;
      welcome.incarnation = in.number<std::uint64_t>();
      welcome.greeting = in.bytes(protocol.greeting_bytes);
      welcome.name = in.text(1, max_name_bytes);
      return welcome;
    }
    case Type::refusal: {
      Refusal refusal;
      const auto code = in.number<std::int32_t>();
      if (code <= 0 || code > static_cast<std::int32_t>(Code::internal)) in.fail();
      refusal.code = static_cast<Code>(code);
      refusal.text = in.text(0, max_refusal_bytes);
      return refusal;
    }
    case Type::settled:
      return Settled{};
    case Type::goodbye:
      return Goodbye{};
  }
  return Other{type, std::string(in.rest())};
}

std::size_t descriptors_of(const ControlMessage& message) {
  if (std::holds_alternative<Hello>(message)) return 4;
  return std::holds_alternative<Welcome>(message) ? 1 : 0;
}

Error other_version(const Protocol& protocol, std::uint16_t theirs) {
  return make_error(Code::not_supported,
                    "the peer speaks version {} of {} and we speak {}: run one version of Headrace on a host",
                    theirs, protocol.backend, protocol.version);
}

}  // namespace

Result<void> check_fit(const Other& message, const wire::PacketReader& body, std::size_t descriptors,
                       std::size_t expected) {
  if (!body.complete())
    return make_error(Code::corrupt, "a control message of type {} has {} bytes that do not fit it",
                      message.type, message.body.size());
  if (descriptors != expected)
    return make_error(Code::corrupt, "a control message of type {} came with {} descriptors, expected {}",
                      message.type, descriptors, expected);
  return {};
}

std::string encode(const Protocol& protocol, const ControlMessage& message) {
  return std::visit(Encoder{protocol}, message);
}

Result<ControlMessage> decode(const Protocol& protocol, std::span<const std::byte> packet,
                              std::size_t descriptors) {
  wire::PacketReader in(packet);
  const auto magic = in.number<std::uint32_t>();
  const auto their_version = in.number<std::uint16_t>();
  const auto type = in.number<std::uint16_t>();
  if (!in.good() || magic != protocol.control_magic) {
    return make_error(Code::corrupt, "a control message of {} bytes begins with {:#x}, expected {:#x}",
                      packet.size(), magic, protocol.control_magic);
  }
  if (their_version != protocol.version) return other_version(protocol, their_version);
  ControlMessage message = read_body(protocol, type, in);
  if (!in.complete())
    return make_error(Code::corrupt, "a control message of type {} has {} bytes that do not fit it", type,
                      packet.size());
  if (!std::holds_alternative<Other>(message) && descriptors_of(message) != descriptors) {
    return make_error(Code::corrupt, "a control message of type {} came with {} descriptors, expected {}",
                      type, descriptors, descriptors_of(message));
  }
  return message;
}

std::string encode(const Protocol& protocol, const ConnectionInfo& info) {
  wire::ByteWriter out = begin(protocol, protocol.info_magic, 0);
  out.text(info.boot_id, max_boot_id_bytes);
  out.text(info.socket_name, max_socket_name_bytes);
  return std::move(out).take();
}

Result<ConnectionInfo> decode_connection_info(const Protocol& protocol, std::span<const std::byte> bytes) {
  wire::PacketReader in(bytes);
  const auto magic = in.number<std::uint32_t>();
  const auto their_version = in.number<std::uint16_t>();
  (void)in.number<std::uint16_t>();
  if (!in.good() || magic != protocol.info_magic) {
    return make_error(Code::corrupt,
                      "connection information of {} has {} bytes and begins with {:#x}, expected {:#x}",
                      protocol.backend, bytes.size(), magic, protocol.info_magic);
  }
  if (their_version != protocol.version) return other_version(protocol, their_version);
  ConnectionInfo info;
  info.boot_id = in.text(0, max_boot_id_bytes);
  info.socket_name = in.text(1, max_socket_name_bytes);
  if (!in.complete())
    return make_error(Code::corrupt, "connection information of {} has {} bytes that do not fit it",
                      protocol.backend, bytes.size());
  // The name becomes part of a path: it must not lead out of the directory.
  if (info.socket_name.find('/') != std::string::npos || info.socket_name.find('\0') != std::string::npos ||
      info.socket_name.front() == '.') {
    return make_error(Code::corrupt,
                      "connection information of {} names a socket outside of the runtime directory",
                      protocol.backend);
  }
  return info;
}

}  // namespace headrace::host_link
