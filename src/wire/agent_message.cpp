// SPDX-License-Identifier: Apache-2.0
#include "wire/agent_message.hpp"

#include "wire/byte_writer.hpp"
#include "wire/msgpack_reader.hpp"

#include <msgpack/pack.hpp>

#include <cstring>

namespace headrace::wire {
namespace {

constexpr std::uint64_t revoke_kind = 1;
constexpr std::uint64_t revoked_kind = 2;
constexpr std::uint64_t goodbye_kind = 3;
constexpr std::uint64_t ask_kind = 4;
constexpr std::uint64_t present_kind = 5;
constexpr std::uint64_t credit_kind = 6;
constexpr std::size_t user_header_bytes = 16;
constexpr const char* user_whole = "a notification";
constexpr const char* agent_whole = "an agent's message";

using Packer = msgpack::packer<ByteWriter>;

Packer& begin(Packer& packer, std::uint32_t values, std::uint64_t kind) {
  return packer.pack_array(values).pack_uint64(kind);
}

/// How many values a message of this kind has; `found` of an unknown one.
std::uint32_t values_of(std::uint64_t kind, std::uint32_t found) {
  switch (kind) {
    case revoke_kind:
      return 4;
    case credit_kind:
      return 3;
    case revoked_kind:
    case ask_kind:
    case present_kind:
      return 2;
    case goodbye_kind:
      return 1;
    default:
      return found;
  }
}

Result<AgentMessage> read_revoke(MsgpackReader& reader) {
  Revoke revoke;
  HEADRACE_TRY(sequence, reader.unsigned_integer("the sequence"));
  revoke.sequence = sequence;
  HEADRACE_TRY(version, reader.unsigned_integer("the version"));
  revoke.version = version;
  const std::size_t offset = reader.offset();
  HEADRACE_TRY(bytes, reader.binary("the ranges", revoke_ranges * sizeof(IdRange)));
  if (bytes.size() % sizeof(IdRange) != 0)
    return reader.corrupt_at(offset, "{} bytes are not a multiple of 8", bytes.size());
  revoke.ranges.resize(bytes.size() / sizeof(IdRange));
  if (!bytes.empty()) std::memcpy(revoke.ranges.data(), bytes.data(), bytes.size());
  for (const IdRange& range : revoke.ranges) {
    if (range.first == 0 || range.count == 0 ||
        std::uint64_t{range.first} + range.count > std::uint64_t{1} << 32) {
      return reader.corrupt_at(offset, "{} ids from {} on: an empty range, or one beyond the last id",
                               range.count, range.first);
    }
  }
  return AgentMessage(std::move(revoke));
}

Result<AgentMessage> read_credit(MsgpackReader& reader) {
  HEADRACE_TRY(messages, reader.unsigned_integer("the messages"));
  HEADRACE_TRY(bytes, reader.unsigned_integer("the bytes"));
  return AgentMessage(Credit{messages, bytes});
}

}  // namespace

Result<std::string> encode(const UserMessage& message) {
  if (message.payload.size() > user_payload_bytes) {
    return make_error(Code::invalid_argument, "a notification of {} bytes: at most {} are allowed",
                      message.payload.size(), user_payload_bytes);
  }
  ByteWriter writer;
  writer.reserve(user_header_bytes + message.payload.size());
  writer.number(message.request);
  writer.number(message.post_number);
  writer.bytes(message.payload);
  return std::move(writer).take();
}

Result<UserMessage> decode_user_message(std::string_view bytes) {
  BoundedReader reader(bytes, user_whole);
  HEADRACE_TRY(request, reader.number<std::uint64_t>("the request"));
  HEADRACE_TRY(post_number, reader.number<std::uint64_t>("the post number"));
  if (reader.remaining() > user_payload_bytes) {
    return reader.corrupt("{} bytes of payload, at most {} are allowed", reader.remaining(),
                          user_payload_bytes);
  }
  return UserMessage{request, post_number, bytes.substr(user_header_bytes)};
}

Result<std::string> encode(const AgentMessage& message) {
  ByteWriter writer;
  Packer packer(writer);
  if (const auto* revoke = std::get_if<Revoke>(&message)) {
    if (revoke->ranges.size() > revoke_ranges) {
      return make_error(Code::invalid_argument, "a revoke of {} ranges: at most {} go into one message",
                        revoke->ranges.size(), revoke_ranges);
    }
    const auto size = static_cast<std::uint32_t>(revoke->ranges.size() * sizeof(IdRange));
    begin(packer, 4, revoke_kind).pack_uint64(revoke->sequence).pack_uint64(revoke->version).pack_bin(size);
    packer.pack_bin_body(reinterpret_cast<const char*>(revoke->ranges.data()), size);
  } else if (const auto* revoked = std::get_if<Revoked>(&message)) {
    begin(packer, 2, revoked_kind).pack_uint64(revoked->sequence);
  } else if (std::holds_alternative<Goodbye>(message)) {
    begin(packer, 1, goodbye_kind);
  } else if (const auto* ask = std::get_if<Ask>(&message)) {
    begin(packer, 2, ask_kind).pack_uint64(ask->sequence);
  } else if (const auto* present = std::get_if<Present>(&message)) {
    begin(packer, 2, present_kind).pack_uint64(present->sequence);
  } else if (const auto* credit = std::get_if<Credit>(&message)) {
    begin(packer, 3, credit_kind).pack_uint64(credit->messages).pack_uint64(credit->bytes);
  } else {
    return make_error(Code::invalid_argument,
                      "an agent's message of kind {} cannot be sent: this version does not know it",
                      std::get<UnknownMessage>(message).kind);
  }
  return std::move(writer).take();
}

Result<AgentMessage> decode_agent_message(std::string_view bytes) {
  MsgpackReader reader(bytes, agent_whole);
  if (bytes.size() > agent_message_bytes) {
    return reader.corrupt("{} bytes, at most {} are allowed", bytes.size(), agent_message_bytes);
  }
  HEADRACE_TRY(values, reader.array("the message"));
  if (values == 0) return reader.corrupt("the array is empty, its first element is the kind");
  HEADRACE_TRY(kind, reader.unsigned_integer("the kind"));
  if (const std::uint32_t expected = values_of(kind, values); values != expected)
    return reader.corrupt("{} values for kind {} instead of {}", values, kind, expected);

  AgentMessage message = UnknownMessage{kind};
  if (kind == revoke_kind) {
    HEADRACE_TRY(revoke, read_revoke(reader));
    message = std::move(revoke);
  } else if (kind == revoked_kind || kind == ask_kind || kind == present_kind) {
    HEADRACE_TRY(sequence, reader.unsigned_integer("the sequence"));
    if (kind == revoked_kind) message = Revoked{sequence};
    if (kind == ask_kind) message = Ask{sequence};
    if (kind == present_kind) message = Present{sequence};
  } else if (kind == credit_kind) {
    HEADRACE_TRY(credit, read_credit(reader));
    message = std::move(credit);
  } else if (kind == goodbye_kind) {
    message = Goodbye{};
  } else {
    for (std::uint32_t i = 1; i < values; ++i) HEADRACE_TRY_VOID(reader.skip("a value"));
  }
  HEADRACE_TRY_VOID(reader.end());
  return message;
}

}  // namespace headrace::wire
