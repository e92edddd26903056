// SPDX-License-Identifier: Apache-2.0
#include "wire/metadata_request.hpp"

#include "wire/byte_writer.hpp"
#include "wire/codes.hpp"
#include "wire/msgpack_reader.hpp"
#include "wire/msgpack_writer.hpp"

#include <cstring>

namespace headrace::wire {
namespace {

using SocketLimits = MetadataSocketLimits;
constexpr std::uint64_t fetch_kind = 1;
constexpr std::uint64_t send_kind = 2;
constexpr const char* request_whole = "a metadata request";
constexpr const char* answer_whole = "the answer to a metadata request";
// Array, kind and the head of the longest binary value, before the metadata itself.
constexpr std::size_t send_overhead = 1 + 1 + 5;

/// A message from `pack`, with its length before it.
template <class Pack>
std::string with_length(std::size_t size_guess, Pack pack) {
  ByteWriter writer;
  writer.reserve(size_guess + 16);
  writer.number(std::uint32_t{0});
  Packer packer(writer);
  pack(packer);
  std::string message = std::move(writer).take();
  const auto length = static_cast<std::uint32_t>(message.size() - SocketLimits::length_bytes);
  std::memcpy(message.data(), &length, sizeof length);
  return message;
}

std::string refusal(const Error& error) {
  const std::string_view text = std::string_view(error.message).substr(0, SocketLimits::text_bytes);
  return with_length(text.size(), [&](Packer& packer) {
    packer.pack_array(2).pack_uint64(static_cast<std::uint64_t>(error.code));
    pack_text(packer, text);
  });
}

/// Reads the code and, if it is not ok, the sentence. If it is ok, the reader is after the code.
Result<void> read_verdict(MsgpackReader& reader, std::uint32_t values_if_ok) {
  HEADRACE_TRY(values, reader.array("the answer"));
  const std::size_t offset = reader.offset();
  HEADRACE_TRY(number, reader.unsigned_integer("the code", UINT32_MAX));
  const std::uint32_t expected = number == 0 ? values_if_ok : 2;
  if (values != expected)
    return reader.corrupt_at(offset, "{} values for code {} instead of {}", values, number, expected);
  if (number == 0) return {};
  HEADRACE_TRY(text, reader.text("the text", SocketLimits::text_bytes));
  HEADRACE_TRY_VOID(reader.end());
  return Error{code_from_wire(static_cast<std::uint32_t>(number)), std::string(text)};
}

Result<MetadataRequest> read_fetch(MsgpackReader& reader) {
  HEADRACE_TRY(label, reader.text("the label", SocketLimits::label_bytes));
  HEADRACE_TRY(since, reader.unsigned_integer("since"));
  HEADRACE_TRY_VOID(reader.end());
  return MetadataRequest(FetchRequest{std::string(label), since});
}

Result<MetadataRequest> read_send(MsgpackReader& reader) {
  HEADRACE_TRY(metadata, reader.binary("the metadata", SocketLimits::large_bytes));
  HEADRACE_TRY_VOID(reader.end());
  return MetadataRequest(SendRequest{metadata});
}

}  // namespace

Result<std::string> encode(const MetadataRequest& request) {
  if (const auto* fetch = std::get_if<FetchRequest>(&request)) {
    if (fetch->label.size() > SocketLimits::label_bytes) {
      return make_error(Code::invalid_argument, "a label of {} bytes: at most {} are allowed",
                        fetch->label.size(), SocketLimits::label_bytes);
    }
    return with_length(fetch->label.size(), [&](Packer& packer) {
      packer.pack_array(3).pack_uint64(fetch_kind);
      pack_text(packer, fetch->label);
      packer.pack_uint64(fetch->since);
    });
  }
  const std::string_view metadata = std::get<SendRequest>(request).metadata;
  if (metadata.size() > SocketLimits::large_bytes - send_overhead) {
    return make_error(Code::invalid_argument,
                      "metadata of {} bytes: at most {} go over the socket, send it in parts",
                      metadata.size(), SocketLimits::large_bytes - send_overhead);
  }
  return with_length(metadata.size(), [&](Packer& packer) {
    packer.pack_array(2).pack_uint64(send_kind);
    pack_binary(packer, metadata);
  });
}

Result<MetadataRequest> decode_metadata_request(std::string_view message) {
  MsgpackReader reader(message, request_whole);
  HEADRACE_TRY(values, reader.array("the request"));
  const std::size_t offset = reader.offset();
  HEADRACE_TRY(kind, reader.unsigned_integer("the kind", UINT32_MAX));
  if (kind == fetch_kind && values == 3) return read_fetch(reader);
  if (kind == send_kind && values == 2) return read_send(reader);
  return reader.corrupt_at(offset,
                           "kind {} with {} values is neither a fetch (1, 3 values) nor a send (2, 2 values)",
                           kind, values);
}

std::size_t metadata_request_limit(std::string_view first_bytes) noexcept {
  // [2, ...] with two values in the shortest form, which encode writes.
  return first_bytes.starts_with("\x92\x02") ? SocketLimits::large_bytes : SocketLimits::small_bytes;
}

std::string encode_fetch_answer(const Result<std::string>& answer) {
  if (!answer) return refusal(answer.error());
  if (answer->size() > SocketLimits::large_bytes - send_overhead) {
    return refusal(make_error(Code::exhausted,
                              "the metadata has {} bytes, at most {} go over the socket: ask for it in parts",
                              answer->size(), SocketLimits::large_bytes - send_overhead));
  }
  return with_length(answer->size(), [&](Packer& packer) {
    packer.pack_array(2).pack_uint64(0);
    pack_binary(packer, *answer);
  });
}

std::string encode_send_answer(const Result<void>& answer) {
  if (!answer) return refusal(answer.error());
  return with_length(2, [](Packer& packer) { packer.pack_array(1).pack_uint64(0); });
}

Result<std::string_view> decode_fetch_answer(std::string_view message) {
  MsgpackReader reader(message, answer_whole);
  HEADRACE_TRY_VOID(read_verdict(reader, 2));
  HEADRACE_TRY(metadata, reader.binary("the metadata", SocketLimits::large_bytes));
  HEADRACE_TRY_VOID(reader.end());
  return metadata;
}

Result<void> decode_send_answer(std::string_view message) {
  MsgpackReader reader(message, answer_whole);
  HEADRACE_TRY_VOID(read_verdict(reader, 1));
  return reader.end();
}

}  // namespace headrace::wire
