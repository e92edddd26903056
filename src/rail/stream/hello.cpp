// SPDX-License-Identifier: Apache-2.0
#include "rail/stream/hello.hpp"

#include "wire/bounded_reader.hpp"
#include "wire/byte_writer.hpp"

namespace headrace::rail::stream {
namespace {

constexpr std::string_view hello_magic = "HRFABRIC";
constexpr std::uint16_t hello_version = 1;

}  // namespace

std::string encode(const Hello& hello) {
  wire::ByteWriter out;
  out.bytes(hello_magic);
  out.number(hello_version);
  out.number(static_cast<std::uint16_t>(hello.text.size()));
  out.number(std::uint32_t{0});
  out.number(hello.life);
  out.number(hello.wanted);
  out.bytes(hello.text);
  return std::move(out).take();
}

Result<std::size_t> hello_bytes(std::string_view head) {
  wire::BoundedReader in(head, "the hello of a NIC");
  HEADRACE_TRY(magic, in.bytes(hello_magic.size(), "its beginning"));
  if (magic.starts_with("HRWT"))
    return make_error(Code::invalid_argument,
                      "the peer asks for a secret and we have none: set auth_token to the same value");
  if (magic != hello_magic) return in.corrupt("it does not begin with {}", hello_magic);
  HEADRACE_TRY(version, in.number<std::uint16_t>("the version"));
  if (version != hello_version)
    return make_error(Code::not_supported, "the peer speaks version {} of this protocol, we speak {}",
                      version, hello_version);
  HEADRACE_TRY(text_bytes, in.number<std::uint16_t>("the length of its text"));
  HEADRACE_TRY(reserved, in.number<std::uint32_t>("the reserved bytes"));
  if (text_bytes > max_hello_text_bytes || reserved != 0)
    return in.corrupt("a text of {} bytes, reserved bytes {:#x}: at most {} and 0 are allowed", text_bytes,
                      reserved, max_hello_text_bytes);
  return hello_head_bytes + text_bytes;
}

Result<Hello> read_hello(std::string_view bytes) {
  HEADRACE_TRY(length, hello_bytes(bytes));
  wire::BoundedReader in(bytes, "the hello of a NIC");
  HEADRACE_TRY_VOID(in.bytes(hello_magic.size() + 8, "its beginning"));
  HEADRACE_TRY(life, in.number<std::uint64_t>("the life"));
  HEADRACE_TRY(wanted, in.number<std::uint64_t>("the wanted life"));
  HEADRACE_TRY(text, in.bytes(length - hello_head_bytes, "its text"));
  if (in.remaining() > 0) return in.corrupt("{} bytes follow", in.remaining());
  return Hello{life, wanted, std::string(text)};
}

}  // namespace headrace::rail::stream
