// SPDX-License-Identifier: Apache-2.0
// Long writes, which their owner copies out of the writer's memory, and what is sent where it may not.
#include "support/forbidden_call.hpp"
#include "unit/rail/shm/two_nics.hpp"

#include <sys/syscall.h>

#include <cerrno>

namespace headrace::rail::shm {
namespace {

using test_nics::connect;
using test_nics::Kind;
using test_nics::NearNic;

constexpr std::size_t long_bytes = 1'500'000;  // more than the rings hold, and than one look copies

struct TwoNearNics {
  explicit TwoNearNics(const Options& options = {})
      : a(folder.path(), long_bytes, options), b(folder.path(), long_bytes, options) {
    a.fill('a');
    peer = connect(a, b);
    auto loaded = a.nic->load_memory(peer, b.registered.key);
    EXPECT_TRUE(loaded);
    remote = *loaded;
  }
  Status write(std::uint64_t bytes, std::uint64_t token = 1, std::uint64_t offset = 0) {
    const std::array moves{Move{a.registered.id, remote, offset, offset, bytes}};
    return a.nic->post_write({peer, moves, 7, token});
  }
  Status read(std::uint64_t bytes, std::uint64_t token = 1) {
    const std::array moves{Move{a.registered.id, remote, 0, 0, bytes}};
    return a.nic->post_read({peer, moves, token});
  }
  bool arrives() {
    return a.until([&] {
      b.poll();
      return a.find(Kind::ended) != nullptr;
    });
  }

  test::TemporaryFolder folder;
  NearNic a, b;
  PeerId peer{};
  RemoteId remote{};
};

TEST(ShmCopies, a_long_write_needs_its_writer_no_more_once_it_was_told) {
  TwoNearNics nics;
  ASSERT_TRUE(nics.write(long_bytes).ok());
  nics.a.poll();
  ASSERT_TRUE(nics.b.until([&] { return nics.b.find(Kind::marked) != nullptr; }));
  EXPECT_EQ(nics.a.memory, nics.b.memory);
  ASSERT_TRUE(nics.arrives());
  EXPECT_TRUE(nics.a.find(Kind::ended)->status.ok());
}

TEST(ShmCopies, one_look_copies_a_part_of_a_long_write) {
  TwoNearNics nics;
  ASSERT_TRUE(nics.write(long_bytes).ok());
  nics.a.poll();
  nics.b.poll();
  EXPECT_NE(nics.b.memory.front(), 0);
  EXPECT_EQ(nics.b.memory.back(), 0);
  EXPECT_FALSE(nics.b.nic->arm()) << "it would sleep on the rest";
}

TEST(ShmCopies, many_ranges_of_any_length_arrive) {
  TwoNearNics nics;
  std::vector<Move> moves;
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < 500; ++i) {
    const std::uint64_t bytes = 1 + i * 37 % 5000;
    moves.push_back({nics.a.registered.id, nics.remote, at, at + 1, bytes});
    at += bytes + 3;
  }
  ASSERT_TRUE(nics.a.nic->post_write({nics.peer, moves, 7, 1}).ok());
  ASSERT_TRUE(nics.arrives());
  for (const Move& move : moves)
    EXPECT_EQ(std::string_view(nics.a.memory.data() + move.local_offset, move.bytes),
              std::string_view(nics.b.memory.data() + move.remote_offset, move.bytes));
  EXPECT_EQ(nics.b.memory[moves[0].remote_offset + moves[0].bytes], 0) << "a byte beside";
}

TEST(ShmCopies, memory_that_goes_in_mid_copy_is_left_alone_and_the_write_is_refused) {
  TwoNearNics nics;
  ASSERT_TRUE(nics.write(long_bytes).ok());
  nics.a.poll();
  nics.b.poll();
  nics.b.nic->deregister(nics.b.registered.id);
  const auto then = nics.b.memory;
  ASSERT_TRUE(nics.arrives());
  EXPECT_EQ(nics.a.find(Kind::ended)->status.code, Code::not_found);
  EXPECT_EQ(nics.b.memory, then);
  EXPECT_EQ(nics.b.find(Kind::marked), nullptr);
}

TEST(ShmCopies, a_writer_that_drops_its_peer_in_mid_copy_is_not_counted) {
  TwoNearNics nics;
  ASSERT_TRUE(nics.write(long_bytes).ok());
  nics.a.poll();
  nics.b.poll();
  nics.a.nic->drop_peer(nics.peer);
  nics.a.poll();
  ASSERT_NE(nics.a.find(Kind::dropped), nullptr);
  nics.a.fill('z');  // its next use
  ASSERT_TRUE(nics.b.until([&] { return nics.b.find(Kind::lost) != nullptr; }));
  EXPECT_EQ(nics.b.find(Kind::marked), nullptr);
}

TEST(ShmCopies, a_long_read_is_copied_by_the_side_that_reads) {
  TwoNearNics nics;
  nics.b.fill('b');
  ASSERT_TRUE(nics.read(long_bytes).ok());
  nics.a.poll();
  nics.b.poll();
  ASSERT_TRUE(nics.a.until([&] { return nics.a.memory == nics.b.memory; }));
  EXPECT_EQ(nics.a.find(Kind::ended), nullptr) << "its owner has not said that the memory was there";
  ASSERT_TRUE(nics.arrives());
  EXPECT_TRUE(nics.a.find(Kind::ended)->status.ok());
}

TEST(ShmCopies, a_read_of_memory_that_goes_while_it_is_copied_is_refused) {
  TwoNearNics nics;
  ASSERT_TRUE(nics.read(long_bytes).ok());
  nics.a.poll();
  nics.b.poll();
  nics.b.nic->deregister(nics.b.registered.id);
  ASSERT_TRUE(nics.arrives());
  EXPECT_EQ(nics.a.find(Kind::ended)->status.code, Code::not_found);
}

TEST(ShmCopies, bytes_that_were_copied_when_the_writer_had_closed_are_not_taken) {
  const test::TemporaryFolder folder;
  auto epoll = Epoll::create();
  auto listener = UnixListener::listen(folder.path() + "/here.sock");
  ASSERT_TRUE(listener);
  auto writer = ShmStream::connect(listener->path(), {});
  ASSERT_TRUE(writer) << writer.error().message;
  auto owner = ShmStream::accept(*listener->accept(), {});
  ASSERT_TRUE((*owner)->watch(*epoll, 1));
  ASSERT_TRUE((*owner)->open() && (*owner)->is_open());
  (*owner)->greeted();
  ASSERT_TRUE((*writer)->peer_fetches());
  std::array<char, 10> to{}, from{"123456789"};
  const iovec here{to.data(), to.size()}, there{from.data(), from.size()};
  const auto copied = (*owner)->fetch({&here, 1}, {&there, 1});
  ASSERT_TRUE(copied) << copied.error().message;
  EXPECT_EQ(*copied, 10U);
  EXPECT_EQ(to, from);
  writer->reset();
  const auto late = (*owner)->fetch({&here, 1}, {&there, 1});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.code(), Code::peer_lost);
}

TEST(ShmCopies, where_the_system_forbids_them_the_bytes_are_sent) {
  EXPECT_TRUE(test::without_call(SYS_process_vm_readv, EPERM, [] {
    TwoNearNics nics;
    return nics.write(long_bytes).ok() && nics.arrives() && nics.a.memory == nics.b.memory &&
           nics.b.count(Kind::marked) == 1;
  }));
}

TEST(ShmCopies, where_the_system_forbids_them_later_the_bytes_are_sent) {
  TwoNearNics nics;
  ASSERT_TRUE(nics.write(long_bytes, 1).ok());
  ASSERT_TRUE(nics.read(100'000, 2).ok());
  EXPECT_TRUE(test::without_call(SYS_process_vm_readv, EPERM, [&] {
    return nics.a.until([&] {
      nics.b.poll();
      return nics.a.count(Kind::ended) == 2;
    }) && nics.a.find(Kind::ended)->status.ok() &&
           nics.a.memory == nics.b.memory && nics.b.count(Kind::marked) == 1;
  }));
}

TEST(ShmCopies, an_idle_pair_sleeps_and_a_write_wakes_it) {
  TwoNearNics nics;
  ASSERT_TRUE(nics.write(10).ok());
  ASSERT_TRUE(nics.arrives());
  const auto asleep = [](NearNic& each) {
    for (int i = 0; i < 10 && !each.nic->arm(); ++i) each.poll();
    pollfd waited{each.nic->descriptor(), POLLIN, 0};
    return each.nic->arm() && ::poll(&waited, 1, 0) == 0;
  };
  ASSERT_TRUE(asleep(nics.a) && asleep(nics.b));
  ASSERT_TRUE(nics.write(10, 2).ok());
  nics.a.poll();
  pollfd waited{nics.b.nic->descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&waited, 1, 5000), 1);
  nics.b.poll();
  EXPECT_EQ(nics.b.count(Kind::marked), 2U);
}

}  // namespace
}  // namespace headrace::rail::shm
