// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/frame_writer.hpp"

#include "support/scripted_sockets.hpp"

#include <gtest/gtest.h>

#include <string>

namespace headrace::tcp {
namespace {

/// Puts a batch of heads, lent and kept payload, and says how it must look.
std::string fill(FrameWriter& writer, const std::string& lent) {
  std::string expected;
  EXPECT_TRUE(writer.fits(100));
  writer.put("head-one", 8);
  writer.lend(lent.data(), 10);
  writer.lend(lent.data() + 20, 30);
  writer.put("head-two", 8);
  writer.keep("kept");
  writer.lend(lent.data() + 50, 0);
  writer.put("end", 3);
  expected = "head-one" + lent.substr(0, 10) + lent.substr(20, 30) + "head-two" + "kept" + "end";
  EXPECT_EQ(writer.bytes(), expected.size());
  return expected;
}

TEST(FrameWriter, a_batch_goes_out_in_order_at_once) {
  const std::string lent(100, 'x');
  FrameWriter writer;
  test::ScriptedSockets calls;
  const std::string expected = fill(writer, lent);
  const auto step = writer.flush(calls, 0);
  EXPECT_EQ(step.result, FrameWriter::Flushed::all);
  EXPECT_EQ(step.bytes, expected.size());
  EXPECT_EQ(calls.sent, expected);
  EXPECT_EQ(calls.calls, 1);
  EXPECT_TRUE(writer.empty());
}

TEST(FrameWriter, a_socket_that_takes_one_byte_a_call_gets_the_same) {
  std::string lent;
  for (int i = 0; i < 100; ++i) lent += static_cast<char>('0' + i % 75);
  FrameWriter writer;
  test::ScriptedSockets calls;
  const std::string expected = fill(writer, lent);
  for (std::size_t i = 0; i + 1 < expected.size(); ++i) {
    calls.steps.push_back({1, 0});
    EXPECT_EQ(writer.flush(calls, 0).result, FrameWriter::Flushed::blocked) << i;
  }
  EXPECT_EQ(writer.flush(calls, 0).result, FrameWriter::Flushed::all);
  EXPECT_EQ(calls.sent, expected);
}

TEST(FrameWriter, interruptions_and_full_sockets_lose_nothing) {
  const std::string lent(100, 'y');
  FrameWriter writer;
  test::ScriptedSockets calls;
  const std::string expected = fill(writer, lent);
  calls.steps = {{0, EINTR}, {0, EINTR}, {5, 0}, {0, EAGAIN}, {0, ENOBUFS}, {0, EINTR}, {SIZE_MAX, 0}};
  EXPECT_EQ(writer.flush(calls, 0).result, FrameWriter::Flushed::blocked);
  EXPECT_EQ(writer.flush(calls, 0).result, FrameWriter::Flushed::blocked);
  EXPECT_EQ(writer.flush(calls, 0).result, FrameWriter::Flushed::blocked);
  EXPECT_EQ(writer.flush(calls, 0).result, FrameWriter::Flushed::all);
  EXPECT_EQ(calls.sent, expected);
}

TEST(FrameWriter, a_broken_socket_is_told_with_its_errno) {
  FrameWriter writer;
  test::ScriptedSockets calls;
  (void)fill(writer, std::string(100, 'z'));
  calls.steps = {{3, 0}, {0, ECONNRESET}};
  EXPECT_EQ(writer.flush(calls, 0).result, FrameWriter::Flushed::blocked);
  const auto step = writer.flush(calls, 0);
  EXPECT_EQ(step.result, FrameWriter::Flushed::failed);
  EXPECT_EQ(step.error, ECONNRESET);
}

TEST(FrameWriter, more_than_a_call_can_take_goes_out_in_several) {
  const std::string lent(20'000, 'q');
  FrameWriter writer;
  test::ScriptedSockets calls;
  ASSERT_TRUE(writer.fits(0));
  for (std::size_t i = 0; i < 5000; ++i) writer.lend(lent.data() + i * 3, 2);
  EXPECT_EQ(writer.flush(calls, 0).result, FrameWriter::Flushed::all);
  EXPECT_EQ(calls.sent.size(), 10'000U);
  EXPECT_EQ(calls.calls, 5);
}

TEST(FrameWriter, memory_that_goes_away_is_copied_first) {
  std::string lent(100, 'm');
  FrameWriter writer;
  test::ScriptedSockets calls;
  const std::string expected = fill(writer, lent);
  calls.steps = {{12, 0}};
  EXPECT_EQ(writer.flush(calls, 0).result,
            FrameWriter::Flushed::blocked);  // within the first lent piece
  writer.detach(reinterpret_cast<const std::byte*>(lent.data()), lent.size());
  lent.assign(100, '!');
  EXPECT_EQ(writer.flush(calls, 0).result, FrameWriter::Flushed::all);
  EXPECT_EQ(calls.sent, expected);
}

TEST(FrameWriter, what_was_put_after_a_mark_can_be_taken_back) {
  const std::string lent(100, 'k');
  FrameWriter writer;
  test::ScriptedSockets calls;
  ASSERT_TRUE(writer.fits(1000));
  writer.put("one", 3);
  const auto mark = writer.mark();
  writer.put("two", 3);
  writer.lend(lent.data(), 5);
  writer.take_back(mark);
  writer.put("three", 5);
  EXPECT_EQ(writer.bytes(), 8U);
  EXPECT_EQ(writer.flush(calls, 0).result, FrameWriter::Flushed::all);
  EXPECT_EQ(calls.sent, "onethree");
}

TEST(FrameWriter, a_batch_does_not_move_once_it_holds_something) {
  FrameWriter writer;
  ASSERT_TRUE(writer.fits(100'000));
  writer.put("x", 1);
  EXPECT_TRUE(writer.fits(99'999));
  EXPECT_FALSE(writer.fits(100'000));
}

}  // namespace
}  // namespace headrace::tcp
