// SPDX-License-Identifier: Apache-2.0
#include "moe/weights_message.hpp"

#include "base/errors.hpp"
#include "wire/bounded_reader.hpp"
#include "wire/byte_writer.hpp"

#include <utility>

namespace headrace::moe {
namespace {

constexpr std::int32_t last_code = static_cast<std::int32_t>(Code::internal);

wire::ByteWriter begin_message(WeightsKind kind) {
  wire::ByteWriter writer;
  writer.number(static_cast<std::uint8_t>(kind));
  return writer;
}

void put_numbers(wire::ByteWriter& writer, const std::vector<std::uint32_t>& numbers) {
  writer.number(static_cast<std::uint32_t>(numbers.size()));
  for (const std::uint32_t number : numbers) writer.number(number);
}

Result<std::vector<std::uint32_t>> take_numbers(wire::BoundedReader& reader, const char* field) {
  HEADRACE_TRY(count, reader.number<std::uint32_t>(field));
  if (count > moe_most_experts)
    return reader.corrupt("{} has {} numbers, at most {} can be", field, count, moe_most_experts);
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < count; ++i) {
    HEADRACE_TRY(number, reader.number<std::uint32_t>(field));
    numbers.push_back(number);
  }
  return numbers;
}

Result<std::string> take_text(wire::BoundedReader& reader, const char* field) {
  HEADRACE_TRY(length, reader.number<std::uint16_t>(field));
  if (length > most_weights_text)
    return reader.corrupt("{} has {} bytes, at most {} can be", field, length, most_weights_text);
  HEADRACE_TRY(bytes, reader.bytes(length, field));
  return std::string(bytes);
}

/// A reader behind the kind.
Result<wire::BoundedReader> open_message(std::string_view bytes, WeightsKind expected) {
  HEADRACE_TRY(kind, weights_kind(bytes));
  wire::BoundedReader reader(bytes, "a message about weights");
  if (kind != expected)
    return reader.corrupt("kind {}, expected {}", static_cast<int>(kind), static_cast<int>(expected));
  reader.advance(1);
  return reader;
}

template <class Message>
Result<Message> end_message(const wire::BoundedReader& reader, Message message) {
  if (reader.remaining() != 0) return reader.corrupt("{} bytes behind its end", reader.remaining());
  return message;
}

}  // namespace

std::string encode(const WeightsCard& card) {
  wire::ByteWriter writer = begin_message(WeightsKind::card);
  writer.number(card.life);
  writer.number(card.table);
  writer.text(card.tensors, most_weights_text);
  writer.number(static_cast<std::uint16_t>(card.locations.size()));
  for (const WeightsLocation& location : card.locations) {
    writer.number(location.region);
    writer.number(location.offset_bytes);
  }
  return std::move(writer).take();
}

std::string encode(const WeightsCounts& counts) {
  wire::ByteWriter writer = begin_message(WeightsKind::counts);
  writer.number(counts.call);
  writer.number(counts.active);
  put_numbers(writer, counts.counts);
  put_numbers(writer, counts.kept);
  put_numbers(writer, counts.held);
  return std::move(writer).take();
}

std::string encode(const WeightsEnd& end) {
  wire::ByteWriter writer = begin_message(WeightsKind::end);
  writer.number(end.call);
  writer.number(end.plan);
  writer.number(static_cast<std::uint32_t>(end.code));
  writer.text(end.text, most_weights_text);
  return std::move(writer).take();
}

Result<WeightsKind> weights_kind(std::string_view bytes) {
  wire::BoundedReader reader(bytes, "a message about weights");
  HEADRACE_TRY(kind, reader.number<std::uint8_t>("kind"));
  if (kind >= static_cast<int>(WeightsKind::card) && kind <= static_cast<int>(WeightsKind::end))
    return WeightsKind{kind};
  return reader.corrupt("kind {} is not known", kind);
}

Result<WeightsCard> decode_weights_card(std::string_view bytes) {
  HEADRACE_TRY(reader, open_message(bytes, WeightsKind::card));
  WeightsCard card;
  HEADRACE_TRY(life, reader.number<std::uint64_t>("life"));
  HEADRACE_TRY(table, reader.number<std::uint64_t>("table"));
  HEADRACE_TRY(tensors, take_text(reader, "tensors"));
  HEADRACE_TRY(count, reader.number<std::uint16_t>("locations"));
  card.life = life, card.table = table, card.tensors = std::move(tensors);
  for (std::uint16_t i = 0; i < count; ++i) {
    HEADRACE_TRY(region, reader.number<std::uint32_t>("region"));
    HEADRACE_TRY(offset, reader.number<std::uint64_t>("offset"));
    card.locations.push_back({region, offset});
  }
  return end_message(reader, std::move(card));
}

Result<WeightsCounts> decode_weights_counts(std::string_view bytes) {
  HEADRACE_TRY(reader, open_message(bytes, WeightsKind::counts));
  WeightsCounts counts;
  HEADRACE_TRY(call, reader.number<std::uint64_t>("call"));
  HEADRACE_TRY(active, reader.number<std::uint64_t>("active"));
  HEADRACE_TRY(entries, take_numbers(reader, "counts"));
  HEADRACE_TRY(kept, take_numbers(reader, "kept"));
  HEADRACE_TRY(held, take_numbers(reader, "held"));
  counts.call = call, counts.active = active;
  counts.counts = std::move(entries), counts.kept = std::move(kept);
  counts.held = std::move(held);
  return end_message(reader, std::move(counts));
}

Result<WeightsEnd> decode_weights_end(std::string_view bytes) {
  HEADRACE_TRY(reader, open_message(bytes, WeightsKind::end));
  WeightsEnd end;
  HEADRACE_TRY(call, reader.number<std::uint64_t>("call"));
  HEADRACE_TRY(plan, reader.number<std::uint64_t>("plan"));
  HEADRACE_TRY(code, reader.number<std::uint32_t>("code"));
  HEADRACE_TRY(text, take_text(reader, "text"));
  if (code > static_cast<std::uint32_t>(last_code) || (code == 0) != (plan != 0))
    return reader.corrupt("code {} of a call with plan {}", code, plan);
  end.call = call, end.plan = plan, end.code = static_cast<Code>(code), end.text = std::move(text);
  return end_message(reader, std::move(end));
}

}  // namespace headrace::moe
