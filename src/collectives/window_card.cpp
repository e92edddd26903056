// SPDX-License-Identifier: Apache-2.0
#include "collectives/window_card.hpp"

#include "wire/bounded_reader.hpp"
#include "wire/byte_writer.hpp"

namespace headrace::collectives {

std::string encode_outcome(const Result<void>& outcome) {
  wire::ByteWriter writer;
  writer.number(static_cast<std::uint32_t>(outcome.code()));
  writer.text(outcome ? "" : outcome.error().message, 0xffff);
  return std::move(writer).take();
}

Result<Outcome> decode_outcome(std::string_view bytes) {
  wire::BoundedReader reader(bytes, "the outcome of a rank");
  HEADRACE_TRY(code, reader.number<std::uint32_t>("the code"));
  HEADRACE_TRY(length, reader.number<std::uint16_t>("the text's length"));
  HEADRACE_TRY(text, reader.bytes(length, "the text"));
  if (code > static_cast<std::uint32_t>(Code::internal)) return reader.corrupt("code {} is none", code);
  if (code == 0) return Outcome{{}, reader.rest()};
  return Outcome{Error{static_cast<Code>(code), std::string(text)}, reader.rest()};
}

std::string WindowCard::encode() const {
  wire::ByteWriter writer;
  writer.number(window);
  writer.number(mailbox);
  writer.number(elements);
  writer.number(signals);
  writer.number(count);
  writer.number(address);
  writer.number(static_cast<std::uint32_t>(dtype));
  writer.number(static_cast<std::uint32_t>(allocated));
  writer.text(agent, 0xffff);
  writer.bytes(metadata);
  return std::move(writer).take();
}

Result<WindowCard> WindowCard::decode(std::string_view bytes) {
  wire::BoundedReader reader(bytes, "the card of a window");
  WindowCard card;
  HEADRACE_TRY(window, reader.number<std::uint64_t>("the window"));
  HEADRACE_TRY(mailbox, reader.number<std::uint64_t>("the mailbox"));
  HEADRACE_TRY(elements, reader.number<std::uint32_t>("the region of the elements"));
  HEADRACE_TRY(signals, reader.number<std::uint32_t>("the region of the signals"));
  HEADRACE_TRY(count, reader.number<std::uint64_t>("the count"));
  HEADRACE_TRY(address, reader.number<std::uint64_t>("the address"));
  HEADRACE_TRY(dtype, reader.number<std::uint32_t>("the type"));
  HEADRACE_TRY(allocated, reader.number<std::uint32_t>("who allocated it"));
  HEADRACE_TRY(length, reader.number<std::uint16_t>("the agent's length"));
  HEADRACE_TRY(agent, reader.bytes(length, "the agent"));
  if (dtype >= dtype_count) return reader.corrupt("element type {} is none", dtype);
  const auto type = static_cast<DType>(dtype);
  if (count > PTRDIFF_MAX / element_bytes(type)) return reader.corrupt("{} elements are too many", count);
  return WindowCard{window,
                    mailbox,
                    elements,
                    signals,
                    count,
                    address,
                    type,
                    allocated != 0,
                    std::string(agent),
                    std::string(reader.rest())};
}

}  // namespace headrace::collectives
