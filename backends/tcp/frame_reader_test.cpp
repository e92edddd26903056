// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/frame_reader.hpp"

#include "support/forbidden_call.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace headrace::tcp {
namespace {

/// Frames as bytes.
struct Stream {
  std::string bytes;

  void add(FrameHeader header, const std::vector<WireRange>& ranges, std::string_view payload) {
    header.ranges = static_cast<std::uint32_t>(ranges.size());
    header.payload = payload.size();
    bytes.append(reinterpret_cast<const char*>(&header), sizeof header);
    bytes.append(reinterpret_cast<const char*>(ranges.data()), ranges.size() * sizeof(WireRange));
    bytes.append(payload);
  }
};

FrameHeader header(FrameType type, std::uint64_t request) {
  FrameHeader made;
  made.type = type;
  made.request = request;
  return made;
}

/// Letters in no order that comes again, so that bytes in a wrong place show.
std::string text_of(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& letter : text) letter = static_cast<char>('a' + random() % 26);
  return text;
}

constexpr std::uint32_t region_of_ours = 14;

/// Puts writes at their offsets in one memory, of which a region is ours; refuses region 13; keeps messages.
struct Keeper final : FrameReader::Handler {
  explicit Keeper(FrameReader& the_reader) : reader(the_reader) {}

  Result<void> begin(const FrameHeader& frame, const RangeList& ranges) override {
    if (frame.type == FrameType::read) reads.push_back(ranges[0].offset);
    if (frame.type != FrameType::write) return {};
    for (std::uint32_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].region == 13) {
        reader.discard();
        return {};
      }
      const bool ours = ranges[i].region == region_of_ours;
      reader.place(memory.data() + ranges[i].offset, ranges[i].length,
                   ours ? FrameReader::Memory::ours : FrameReader::Memory::callers);
    }
    return {};
  }
  Result<void> end(const FrameHeader& frame, std::span<const std::byte> payload) override {
    ended.push_back(frame.request);
    if (frame.type == FrameType::message)
      messages.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
    return {};
  }

  void unwritable(std::uint64_t) override { ++faults; }

  FrameReader& reader;
  int faults = 0;
  std::string memory = std::string(1 << 20, '.');
  std::vector<std::uint64_t> ended, reads;
  std::vector<std::string> messages;
};

/// As a socket would: fills targets with at most `most()` bytes a call.
template <class Most>
Result<void> give(FrameReader& reader, Keeper& keeper, std::string_view bytes, std::size_t pieces,
                  Most most) {
  while (!bytes.empty()) {
    std::size_t left = std::min<std::size_t>(most(), bytes.size());
    std::size_t given = 0;
    for (const iovec& target : reader.targets(pieces)) {
      EXPECT_GT(target.iov_len, 0U);
      const std::size_t n = std::min(left, target.iov_len);
      std::memcpy(target.iov_base, bytes.data() + given, n);
      given += n;
      left -= n;
      if (left == 0) break;
    }
    bytes.remove_prefix(given);
    HEADRACE_TRY_VOID(reader.took(given, keeper));
  }
  return {};
}

Stream some_frames(std::string& expected) {
  Stream stream;
  expected = std::string(1 << 20, '.');
  const auto write = [&](std::uint64_t request, const std::vector<WireRange>& ranges, unsigned seed) {
    std::size_t total = 0;
    for (const WireRange& range : ranges) total += range.length;
    const std::string payload = text_of(total, seed);
    stream.add(header(FrameType::write, request), ranges, payload);
    if (std::any_of(ranges.begin(), ranges.end(), [](const WireRange& r) { return r.region == 13; })) return;
    std::size_t at = 0;
    for (const WireRange& range : ranges) {
      expected.replace(range.offset, range.length, payload.substr(at, range.length));
      at += range.length;
    }
  };
  write(1, {{1, 0, 10, 5}, {1, 0, 100, 1}, {1, 0, 101, 4000}}, 1);
  stream.add(header(FrameType::message, 2), {}, "hello");
  write(3, {{1, 0, 9000, 100}, {13, 0, 0, 70'000}}, 2);  // refused: thrown away
  stream.add(header(FrameType::ping, 4), {}, "");
  FrameHeader later = header(static_cast<FrameType>(99), 5);
  later.flags = flag_optional;
  stream.add(later, {{1, 0, 0, 9}}, text_of(5000, 3));
  std::vector<WireRange> many;
  for (std::uint64_t i = 0; i < 4096; ++i) many.push_back({1, 0, 20'000 + i * 8, i % 7 + 1});
  write(6, many, 4);
  stream.add(header(FrameType::read, 7), {{1, 0, 77, 1}}, "");
  write(8, {{1, 0, 200'000, 300'000}}, 5);
  stream.add(header(FrameType::message, 9), {}, text_of(max_message_bytes, 6));
  return stream;
}

class FrameReaderSplits : public testing::TestWithParam<std::pair<std::size_t, std::size_t>> {};

TEST_P(FrameReaderSplits, frames_come_out_whole_however_they_are_cut) {
  std::string expected;
  const Stream stream = some_frames(expected);
  FrameReader reader;
  Keeper keeper(reader);
  std::mt19937_64 random(GetParam().first);
  const auto given =
      give(reader, keeper, stream.bytes, GetParam().second, [&] { return 1 + random() % GetParam().first; });
  ASSERT_TRUE(given.ok()) << given.error().message;
  EXPECT_EQ(keeper.ended, (std::vector<std::uint64_t>{1, 2, 3, 4, 6, 7, 8, 9}));
  EXPECT_EQ(keeper.messages, (std::vector<std::string>{"hello", text_of(max_message_bytes, 6)}));
  EXPECT_EQ(keeper.reads, std::vector<std::uint64_t>{77});
  EXPECT_TRUE(keeper.memory == expected);
  EXPECT_EQ(reader.payload_left(), 0U);
}
INSTANTIATE_TEST_SUITE_P(most_bytes_and_pieces, FrameReaderSplits,
                         testing::Values(std::pair{1, 1024}, std::pair{2, 1}, std::pair{39, 3},
                                         std::pair{41, 2}, std::pair{5000, 1}, std::pair{65536, 7},
                                         std::pair{10'000'000, 1024}));

TEST(FrameReader, bytes_from_before_are_fed_alike) {
  std::string expected;
  const Stream stream = some_frames(expected);
  FrameReader reader;
  Keeper keeper(reader);
  ASSERT_TRUE(reader.feed(std::as_bytes(std::span(stream.bytes)), keeper).ok());
  EXPECT_EQ(keeper.ended.size(), 8U);
  EXPECT_TRUE(keeper.memory == expected);
}

TEST(FrameReader, the_rest_of_a_frame_can_be_kept_out_of_memory) {
  Stream stream;
  stream.add(header(FrameType::write, 1), {{1, 0, 0, 100'000}}, text_of(100'000, 1));
  stream.add(header(FrameType::message, 2), {}, "after");
  FrameReader reader;
  Keeper keeper(reader);
  const auto half = [] { return std::size_t{1000}; };
  ASSERT_TRUE(give(reader, keeper, std::string_view(stream.bytes).substr(0, 50'000), 8, half).ok());
  const std::uint64_t left = reader.payload_left();
  ASSERT_GT(left, 0U);
  reader.discard();
  keeper.memory.assign(1 << 20, '#');
  ASSERT_TRUE(give(reader, keeper, std::string_view(stream.bytes).substr(50'000), 8, half).ok());
  EXPECT_TRUE(keeper.memory == std::string(1 << 20, '#'));
  EXPECT_EQ(keeper.ended, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(keeper.messages, std::vector<std::string>{"after"});
}

TEST(FrameReader, a_write_whose_ranges_and_payload_differ_is_refused) {
  Stream stream;
  stream.add(header(FrameType::write, 1), {{1, 0, 0, 11}}, "ten bytes.");
  FrameReader reader;
  Keeper keeper(reader);
  const auto fed = reader.feed(std::as_bytes(std::span(stream.bytes)), keeper);
  EXPECT_EQ(fed.code(), Code::corrupt);
  EXPECT_TRUE(keeper.ended.empty());
}

TEST(FrameReader, garbage_is_refused_at_its_first_header) {
  FrameReader reader;
  Keeper keeper(reader);
  const std::string garbage(4096, '\xee');
  EXPECT_EQ(reader.feed(std::as_bytes(std::span(garbage)), keeper).code(), Code::corrupt);
}

/// Has room for a little of a payload at a time, and none for a while.
struct Sparing final : FrameReader::Handler {
  explicit Sparing(FrameReader& the_reader) : reader(the_reader) {}

  Result<void> begin(const FrameHeader&, const RangeList&) override {
    reader.place_more_later();
    return {};
  }
  Result<void> end(const FrameHeader& frame, std::span<const std::byte>) override {
    ended.push_back(frame.request);
    return {};
  }
  void unwritable(std::uint64_t) override { FAIL(); }

  /// The next place: right behind the last one, so that a full place and the next look like one.
  void give_room(std::size_t bytes) {
    reader.place(memory.data() + at, bytes);
    at += bytes;
  }

  FrameReader& reader;
  std::string memory = std::string(1 << 20, '.');
  std::size_t at = 0;
  std::vector<std::uint64_t> ended;
};

TEST(FrameReader, a_payload_whose_places_come_one_by_one_waits_for_each_and_loses_nothing) {
  Stream stream;
  std::string all;
  for (std::uint64_t i = 1; i <= 4; ++i) {
    all += text_of(20'000 * i, static_cast<unsigned>(i));
    stream.add(header(FrameType::write, i), {{1, 0, 0, 20'000 * i}},
               std::string_view(all).substr(all.size() - 20'000 * i));
  }
  for (const bool early : {false, true}) {
    FrameReader reader;
    Sparing sparing(reader);
    std::mt19937 random{11};
    std::string_view left = stream.bytes;
    if (early) {  // what came before the reader was there stops at the first place that is missing
      ASSERT_TRUE(reader.feed(std::as_bytes(std::span(left.substr(0, 30'000))), sparing).ok());
      left.remove_prefix(30'000);
      EXPECT_TRUE(reader.starved());
    }
    while (!left.empty() || reader.starved()) {
      if (reader.starved()) {
        const std::uint64_t missing = reader.payload_left();
        sparing.give_room(std::min<std::uint64_t>(missing, 1 + random() % 9000));
        ASSERT_TRUE(reader.go_on(sparing).ok());
        continue;
      }
      std::size_t given = 0;
      for (const iovec& target : reader.targets(4)) {
        const std::size_t n = std::min(target.iov_len, left.size() - given);
        std::memcpy(target.iov_base, left.data() + given, n);
        given += n;
      }
      left.remove_prefix(given);
      ASSERT_TRUE(reader.took(given, sparing).ok());
    }
    EXPECT_EQ(sparing.ended, (std::vector<std::uint64_t>{1, 2, 3, 4}));
    EXPECT_EQ(sparing.memory.substr(0, all.size()), all) << early;
  }
}

TEST(FrameReader, a_payload_that_waits_for_its_place_can_be_discarded) {
  Stream stream;
  stream.add(header(FrameType::write, 1), {{1, 0, 0, 1000}}, text_of(1000, 1));
  stream.add(header(FrameType::ping, 2), {}, "");
  FrameReader reader;
  Sparing sparing(reader);
  ASSERT_TRUE(reader.feed(std::as_bytes(std::span(stream.bytes)), sparing).ok());
  ASSERT_TRUE(reader.starved());
  reader.discard();
  EXPECT_FALSE(reader.starved());
  ASSERT_TRUE(reader.go_on(sparing).ok());
  EXPECT_EQ(sparing.ended, (std::vector<std::uint64_t>{1, 2}));
}

TEST(FrameReader, only_memory_of_the_caller_is_written_by_a_call_that_may_fail) {
  // A short payload comes with its header and is put where it belongs from there. Where the system copies
  // nothing:
  const auto faults_of = [](const std::vector<WireRange>& ranges) {
    Stream stream;
    std::size_t total = 0;
    for (const WireRange& range : ranges) total += range.length;
    const std::string payload = text_of(total, 1);
    stream.add(header(FrameType::write, 1), ranges, payload);
    FrameReader reader;
    Keeper keeper(reader);
    const bool good = give(reader, keeper, stream.bytes, 4, [] { return std::size_t{100'000}; }).ok();
    const bool is_there = keeper.faults == 0 && keeper.memory.substr(ranges[0].offset, total) == payload;
    return good && keeper.ended.size() == 1 && is_there == (keeper.faults == 0) ? keeper.faults : -1;
  };
  EXPECT_EQ(faults_of({{1, 0, 100, 4096}}), 0);
  EXPECT_TRUE(test::without_call(SYS_process_vm_readv, EFAULT, [&] {
    return faults_of({{region_of_ours, 0, 100, 4096}}) == 0;
  }));
  EXPECT_TRUE(test::without_call(SYS_process_vm_readv, EFAULT, [&] {
    return faults_of({{1, 0, 100, 4096}}) == 1;
  }));
  EXPECT_TRUE(test::without_call(SYS_process_vm_readv, EFAULT, [&] {
    return faults_of({{region_of_ours, 0, 100, 2000}, {1, 0, 2100, 2000}}) == 1;
  }));
}

}  // namespace
}  // namespace headrace::tcp
