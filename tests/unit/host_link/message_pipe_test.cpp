// SPDX-License-Identifier: Apache-2.0
#include "host_link/message_pipe.hpp"

#include "base/epoll.hpp"

#include <gtest/gtest.h>

#include <sys/epoll.h>

#include <array>
#include <string>
#include <vector>

namespace headrace::host_link {
namespace {

struct PipeEnds {
  std::unique_ptr<MessagePipe> near, far;
};

PipeEnds make_pipe(std::uint64_t ring_bytes = 256 * 1024, std::uint64_t queue_bytes = 1 << 20) {
  PipeEnds ends;
  ends.near = MessagePipe::create(ring_bytes, queue_bytes).value();
  const auto fds = ends.near->descriptors();
  ends.far = MessagePipe::adopt(UniqueFd(::dup(fds[0])), UniqueFd(::dup(fds[1])), UniqueFd(::dup(fds[2])),
                                queue_bytes)
                 .value();
  return ends;
}

std::vector<std::string> read_all(MessagePipe& pipe) {
  std::vector<std::string> texts;
  RingReader::Message message;
  while (pipe.reader().pop(message) == RingReader::Pop::message) texts.emplace_back(message.bytes);
  pipe.settle();
  return texts;
}

TEST(MessagePipe, messages_arrive_in_both_directions_while_the_ring_wraps) {
  const PipeEnds ends = make_pipe();
  for (int round = 0; round < 200; ++round) {
    const std::string text(static_cast<std::size_t>(round) * 300, static_cast<char>('a' + round % 26));
    ASSERT_TRUE(ends.near->send(0, text).ok());
    ASSERT_TRUE(ends.far->send(1, text + "back").ok());
    EXPECT_EQ(read_all(*ends.far), std::vector{text});
    EXPECT_EQ(read_all(*ends.near), std::vector{text + "back"});
  }
}

TEST(MessagePipe, reserved_messages_wait_in_order_while_the_ring_is_full) {
  const PipeEnds ends = make_pipe();
  const std::string text(60'000, 'x');
  int sent = 0;
  for (; ends.near->send(0, std::to_string(sent) + text).ok(); ++sent) {
  }
  EXPECT_EQ(ends.near->send(0, text).code, Code::would_block);
  for (int i = 0; i < 5; ++i) {
    const std::string message = std::to_string(sent++) + text;
    ASSERT_TRUE(ends.near->reserve(message.size()).ok());
    ends.near->send_reserved(0, message);
  }
  EXPECT_TRUE(ends.near->wants_room());
  EXPECT_EQ(ends.near->send(0, "x").code, Code::would_block)
      << "a short message must not overtake the waiting ones";
  int got = 0;
  while (got < sent) {
    for (const std::string& message : read_all(*ends.far)) EXPECT_EQ(message, std::to_string(got++) + text);
    (void)ends.near->flush();
  }
  EXPECT_FALSE(ends.near->wants_room());
  EXPECT_TRUE(ends.near->send(0, "x").ok());
}

TEST(MessagePipe, holds_back_what_comes_behind_an_empty_place_of_the_same_channel_only) {
  const PipeEnds ends = make_pipe();
  ASSERT_TRUE(ends.near->reserve(5).ok());
  const auto first = ends.near->take_place(0);
  ASSERT_TRUE(ends.near->reserve(5).ok());
  const auto given_up = ends.near->take_place(0);
  ASSERT_TRUE(ends.near->send(0, "behind").ok());
  ASSERT_TRUE(ends.near->send(1, "beside").ok());
  EXPECT_EQ(read_all(*ends.far), std::vector<std::string>{"beside"});
  EXPECT_FALSE(ends.near->wants_room());
  ends.near->fill_place(first, "first");
  EXPECT_EQ(read_all(*ends.far), std::vector<std::string>{"first"});
  ends.near->give_up_place(0, given_up, 5);
  EXPECT_EQ(read_all(*ends.far), std::vector<std::string>{"behind"});
}

TEST(MessagePipe, the_reserved_bytes_have_a_limit_and_are_given_back) {
  const PipeEnds ends = make_pipe(256 * 1024, 200'000);
  ASSERT_TRUE(ends.near->reserve(65'000).ok());
  ASSERT_TRUE(ends.near->reserve(65'000).ok());
  ASSERT_TRUE(ends.near->reserve(65'000).ok());
  EXPECT_EQ(ends.near->reserve(65'000).code, Code::would_block);
  ends.near->cancel_reservation(65'000);
  EXPECT_TRUE(ends.near->reserve(65'000).ok());
  ends.near->send_reserved(0, std::string(65'000, 'x'));
  EXPECT_TRUE(ends.near->reserve(65'000).ok()) << "bytes in the ring no longer count as reserved";
}

TEST(MessagePipe, the_bell_is_rung_only_for_a_sleeping_reader) {
  const PipeEnds ends = make_pipe();
  const auto bell_rang = [&] {
    char ring = 0;
    return ::read(ends.far->bell(), &ring, sizeof ring) > 0;
  };
  ASSERT_TRUE(ends.near->send(0, "awake").ok());
  EXPECT_FALSE(bell_rang());
  (void)read_all(*ends.far);
  ASSERT_TRUE(ends.far->arm());
  ASSERT_TRUE(ends.near->send(0, "asleep").ok());
  ASSERT_TRUE(ends.near->send(0, "and again").ok());
  EXPECT_TRUE(bell_rang());
}

TEST(MessagePipe, a_bell_that_its_waiter_never_reads_rings_for_every_sleep) {
  const PipeEnds ends = make_pipe();
  Epoll epoll = Epoll::create().value();
  ASSERT_TRUE(epoll.add(ends.far->bell(), EPOLLIN | EPOLLET, 1));
  std::array<epoll_event, 1> events{};
  for (int sleep = 0; sleep < 2000; ++sleep) {
    while (!ends.far->arm()) ASSERT_TRUE(read_all(*ends.far).empty());
    ASSERT_TRUE(ends.near->send(0, "asleep").ok());
    ASSERT_EQ(::epoll_wait(epoll.fd(), events.data(), 1, 10'000), 1) << sleep;
    ASSERT_EQ(read_all(*ends.far).size(), 1U);
  }
}

TEST(MessagePipe, nothing_keeps_the_reader_of_an_idle_pipe_from_sleeping) {
  const PipeEnds ends = make_pipe();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(ends.far->arm()) << "of a hundred idle pipes one would always send its reader around again";
    ends.far->reader().disarm();
  }
}

TEST(MessagePipe, a_bell_whose_other_end_waits_and_is_full_keeps_nobody_waiting) {
  const PipeEnds ends = make_pipe();
  ASSERT_EQ(::fcntl(ends.near->descriptors()[1], F_SETFL, 0), 0);  // the end that `far` rings
  for (int sleep = 0; sleep < 2000; ++sleep) {                     // more than a bell holds; none is drained
    (void)ends.near->reader().arm();
    ASSERT_TRUE(ends.far->send(0, "asleep").ok());
    ASSERT_EQ(read_all(*ends.near).size(), 1U);
  }
}

TEST(MessagePipe, a_file_that_is_no_valid_pipe_is_not_adopted) {
  const auto adopt = [](UniqueFd file) {
    return MessagePipe::adopt(std::move(file), UniqueFd(), UniqueFd(), 1 << 20).code();
  };
  UniqueFd growing = create_memory_file("test", 1 << 20).value();
  EXPECT_EQ(adopt(growing.dup().value()), Code::corrupt)
      << "without the seal the peer could shrink the file while it is mapped";
  ASSERT_TRUE(seal_memory_file(growing.get(), F_SEAL_SHRINK).ok());
  EXPECT_EQ(adopt(growing.dup().value()), Code::corrupt) << "the file has no header";
  UniqueFd small = create_memory_file("test", 100).value();
  ASSERT_TRUE(seal_memory_file(small.get(), F_SEAL_SHRINK).ok());
  EXPECT_EQ(adopt(std::move(small)), Code::corrupt);
  EXPECT_EQ(adopt(UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC))), Code::corrupt)
      << "this is no memory file";
  // A header whose sizes do not fit the file.
  const auto pipe = MessagePipe::create(256 * 1024, 1 << 20).value();
  const UniqueFd file(::dup(pipe->descriptors()[0]));
  Mapping header = Mapping::of_file(file.get(), 0, 4096, Mapping::Access::read_write).value();
  for (const std::uint64_t ring_bytes : {std::uint64_t{0}, std::uint64_t{4096}, std::uint64_t{300'000},
                                         std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    reinterpret_cast<PipeHeader*>(header.data())->ring_bytes = ring_bytes;
    EXPECT_EQ(adopt(file.dup().value()), Code::corrupt) << ring_bytes;
  }
}

}  // namespace
}  // namespace headrace::host_link
