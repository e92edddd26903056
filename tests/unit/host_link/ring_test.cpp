// SPDX-License-Identifier: Apache-2.0
#include "host_link/ring.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace headrace::host_link {
namespace {

constexpr std::uint64_t capacity = 4096;
constexpr std::uint64_t max_message = 1024;

/// A ring in ordinary memory. Its data is not mapped twice, so a test with one thread copies the written
/// bytes to the other half.
class PlainRing {
 public:
  PlainRing() : memory{&control_, data_.data(), capacity} {}
  /// What the double mapping does without a copy: both halves show the same bytes.
  void mirror_after_write(std::uint64_t tail_before, std::uint64_t tail_after) {
    for (std::uint64_t at = tail_before; at < tail_after; ++at) {
      const std::uint64_t place = tail_before % capacity + (at - tail_before);
      data_[place < capacity ? place + capacity : place - capacity] = data_[place];
    }
  }
  RingControl& control() { return control_; }

 private:
  RingControl control_{};
  std::vector<std::byte> data_ = std::vector<std::byte>(2 * capacity);

 public:
  RingMemory memory;
};

std::string random_text(std::mt19937& random, std::size_t length) {
  std::string text(length, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(Ring, messages_of_random_sizes_arrive_in_order_while_the_ring_wraps) {
  PlainRing ring;
  RingWriter writer(ring.memory);
  RingReader reader(ring.memory, max_message);
  std::mt19937 random(7);
  std::vector<std::pair<std::uint32_t, std::string>> under_way;
  std::size_t first = 0;
  std::size_t read = 0;
  while (read < 20'000) {
    const std::string text =
        random_text(random, random() % 3 == 0 ? random() % (max_message + 1) : random() % 20);
    const auto channel = static_cast<std::uint32_t>(random());
    const std::uint64_t before = ring.control().tail.load();
    const auto pushed = writer.push(channel, text);
    ASSERT_NE(pushed, RingWriter::Push::corrupt);
    if (pushed == RingWriter::Push::done) {
      ring.mirror_after_write(before, ring.control().tail.load());
      under_way.emplace_back(channel, text);
    }
    // Some rounds read nothing, so that the ring gets full; others read until it is empty.
    std::size_t to_read = pushed == RingWriter::Push::full ? 1 + random() % 30 : random() % 2;
    for (RingReader::Message message; to_read > 0 && reader.pop(message) == RingReader::Pop::message;
         --to_read) {
      ASSERT_LT(first, under_way.size());
      ASSERT_EQ(message.channel, under_way[first].first);
      ASSERT_EQ(message.bytes, under_way[first].second);
      ++first;
      ++read;
    }
  }
}

TEST(Ring, the_ring_holds_exactly_its_capacity) {
  PlainRing ring;
  RingWriter writer(ring.memory);
  const std::string text(120, 'x');
  const std::uint64_t records = capacity / RingWriter::record_bytes(text.size());
  for (std::uint64_t i = 0; i < records; ++i) ASSERT_EQ(writer.push(0, text), RingWriter::Push::done);
  EXPECT_EQ(writer.push(0, text), RingWriter::Push::full);
}

TEST(Ring, the_writer_learns_of_a_sleeping_reader_once_for_each_arm) {
  PlainRing ring;
  RingWriter writer(ring.memory);
  RingReader reader(ring.memory, max_message);
  ASSERT_EQ(writer.push(0, "awake"), RingWriter::Push::done);
  EXPECT_FALSE(writer.reader_sleeps());
  EXPECT_FALSE(reader.arm()) << "a message waits, so the reader must not sleep";
  RingReader::Message message;
  ASSERT_EQ(reader.pop(message), RingReader::Pop::message);
  EXPECT_TRUE(reader.arm());
  ASSERT_EQ(writer.push(0, "wake up"), RingWriter::Push::done);
  EXPECT_TRUE(writer.reader_sleeps());
  EXPECT_FALSE(writer.reader_sleeps());
}

TEST(Ring, the_reader_learns_once_of_a_writer_that_found_no_room) {
  PlainRing ring;
  RingWriter writer(ring.memory);
  RingReader reader(ring.memory, max_message);
  const std::string text(1000, 'x');
  while (writer.push_or_wait_for_room(0, text) == RingWriter::Push::done) {
  }
  RingReader::Message message;
  ASSERT_EQ(reader.pop(message), RingReader::Pop::message);
  EXPECT_TRUE(reader.writer_starves());
  EXPECT_FALSE(reader.writer_starves());
  EXPECT_EQ(writer.push_or_wait_for_room(0, text), RingWriter::Push::done);
}

TEST(Ring, the_reader_reports_impossible_positions_and_lengths_as_corrupt) {
  const auto pop_after = [](auto&& damage) {
    PlainRing ring;
    RingWriter writer(ring.memory);
    RingReader reader(ring.memory, max_message);
    EXPECT_EQ(writer.push(0, "fine"), RingWriter::Push::done);
    damage(ring);
    RingReader::Message message;
    return reader.pop(message);
  };
  const auto set_length = [](PlainRing& ring, std::uint32_t length) {
    std::memcpy(ring.memory.data, &length, sizeof length);
  };
  EXPECT_EQ(pop_after([](PlainRing&) {}), RingReader::Pop::message);
  EXPECT_EQ(pop_after([](PlainRing& ring) { ring.control().tail = capacity + 16; }),
            RingReader::Pop::corrupt);
  EXPECT_EQ(pop_after([](PlainRing& ring) { ring.control().tail = 4; }), RingReader::Pop::corrupt);
  EXPECT_EQ(pop_after([](PlainRing& ring) { ring.control().tail = ~std::uint64_t{0}; }),
            RingReader::Pop::corrupt);
  EXPECT_EQ(pop_after([&](PlainRing& ring) { set_length(ring, max_message + 1); }), RingReader::Pop::corrupt);
  EXPECT_EQ(pop_after([&](PlainRing& ring) { set_length(ring, 9); }), RingReader::Pop::corrupt)
      << "the length reaches beyond the published bytes";
  EXPECT_EQ(pop_after([&](PlainRing& ring) { set_length(ring, 0xffffffff); }), RingReader::Pop::corrupt);
}

TEST(Ring, the_writer_reports_a_reader_position_ahead_of_it_as_corrupt) {
  PlainRing ring;
  RingWriter writer(ring.memory);
  ASSERT_EQ(writer.push(0, "one"), RingWriter::Push::done);
  ring.control().head = 4096;
  EXPECT_EQ(writer.push(0, "two"), RingWriter::Push::corrupt);
}

TEST(Ring, random_damage_never_makes_the_reader_leave_its_memory) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 20'000; ++round) {
    PlainRing ring;
    RingWriter writer(ring.memory);
    RingReader reader(ring.memory, max_message);
    for (int i = 0; i < 3; ++i)
      ASSERT_EQ(writer.push(0, std::string(random() % 200, 'x')), RingWriter::Push::done);
    for (int i = 0; i < 4; ++i) ring.memory.data[random() % capacity] = static_cast<std::byte>(random());
    if (round % 2 == 0) ring.control().tail = random() % (2 * capacity);
    RingReader::Message message;
    for (int pops = 0; pops < 1000 && reader.pop(message) == RingReader::Pop::message; ++pops)
      ASSERT_LE(message.bytes.size(), max_message);
  }
}

/// Both threads sleep on these flags only: a lost wake-up hangs the test.
TEST(Ring, two_threads_that_sleep_by_the_flags_lose_no_message_and_no_wake_up) {
  // All records have one size that divides the capacity, so no record wraps and ordinary memory serves two
  // threads.
  PlainRing ring;
  RingWriter writer(ring.memory);
  RingReader reader(ring.memory, max_message);
  std::atomic<std::uint32_t> reader_bell{0};
  std::atomic<std::uint32_t> writer_bell{0};
  const auto ring_bell = [](std::atomic<std::uint32_t>& bell) {
    bell.fetch_add(1);
    bell.notify_one();
  };
  constexpr std::uint64_t count = 30'000;
  std::thread writing([&] {
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string text(120, 'x');
      std::memcpy(text.data(), &i, sizeof i);
      for (;;) {
        const std::uint32_t seen = writer_bell.load();
        if (writer.push_or_wait_for_room(1, text) == RingWriter::Push::done) break;
        writer_bell.wait(seen);
      }
      if (writer.reader_sleeps()) ring_bell(reader_bell);
    }
  });
  for (std::uint64_t i = 0; i < count;) {
    RingReader::Message message;
    const RingReader::Pop popped = reader.pop(message);
    ASSERT_NE(popped, RingReader::Pop::corrupt);
    if (popped == RingReader::Pop::message) {
      std::uint64_t number = 0;
      std::memcpy(&number, message.bytes.data(), sizeof number);
      EXPECT_EQ(number, i);
      ++i;
      if (reader.writer_starves()) ring_bell(writer_bell);
      continue;
    }
    const std::uint32_t seen = reader_bell.load();
    if (reader.arm()) reader_bell.wait(seen);
    reader.disarm();
  }
  writing.join();
}

}  // namespace
}  // namespace headrace::host_link
