// SPDX-License-Identifier: Apache-2.0
#include "wire/hello.hpp"

#include "wire/bounded_reader.hpp"
#include "wire/byte_writer.hpp"
#include "wire/codes.hpp"

#include <algorithm>
#include <cstring>

namespace headrace::wire {
namespace {

constexpr std::string_view hello_magic = "HRWT";
constexpr const char* hello_text = "a hello";
constexpr const char* verdict_whole = "a hello's verdict";

/// Reads magic and versions. Fails with not_supported for another major version.
Result<void> read_prefix(BoundedReader& reader, Hello& hello) {
  HEADRACE_TRY(found_magic, reader.bytes(hello_magic.size(), "the magic"));
  if (found_magic != hello_magic)
    return reader.corrupt_at(0, "it does not begin with \"{}\": the other program is not Headrace",
                             hello_magic);
  HEADRACE_TRY(major, reader.number<std::uint16_t>("the major version"));
  HEADRACE_TRY(minor, reader.number<std::uint16_t>("the minor version"));
  hello.major = major;
  hello.minor = minor;
  if (major == Hello::own_major) return {};
  return make_error(Code::not_supported,
                    "the peer has version {}.{}, this agent {}.{}: install the same version on both", major,
                    minor, Hello::own_major, Hello::own_minor);
}

}  // namespace

Result<std::string> encode(const Hello& hello) {
  if (hello.name.empty() || hello.name.size() > Hello::name_bytes || hello.incarnation == 0) {
    return make_error(Code::invalid_argument,
                      "a hello with a name of {} bytes and incarnation {}: 1 to {} bytes and not 0",
                      hello.name.size(), hello.incarnation, Hello::name_bytes);
  }
  ByteWriter writer;
  writer.bytes(hello_magic);
  writer.number(hello.major);
  writer.number(hello.minor);
  writer.number(hello.incarnation);
  writer.number(hello.capabilities);
  writer.number(static_cast<std::uint8_t>(hello.purpose));
  writer.number(hello.channel);
  writer.number(static_cast<std::uint16_t>(hello.name.size()));
  writer.write(reinterpret_cast<const char*>(hello.nonce.data()), hello.nonce.size());
  writer.number(hello.link_id);
  writer.number(hello.expected_incarnation);
  writer.bytes(hello.name);
  return std::move(writer).take();
}

Result<Hello> decode_hello(std::string_view bytes) {
  BoundedReader reader(bytes, hello_text);
  Hello hello;
  HEADRACE_TRY_VOID(read_prefix(reader, hello));
  HEADRACE_TRY(incarnation, reader.number<std::uint64_t>("the incarnation"));
  HEADRACE_TRY(capabilities, reader.number<std::uint32_t>("the capabilities"));
  HEADRACE_TRY(purpose, reader.number<std::uint8_t>("the purpose"));
  HEADRACE_TRY(channel, reader.number<std::uint8_t>("the channel"));
  HEADRACE_TRY(name_length, reader.number<std::uint16_t>("the name's length"));
  HEADRACE_TRY(nonce, reader.bytes(hello.nonce.size(), "the nonce"));
  HEADRACE_TRY(link_id, reader.number<std::uint64_t>("the link's id"));
  HEADRACE_TRY(expected, reader.number<std::uint64_t>("the expected incarnation"));
  if (incarnation == 0) return reader.corrupt_at(8, "the incarnation is 0");
  if (purpose < static_cast<std::uint8_t>(Purpose::tcp_backend) ||
      purpose > static_cast<std::uint8_t>(Purpose::fabric)) {
    return reader.corrupt_at(20, "purpose {} is none of 1 (tcp backend), 2 (metadata) and 3 (fabric)",
                             purpose);
  }
  if (name_length == 0 || name_length > Hello::name_bytes || name_length != reader.remaining()) {
    return reader.corrupt_at(22, "a name of {} bytes where {} follow; 1 to {} are allowed", name_length,
                             reader.remaining(), Hello::name_bytes);
  }
  hello.incarnation = incarnation;
  hello.capabilities = capabilities;
  hello.purpose = static_cast<Purpose>(purpose);
  hello.channel = channel;
  std::memcpy(hello.nonce.data(), nonce.data(), nonce.size());
  hello.link_id = link_id;
  hello.expected_incarnation = expected;
  hello.name = bytes.substr(Hello::fixed_bytes);
  return hello;
}

std::string encode(const HelloVerdict& verdict) {
  const std::string_view text = std::string_view(verdict.text).substr(0, HelloVerdict::text_bytes);
  ByteWriter writer;
  writer.number(static_cast<std::uint32_t>(verdict.code));
  writer.number(static_cast<std::uint32_t>(text.size()));
  writer.bytes(text);
  return std::move(writer).take();
}

Result<HelloVerdict> decode_verdict(std::string_view bytes) {
  BoundedReader reader(bytes, verdict_whole);
  HEADRACE_TRY(code, reader.number<std::uint32_t>("the code"));
  HEADRACE_TRY(length, reader.number<std::uint32_t>("the text's length"));
  if (length > HelloVerdict::text_bytes || length != reader.remaining()) {
    return reader.corrupt_at(4, "a text of {} bytes where {} follow; at most {} are allowed", length,
                             reader.remaining(), HelloVerdict::text_bytes);
  }
  return HelloVerdict{code_from_wire(code), std::string(bytes.substr(HelloVerdict::fixed_bytes))};
}

Result<Proof> compute_proof(const Hmac& hmac, std::string_view token, HelloRole role,
                            std::string_view connecting_hello, std::string_view accepting_hello) {
  std::string transcript;
  transcript.reserve(1 + connecting_hello.size() + accepting_hello.size());
  transcript.push_back(static_cast<char>(role));
  transcript.append(connecting_hello).append(accepting_hello);
  return hmac(token, transcript);
}

bool equal_in_constant_time(const Proof& a, std::string_view b) noexcept {
  if (b.size() != a.size()) return false;
  unsigned different = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    different |= static_cast<unsigned>(a[i] ^ static_cast<unsigned char>(b[i]));
  return different == 0;
}

}  // namespace headrace::wire
