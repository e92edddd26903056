// SPDX-License-Identifier: Apache-2.0
#include "collectives/lane.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace headrace::collectives {
namespace {

BoxLayout small_layout() {
  BoxLayout layout;
  layout.ranks = 2;
  layout.lines = 4;
  layout.lane_bytes[0] = layout.lane_bytes[1] = 256;
  return layout;
}

/// A box of zeros.
class LaneTest : public testing::Test {
 protected:
  LaneTest()
      : memory_(static_cast<std::byte*>(::operator new(layout_.bytes(), std::align_val_t(4096)))),
        box_({memory_, layout_.bytes()}, layout_),
        writer(box_.lane(1, LaneKind::collective), nullptr),
        reader(box_.lane(1, LaneKind::collective), nullptr) {
    std::memset(memory_, 0, layout_.bytes());
  }
  ~LaneTest() override { ::operator delete(memory_, std::align_val_t(4096)); }
  void take_front(std::size_t bytes) {
    ASSERT_NE(reader.next(), nullptr);
    reader.take(bytes);
  }

  const BoxLayout layout_ = small_layout();
  std::byte* const memory_;
  Box box_;

 public:
  LaneWriter writer;
  LaneReader reader;
};

std::byte byte_at(std::size_t i) { return static_cast<std::byte>(i * 7 + i / 251); }

TEST_F(LaneTest,
       a_small_message_lies_in_its_line_and_a_large_one_is_cut_at_chunks_and_at_the_end_of_the_ring) {
  const std::vector<std::byte> data(1000, std::byte{7});
  EXPECT_EQ(writer.write({5, 40}, data.data(), 40, 128), 40U);
  EXPECT_EQ(reader.next()->tag, 5U);
  EXPECT_EQ(reader.next()->bytes.size(), 40U);
  take_front(40);
  EXPECT_EQ(writer.write({6, 1000}, data.data(), 1000, 128), 128U);
  take_front(100);
  EXPECT_EQ(reader.next()->bytes.size(), 28U);
  take_front(28);
  EXPECT_EQ(writer.write({6, 1000}, data.data(), 200, 64), 64U);
  EXPECT_EQ(writer.write({6, 1000}, data.data(), 200, 256), 64U);  // the end of the ring
}

TEST_F(LaneTest, a_full_lane_takes_nothing_until_something_is_taken) {
  const std::vector<std::byte> data(256);
  EXPECT_EQ(writer.write({1, 256}, data.data(), 256, 256), 256U);
  EXPECT_EQ(writer.write({1, 256}, data.data(), 256, 256), std::nullopt);
  EXPECT_EQ(writer.write({1, 8}, data.data(), 8, 256), 8U)
      << "a line is free, and it needs no bytes of the ring";
  take_front(256);
  EXPECT_EQ(writer.write({1, 256}, data.data(), 256, 256), 256U);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(writer.write({1, 8}, data.data(), 8, 256), 8U);
  EXPECT_EQ(writer.write({1, 8}, data.data(), 8, 256), std::nullopt) << "no line is free";
}

TEST_F(LaneTest, an_empty_message_is_a_line) {
  EXPECT_EQ(reader.next(), nullptr);
  EXPECT_EQ(writer.write({9, 0}, nullptr, 0, 256), 0U);
  ASSERT_NE(reader.next(), nullptr);
  take_front(0);
  EXPECT_EQ(reader.next(), nullptr);
}

TEST_F(LaneTest, no_length_of_a_line_leads_out_of_the_ring) {
  const std::vector<std::byte> data(100);
  EXPECT_EQ(writer.write({9, 100}, data.data(), 100, 256), 100U);
  Line& line = box_.lane(1, LaneKind::collective).lines[0];
  line.length = 0xffffffff;
  line.message_bytes = 0xffffffff;
  EXPECT_EQ(reader.next()->bytes.size(), 256U);
}

TEST_F(LaneTest, a_part_has_no_more_bytes_than_its_message) {
  const std::vector<std::byte> data(100);
  ASSERT_EQ(writer.write({1, 0}, data.data(), 5, 256), 5U);
  EXPECT_EQ(writer.write({1, 60}, data.data(), 100, 256), 100U);
  ASSERT_NE(reader.next(), nullptr);
  EXPECT_EQ(reader.next()->bytes.size(), 0U) << "a reader of 0 bytes takes none, and the line stays";
  take_front(0);
  ASSERT_NE(reader.next(), nullptr);
  EXPECT_EQ(reader.next()->bytes.size(), 60U);
}

TEST_F(LaneTest, a_line_that_changes_after_it_was_read_changes_nothing) {
  const std::vector<std::byte> data(100);
  EXPECT_EQ(writer.write({9, 100}, data.data(), 100, 256), 100U);
  EXPECT_EQ(reader.next()->bytes.size(), 100U);
  take_front(60);
  Line& line = box_.lane(1, LaneKind::collective).lines[0];
  line.length = 20;
  line.tag = 7;
  line.message_bytes = 1;
  EXPECT_EQ(reader.next()->bytes.size(), 40U);
  EXPECT_EQ(reader.next()->tag, 9U);
  EXPECT_EQ(reader.next()->message_bytes, 100U);
  take_front(40);
  EXPECT_EQ(reader.next(), nullptr);
}

TEST_F(LaneTest, bytes_pass_in_order_between_two_threads) {
  constexpr std::size_t total = 40'000;
  std::jthread sender([&] {
    std::vector<std::byte> message;
    for (std::size_t sent = 0, size = 1; sent < total; size = size % 300 + 1) {
      message.resize(std::min(size, total - sent));
      for (std::size_t i = 0; i < message.size(); ++i) message[i] = byte_at(sent + i);
      for (std::size_t done = 0; done < message.size();) {
        const auto written =
            writer.write({1, message.size()}, message.data() + done, message.size() - done, 128);
        if (written)
          done += *written;
        else
          std::this_thread::yield();
      }
      sent += message.size();
    }
  });
  std::size_t wrong = 0;
  for (std::size_t got = 0; got < total;) {
    const Front* const front = reader.next();
    if (front == nullptr) {
      std::this_thread::yield();
      continue;
    }
    const std::size_t length = std::min<std::size_t>(front->bytes.size(), 33);
    for (std::size_t i = 0; i < length; ++i) wrong += front->bytes[i] != byte_at(got + i) ? 1 : 0;
    reader.take(length);
    got += length;
  }
  EXPECT_EQ(wrong, 0U);
}

TEST_F(LaneTest, the_first_farewell_is_found_and_its_text_is_cut) {
  EXPECT_EQ(box_.ended().load(), 0U);
  box_.say_farewell(1, Code::peer_lost, std::string(1000, 'x'), Farewell::by_opening);
  EXPECT_EQ(box_.ended().load(), 1U);
  EXPECT_EQ(box_.first_farewell().code, Code::peer_lost);
  EXPECT_EQ(box_.first_farewell().message, std::string(Farewell::most_text_bytes, 'x'));
}

TEST_F(LaneTest, a_farewell_is_text_and_has_a_known_code_whatever_its_writer_wrote) {
  const std::string euros = "x€€";  // 3 bytes each: one is cut
  std::string long_text(Farewell::most_text_bytes - 5, 'x');
  box_.say_farewell(1, static_cast<Code>(4711), long_text + euros, Farewell::by_open);
  EXPECT_EQ(box_.first_farewell().code, Code::canceled);
  EXPECT_EQ(box_.first_farewell().message, long_text + "x€");
  box_.farewell(1).text[0] = '\xff';
  EXPECT_EQ(box_.first_farewell().message, "rank 1 ended the communicator, and its reason cannot be read");
}

}  // namespace
}  // namespace headrace::collectives
