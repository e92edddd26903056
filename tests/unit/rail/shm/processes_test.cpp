// SPDX-License-Identifier: Apache-2.0
// Two processes of this host, one of which is killed or stopped.
#include "unit/rail/shm/near_process.hpp"
#include "unit/rail/shm/two_nics.hpp"

#include <cstring>
#include <functional>

namespace headrace::rail::shm {
namespace {

using test_nics::Kind;
using test_nics::NearNic;
using test_nics::NearProcess;

constexpr std::size_t near_bytes = 4 << 20;
constexpr std::size_t slot_bytes = 200'000;

/// A process that runs `body` with a NIC in the folder.
std::function<void()> with_nic(const std::string& folder, const std::function<void(NearNic&)>& body) {
  return [=] {
    NearNic nic(folder, near_bytes);
    NearProcess::say(nic);
    body(nic);
  };
}

void poll_for_ever(NearNic& nic) {
  for (;;) nic.poll_or_sleep();
}

/// Writes pieces to the peer that joins, each with its number as mark and first bytes.
void write_for_ever(NearNic& nic) {
  nic.until([&] { return nic.find(Kind::joined) != nullptr && nic.find(Kind::received) != nullptr; });
  const PeerId peer = nic.find(Kind::joined)->peer;
  const auto loaded =
      nic.nic->load_memory(peer, std::string(nic.memory.data(), nic.find(Kind::received)->bytes));
  if (!loaded) ::_exit(2);
  for (std::uint32_t number = 0;; ++number) {
    const std::uint64_t at = number % 20 * slot_bytes;
    std::memset(nic.memory.data() + at, static_cast<int>(number % 251), slot_bytes);
    const std::array moves{Move{nic.registered.id, *loaded, at, at, slot_bytes}};
    nic.events.clear();
    if (!nic.nic->post_write({peer, moves, number, number}).ok()) ::_exit(3);
    nic.until([&] { return nic.find(Kind::ended) != nullptr; });
  }
}

TEST(ShmProcesses, the_target_of_writes_is_killed_and_all_posts_end) {
  const test::TemporaryFolder folder;
  NearNic here(folder.path(), near_bytes);
  for (const std::size_t ends_before : {0U, 3U, 40U}) {
    here.events.clear();
    const NearProcess target(with_nic(folder.path(), poll_for_ever));
    const auto peer = here.nic->add_peer(target.address, "hello");
    ASSERT_TRUE(peer) << peer.error().message;
    ASSERT_TRUE(here.until([&] { return here.find(Kind::ready) != nullptr; }));
    const auto loaded = here.nic->load_memory(*peer, target.key);
    ASSERT_TRUE(loaded);
    const std::array moves{Move{here.registered.id, *loaded, 0, 0, near_bytes / 4}};
    std::size_t posted = 0;
    const auto post_more = [&] {
      while (posted - here.count(Kind::ended) < 8 && here.nic->post_write({*peer, moves, 1, posted}).ok())
        ++posted;
      return here.count(Kind::ended) >= ends_before;
    };
    ASSERT_TRUE(here.until(post_more));
    target.send(SIGKILL);
    ASSERT_TRUE(here.until([&] { return here.find(Kind::lost) != nullptr; }));
    EXPECT_EQ(here.count(Kind::ended), posted);
    EXPECT_EQ(here.find(Kind::lost)->status.code, Code::peer_lost);
    EXPECT_EQ(here.nic->post_write({*peer, moves, 1, 9999}).code, Code::peer_lost);
    here.nic->drop_peer(*peer);
    EXPECT_TRUE(here.until([&] { return here.find(Kind::dropped) != nullptr; }));
  }
}

TEST(ShmProcesses, a_writer_is_stopped_and_killed_and_every_mark_had_its_bytes) {
  const test::TemporaryFolder folder;
  NearNic here(folder.path(), near_bytes);
  for (const std::size_t marks_before : {1U, 30U}) {
    here.events.clear();
    const NearProcess writer(with_nic(folder.path(), [](NearNic& nic) {
      if (!nic.nic->post_receive({nic.registered.id, 0, 4096}, 1).ok()) ::_exit(4);
      write_for_ever(nic);
    }));
    const auto peer = here.nic->add_peer(writer.address, "hello");
    ASSERT_TRUE(peer) << peer.error().message;
    ASSERT_TRUE(here.until([&] { return here.find(Kind::ready) != nullptr; }));
    std::memcpy(here.memory.data(), here.registered.key.data(), here.registered.key.size());
    ASSERT_TRUE(here.nic->post_message(*peer, {here.registered.id, 0, here.registered.key.size()}, 1).ok());
    std::size_t marks = 0;
    const auto look_at_marks = [&] {
      for (const Event& event : here.events) {
        if (event.kind != Kind::marked) continue;
        const char* const slot = here.memory.data() + event.mark % 20 * slot_bytes;
        EXPECT_EQ(static_cast<unsigned char>(*slot), event.mark % 251);
        EXPECT_EQ(std::memcmp(slot, slot + 1, slot_bytes - 1), 0) << "a mark before its bytes";
        ++marks;
      }
      std::erase_if(here.events, [](const Event& event) { return event.kind == Kind::marked; });
      return marks >= marks_before;
    };
    ASSERT_TRUE(here.until(look_at_marks));
    writer.send(SIGSTOP);
    for (int i = 0; i < 20; ++i) {
      here.poll_or_sleep();
      look_at_marks();
    }
    EXPECT_EQ(here.find(Kind::lost), nullptr) << "a stopped peer is not dead";
    writer.send(SIGKILL);
    ASSERT_TRUE(here.until([&] {
      look_at_marks();
      return here.find(Kind::lost) != nullptr;
    }));
    here.nic->drop_peer(*peer);
  }
}

TEST(ShmProcesses, a_peer_that_is_stopped_is_dropped_at_once) {
  const test::TemporaryFolder folder;
  NearNic here(folder.path(), near_bytes);
  const NearProcess target(with_nic(folder.path(), poll_for_ever));
  const auto peer = here.nic->add_peer(target.address, "hello");
  ASSERT_TRUE(peer);
  ASSERT_TRUE(here.until([&] { return here.find(Kind::ready) != nullptr; }));
  const auto loaded = here.nic->load_memory(*peer, target.key);
  ASSERT_TRUE(loaded);
  target.send(SIGSTOP);
  const std::array moves{Move{here.registered.id, *loaded, 0, 0, near_bytes}};
  for (std::uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(here.nic->post_write({*peer, moves, 1, i}).ok());
  for (int i = 0; i < 5; ++i) here.poll_or_sleep();
  here.nic->drop_peer(*peer);
  here.poll();
  EXPECT_EQ(here.count(Kind::ended), 10U);
  EXPECT_NE(here.find(Kind::dropped), nullptr);
}

TEST(ShmProcesses, a_peer_that_died_is_told_from_one_of_another_host) {
  const test::TemporaryFolder folder;
  NearNic here(folder.path(), 4096);
  std::string address;
  {
    const NearProcess target(with_nic(folder.path(), poll_for_ever));
    address = target.address;
  }
  const auto added = here.nic->add_peer(address, "hello");
  ASSERT_FALSE(added);
  EXPECT_EQ(added.code(), Code::peer_lost) << added.error().message;
  const NearNic next(folder.path(), 4096);  // it removes what the dead one left
  EXPECT_EQ(here.nic->add_peer(address, "hello").code(), Code::not_supported);
}

}  // namespace
}  // namespace headrace::rail::shm
