// SPDX-License-Identifier: Apache-2.0
#include "wire/comm_cards.hpp"

#include "base/errors.hpp"
#include "base/utf8.hpp"
#include "wire/bounded_reader.hpp"
#include "wire/byte_writer.hpp"

#include <utility>

namespace headrace::wire {
namespace {

using Counts = std::vector<std::uint64_t>;

Result<std::string> read_text(BoundedReader& reader, const char* field) {
  HEADRACE_TRY(length, reader.number<std::uint16_t>(field));
  HEADRACE_TRY(bytes, reader.bytes(length, field));
  return std::string(bytes);
}

Result<std::string> read_utf8(BoundedReader& reader, const char* field) {
  HEADRACE_TRY(text, read_text(reader, field));
  if (!is_utf8(text)) return reader.corrupt("{} is not UTF-8", field);
  return text;
}

Result<Counts> read_counts(BoundedReader& reader, const char* field) {
  HEADRACE_TRY(count, reader.number<std::uint32_t>(field));
  if (count > reader.remaining() / sizeof(std::uint64_t))
    return reader.corrupt("{}: {} numbers do not fit in {} bytes", field, count, reader.remaining());
  Counts counts;
  for (std::uint32_t i = 0; i < count; ++i) {
    HEADRACE_TRY(number, reader.number<std::uint64_t>(field));
    counts.push_back(number);
  }
  return counts;
}

void write_counts(ByteWriter& writer, const Counts& counts) {
  writer.number(static_cast<std::uint32_t>(counts.size()));
  for (const std::uint64_t count : counts) writer.number(count);
}

void write_seat(ByteWriter& writer, const Seat& seat) {
  writer.text(seat.agent, 0xffff);
  writer.bytes(seat.metadata);
}

/// The seat is the last part of what has one.
Result<Seat> read_seat(BoundedReader& reader) {
  HEADRACE_TRY(agent, read_text(reader, "the agent"));
  return Seat{std::move(agent), std::string(reader.rest())};
}

}  // namespace

std::string Seat::encode() const {
  ByteWriter writer;
  write_seat(writer, *this);
  return std::move(writer).take();
}

Result<Seat> Seat::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "the handle of a rank");
  return read_seat(reader);
}

std::string RankCard::encode() const {
  ByteWriter writer;
  writer.number(mailbox);
  writer.number(lane_bytes);
  writer.number(message_lane_bytes);
  writer.number(box);
  writer.number(static_cast<std::uint8_t>(check));
  writer.number(static_cast<std::uint8_t>(lazy));
  write_seat(writer, seat);
  return std::move(writer).take();
}

Result<RankCard> RankCard::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "the card of a rank");
  HEADRACE_TRY(mailbox, reader.number<std::uint64_t>("the mailbox"));
  HEADRACE_TRY(lane, reader.number<std::uint64_t>("lane_bytes"));
  HEADRACE_TRY(message_lane, reader.number<std::uint64_t>("message_lane_bytes"));
  HEADRACE_TRY(box, reader.number<std::uint32_t>("the box"));
  HEADRACE_TRY(check, reader.number<std::uint8_t>("check"));
  HEADRACE_TRY(lazy, reader.number<std::uint8_t>("lazy"));
  HEADRACE_TRY(seat, read_seat(reader));
  return RankCard{mailbox, lane, message_lane, box, check != 0, lazy != 0, std::move(seat)};
}

std::string SplitCard::encode() const {
  ByteWriter writer;
  writer.number(static_cast<std::uint32_t>(ranks.size()));
  for (const int rank : ranks) writer.number(static_cast<std::uint32_t>(rank));
  writer.text(name, 0xffff);
  writer.bytes(rank_card);
  return std::move(writer).take();
}

Result<SplitCard> SplitCard::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "the card of a split");
  SplitCard card;
  HEADRACE_TRY(count, reader.number<std::uint32_t>("the number of ranks"));
  for (std::uint32_t i = 0; i < count; ++i) {
    HEADRACE_TRY(rank, reader.number<std::uint32_t>("a rank"));
    card.ranks.push_back(static_cast<int>(rank));
  }
  HEADRACE_TRY(name, read_text(reader, "the name"));
  card.name = std::move(name);
  card.rank_card = std::string(reader.rest());
  return card;
}

std::string Outcome::encode(const Result<void>& result) {
  ByteWriter writer;
  writer.number(static_cast<std::uint32_t>(result.code()));
  writer.text(result ? "" : result.error().message, 0xffff);
  return std::move(writer).take();
}

Result<Outcome> Outcome::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "the outcome of a rank");
  HEADRACE_TRY(code, reader.number<std::uint32_t>("the code"));
  HEADRACE_TRY(text, read_text(reader, "the text"));
  if (code > static_cast<std::uint32_t>(Code::internal)) return reader.corrupt("code {} is none", code);
  if (code == 0) return Outcome{{}, reader.rest()};
  return Outcome{Error{static_cast<Code>(code), std::move(text)}, reader.rest()};
}

std::string WindowCard::encode() const {
  ByteWriter writer;
  writer.number(window);
  writer.number(mailbox);
  writer.number(elements);
  writer.number(signals);
  writer.number(count);
  writer.number(address);
  writer.number(static_cast<std::uint32_t>(dtype));
  writer.number(static_cast<std::uint32_t>(allocated));
  write_seat(writer, seat);
  return std::move(writer).take();
}

Result<WindowCard> WindowCard::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "the card of a window");
  HEADRACE_TRY(window, reader.number<std::uint64_t>("the window"));
  HEADRACE_TRY(mailbox, reader.number<std::uint64_t>("the mailbox"));
  HEADRACE_TRY(elements, reader.number<std::uint32_t>("the region of the elements"));
  HEADRACE_TRY(signals, reader.number<std::uint32_t>("the region of the signals"));
  HEADRACE_TRY(count, reader.number<std::uint64_t>("the count"));
  HEADRACE_TRY(address, reader.number<std::uint64_t>("the address"));
  HEADRACE_TRY(dtype, reader.number<std::uint32_t>("the type"));
  HEADRACE_TRY(allocated, reader.number<std::uint32_t>("who allocated it"));
  HEADRACE_TRY(seat, read_seat(reader));
  if (dtype >= dtype_count) return reader.corrupt("element type {} is none", dtype);
  const auto type = static_cast<DType>(dtype);
  if (count > PTRDIFF_MAX / element_bytes(type)) return reader.corrupt("{} elements are too many", count);
  return WindowCard{window,  mailbox, elements,       signals,        count,
                    address, type,    allocated != 0, std::move(seat)};
}

std::string CallCard::encode() const {
  ByteWriter writer;
  writer.text(text, 0xffff);
  writer.text(must, 0xffff);
  writer.text(way, 0xffff);
  writer.number(static_cast<std::uint32_t>(kind));
  writer.number(static_cast<std::uint32_t>(root));
  write_counts(writer, gives);
  write_counts(writer, expects);
  return std::move(writer).take();
}

Result<CallCard> CallCard::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "the call of a rank");
  HEADRACE_TRY(text, read_utf8(reader, "the text"));
  HEADRACE_TRY(must, read_utf8(reader, "the operation"));
  HEADRACE_TRY(way, read_utf8(reader, "the algorithm"));
  HEADRACE_TRY(kind, reader.number<std::uint32_t>("the kind"));
  HEADRACE_TRY(root, reader.number<std::uint32_t>("the root"));
  HEADRACE_TRY(gives, read_counts(reader, "what it gives"));
  HEADRACE_TRY(expects, read_counts(reader, "what it expects"));
  return CallCard{
      std::move(text),        std::move(must),  std::move(way),    static_cast<CommOperation>(kind),
      static_cast<int>(root), std::move(gives), std::move(expects)};
}

std::string MeetingEntry::encode() const {
  ByteWriter writer;
  writer.number(nonce);
  writer.number(confirmed);
  writer.number(static_cast<std::uint8_t>(done));
  writer.bytes(bytes);
  return std::move(writer).take();
}

Result<MeetingEntry> MeetingEntry::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "the entry of a rank");
  HEADRACE_TRY(nonce, reader.number<std::uint64_t>("the nonce"));
  HEADRACE_TRY(confirmed, reader.number<std::uint64_t>("the confirmed table"));
  HEADRACE_TRY(done, reader.number<std::uint8_t>("whether it is done"));
  return MeetingEntry{nonce, confirmed, done != 0, std::string(reader.rest())};
}

std::string MeetingTable::encode() const {
  ByteWriter writer;
  writer.number(id);
  for (const MeetingEntry& entry : entries) {
    writer.number(entry.nonce);
    writer.number(std::uint64_t{entry.bytes.size()});
    writer.bytes(entry.bytes);
  }
  return std::move(writer).take();
}

Result<MeetingTable> MeetingTable::decode(std::string_view bytes, std::size_t ranks) {
  BoundedReader reader(bytes, "the table of ranks");
  HEADRACE_TRY(id, reader.number<std::uint64_t>("its number"));
  MeetingTable table{id, {}};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    HEADRACE_TRY(nonce, reader.number<std::uint64_t>("a nonce"));
    HEADRACE_TRY(length, reader.number<std::uint64_t>("a length"));
    HEADRACE_TRY(entry, reader.bytes(length, "an entry"));
    table.entries.push_back({nonce, 0, false, std::string(entry)});
  }
  return table;
}

std::string StoreEntry::encode() const {
  ByteWriter writer;
  writer.text(key, 0xffff);
  writer.bytes(value);
  return std::move(writer).take();
}

Result<StoreEntry> StoreEntry::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "an entry of a rank");
  HEADRACE_TRY(length, reader.number<std::uint16_t>("the key's length"));
  HEADRACE_TRY(key, reader.bytes(length, "the key"));
  return StoreEntry{key, reader.rest()};
}

std::string CardPiece::encode() const {
  ByteWriter writer;
  writer.number(key);
  writer.number(attempt);
  writer.number(number);
  writer.number(count);
  writer.bytes(bytes);
  return std::move(writer).take();
}

Result<CardPiece> CardPiece::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "mail of an assembly");
  HEADRACE_TRY(key, reader.number<std::uint64_t>("the key"));
  HEADRACE_TRY(attempt, reader.number<std::uint64_t>("the attempt"));
  HEADRACE_TRY(number, reader.number<std::uint32_t>("the number"));
  HEADRACE_TRY(count, reader.number<std::uint32_t>("the count"));
  if (number >= count || count > most) return reader.corrupt("piece {} of {}", number, count);
  return CardPiece{key, attempt, number, count, reader.rest()};
}

std::string GpuCard::encode() const {
  ByteWriter writer;
  for (const std::uint32_t value : {blocks, packet_bytes, chunk_bytes, slots, copy_bytes})
    writer.number(value);
  writer.text(gpu, 0xffff);
  return std::move(writer).take();
}

Result<GpuCard> GpuCard::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "the card of a GPU");
  GpuCard card;
  for (std::uint32_t* value :
       {&card.blocks, &card.packet_bytes, &card.chunk_bytes, &card.slots, &card.copy_bytes}) {
    HEADRACE_TRY(number, reader.number<std::uint32_t>("a hint"));
    *value = number;
  }
  HEADRACE_TRY(gpu, read_text(reader, "the GPU"));
  card.gpu = std::move(gpu);
  return card;
}

std::string BoxCard::encode() const {
  ByteWriter writer;
  writer.number(most_blocks);
  writer.bytes(metadata);
  return std::move(writer).take();
}

Result<BoxCard> BoxCard::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "the card of a box");
  HEADRACE_TRY(most_blocks, reader.number<std::uint32_t>("the number of blocks"));
  return BoxCard{most_blocks, std::string(reader.rest())};
}

std::string Saying::encode() const {
  ByteWriter writer;
  writer.number(static_cast<std::uint8_t>(kind));
  writer.number(number);
  writer.text(text, most_text);
  return std::move(writer).take();
}

Result<Saying> Saying::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "what a rank says");
  HEADRACE_TRY(kind, reader.number<std::uint8_t>("its kind"));
  HEADRACE_TRY(number, reader.number<std::uint64_t>("the number"));
  HEADRACE_TRY(text, read_text(reader, "the text"));
  if (kind < static_cast<std::uint8_t>(Kind::aborted) || kind > static_cast<std::uint8_t>(Kind::agreed))
    return reader.corrupt("kind {} is none", kind);
  return Saying{static_cast<Kind>(kind), number, std::move(text)};
}

std::string TensorCard::encode() const {
  ByteWriter writer;
  writer.number(bytes);
  writer.bytes(metadata);
  return std::move(writer).take();
}

Result<TensorCard> TensorCard::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "the card of a tensor");
  HEADRACE_TRY(length, reader.number<std::uint64_t>("the length"));
  return TensorCard{length, std::string(reader.rest())};
}

std::string ElementsCard::encode() const {
  ByteWriter writer;
  writer.number(count);
  writer.number(static_cast<std::uint32_t>(dtype));
  return std::move(writer).take();
}

Result<ElementsCard> ElementsCard::decode(std::string_view bytes) {
  BoundedReader reader(bytes, "the card of elements");
  HEADRACE_TRY(count, reader.number<std::uint64_t>("the count"));
  HEADRACE_TRY(dtype, reader.number<std::uint32_t>("the type"));
  if (dtype >= dtype_count) return reader.corrupt("element type {} does not exist", dtype);
  if (count > PTRDIFF_MAX / element_bytes(static_cast<DType>(dtype)))
    return reader.corrupt("{} elements are more than any memory", count);
  if (reader.remaining() != 0) return reader.corrupt("{} bytes follow", reader.remaining());
  return ElementsCard{count, static_cast<DType>(dtype)};
}

std::string TensorPlaces::encode() const {
  ByteWriter writer;
  for (const std::uint64_t place : places) writer.number(place);
  return std::move(writer).take();
}

Result<TensorPlaces> TensorPlaces::decode(std::string_view bytes, std::size_t ranks) {
  BoundedReader reader(bytes, "the places of tensors");
  TensorPlaces made;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    HEADRACE_TRY(place, reader.number<std::uint64_t>("a place"));
    made.places.push_back(place);
  }
  if (reader.remaining() != 0) return reader.corrupt("{} bytes follow", reader.remaining());
  return made;
}

}  // namespace headrace::wire
