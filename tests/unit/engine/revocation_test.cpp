// SPDX-License-Identifier: Apache-2.0
#include "engine/revocation.hpp"
#include "support/median_time.hpp"
#include "unit/engine/parts.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

const headrace_backend_v1 backend_of_revocation = recording_table("first");

class RevocationTest : public testing::Test {
 protected:
  RevocationTest() : backend(parts.add(backend_of_revocation)) {}
  /// The latest message to a peer.
  template <class Message>
  static Message last() {
    return std::get<Message>(wire::decode_agent_message(Recorded::last_message()).value());
  }
  Result<void> ask(const std::function<void()>& give_back = [] {}) {
    return parts.revocation.ask_peers(ranges, 1, Deadline::at_ns(parts.clock.now_ns()), give_back);
  }

  Parts parts;
  BackendInstance& backend;
  const std::vector<IdRange> ranges{{1, 1}};
};

TEST_F(RevocationTest, no_peer_is_asked_without_a_link) { EXPECT_TRUE(ask()); }

TEST_F(RevocationTest, a_peer_that_does_not_answer_is_named) {
  parts.ready_link(parts.import("there"), backend);
  const auto asked = ask();
  EXPECT_EQ(asked.code(), Code::timed_out);
  EXPECT_EQ(asked.error().message,
            "no answer from there: the regions stay registered; try again, or forget the peer");
  EXPECT_EQ(last<wire::Revoke>().ranges, ranges);
}

TEST_F(RevocationTest, the_round_ends_with_the_answers_of_all_links) {
  const auto first = parts.ready_link(parts.import("first"), backend);
  const auto second = parts.ready_link(parts.import("second"), backend);
  std::thread answering([&] {
    while (Recorded::message_count() < 2) std::this_thread::yield();
    parts.revocation.answered(*first, last<wire::Revoke>().sequence);
    parts.links.end(second);  // a peer that is gone need not answer
  });
  EXPECT_TRUE(parts.revocation.ask_peers(ranges, 1, Deadline::never(), [] {}));
  answering.join();
}

TEST_F(RevocationTest, a_link_that_is_made_during_a_round_is_asked) {
  const auto first = parts.ready_link(parts.import("first"), backend);
  std::thread joining([&] {
    while (Recorded::message_count() == 0) std::this_thread::yield();
    const auto second = parts.ready_link(parts.import("second"), backend);
    parts.revocation.answered(*first, last<wire::Revoke>().sequence);
    while (Recorded::message_count() < 2) std::this_thread::yield();
    parts.revocation.answered(*second, last<wire::Revoke>().sequence);
  });
  EXPECT_TRUE(parts.revocation.ask_peers(ranges, 1, Deadline::never(), [] {}));
  joining.join();
  EXPECT_EQ(Recorded::message_count(), 2U);
}

TEST_F(RevocationTest,
       a_peer_that_connects_after_the_last_answer_and_before_the_backends_refuse_is_waited_for) {
  const auto asked = ask([&] {
    EXPECT_EQ(Recorded::message_count(), 0U);
    parts.ready_link(parts.import("late"), backend);
  });
  EXPECT_EQ(asked.code(), Code::timed_out);
  EXPECT_EQ(asked.error().message.substr(0, 44), "no answer from late: it connected while the ");
  (void)parts.progress->poll();
  EXPECT_EQ(last<wire::Revoke>().ranges, ranges);
}

TEST_F(RevocationTest, nothing_is_given_back_while_an_answer_is_missing) {
  parts.ready_link(parts.import("there"), backend);
  bool given_back = false;
  EXPECT_EQ(ask([&] { given_back = true; }).code(), Code::timed_out);
  EXPECT_FALSE(given_back);
}

TEST_F(RevocationTest, a_full_link_is_asked_again_after_a_while) {
  parts.ready_link(parts.import("there"), backend);
  Recorded::full = true;
  std::thread emptying([&] {
    std::this_thread::yield();
    Recorded::full = false;
    while (Recorded::message_count() == 0) parts.clock.advance(1ms);
    parts.revocation.answered(*parts.links.all().front(), last<wire::Revoke>().sequence);
  });
  EXPECT_TRUE(parts.revocation.ask_peers(ranges, 1, Deadline::never(), [] {}));
  emptying.join();
}

TEST_F(RevocationTest, a_peers_region_is_gone_at_once_and_the_answer_follows) {
  const auto life = parts.import("there");
  const auto link = parts.ready_link(life, backend);
  const std::uint64_t epoch = life->epoch.load();
  parts.revocation.asked(link, {42, 2, ranges});
  EXPECT_EQ(life->regions.find(1), nullptr);
  EXPECT_GT(life->epoch.load(), epoch);
  EXPECT_EQ(last<wire::Revoked>().sequence, 42U);
}

TEST_F(RevocationTest, an_answer_that_finds_no_room_is_sent_later) {
  const auto link = parts.ready_link(parts.import("there"), backend);
  Recorded::full = true;
  parts.revocation.asked(link, {42, 2, ranges});
  EXPECT_EQ(Recorded::message_count(), 0U);
  Recorded::full = false;
  parts.clock.advance(1ms);
  (void)parts.progress->poll();
  EXPECT_EQ(last<wire::Revoked>().sequence, 42U);
}

/// How often the backend was asked to send while it was full.
std::size_t attempts = 0;

TEST_F(RevocationTest, answers_that_find_no_room_are_tried_once_a_while_however_many_they_are) {
  static headrace_backend_v1 table = recording_table("counting");
  table.notify = [](void*, void*, uint32_t, const void*, size_t) {
    ++attempts;
    return headrace_status_v1{HEADRACE_WOULD_BLOCK, 0, HEADRACE_NO_PAGE};
  };
  const auto link = parts.ready_link(parts.import("there"), parts.add(table));
  constexpr std::size_t asked = 100;
  for (std::size_t i = 0; i < asked; ++i) parts.revocation.asked(link, {i, 2, ranges});
  attempts = 0;
  parts.clock.advance(1ms);
  (void)parts.progress->poll();
  EXPECT_EQ(attempts, 1U);
}

wire::Metadata metadata_of(std::uint64_t version, bool partial) {
  wire::Metadata m;
  m.name = "there";
  m.incarnation = 1;
  m.version = version;
  m.partial = partial;
  m.ids = {1};
  m.addresses = {0x1000};
  m.lengths = {4096};
  m.kinds = {HEADRACE_DRAM};
  m.masks = {0};
  m.named.push_back({1, "cache", ""});
  return m;
}

TEST_F(RevocationTest, metadata_from_before_a_revocation_does_not_bring_the_region_back) {
  const auto life = parts.import("there");
  const auto link = parts.ready_link(life, backend);
  parts.revocation.asked(link, {42, 3, ranges});
  for (const std::uint64_t version : {1U, 2U})
    for (const bool partial : {false, true}) {
      ASSERT_TRUE(parts.peers.import(metadata_of(version, partial)).ok());
      EXPECT_EQ(life->regions.find(1), nullptr) << "version " << version << (partial ? ", a part" : "");
      EXPECT_FALSE(life->regions.find_name("cache"));
    }
  ASSERT_TRUE(parts.peers.import(metadata_of(4, false)).ok());
  EXPECT_NE(life->regions.find(1), nullptr) << "the revocation has failed: the region is there again";
}

TEST_F(RevocationTest, a_peer_that_takes_no_answers_loses_its_link_when_too_many_wait) {
  const auto link = parts.ready_link(parts.import("there"), backend);
  Recorded::full = true;
  for (std::size_t i = 0; i < Revocation::most_pending; ++i) parts.revocation.asked(link, {i, 2, ranges});
  EXPECT_EQ(link->state(), LinkState::ready);
  parts.revocation.asked(link, {99'999, 2, ranges});
  EXPECT_EQ(link->state(), LinkState::lost);
  EXPECT_EQ(
      link->lost_text(),
      "it has more than 4096 questions to revoke regions, or more than 1056764 ranges in them, that wait "
      "for our answer");
  EXPECT_EQ(parts.counters.links_flooded.value(), 1U);
  (void)parts.progress->poll();
  EXPECT_EQ(Recorded::disconnects, 1);
}

TEST_F(RevocationTest, many_ranges_that_wait_end_the_link_too_slow) {
  const auto link = parts.ready_link(parts.import("there"), backend);
  Recorded::full = true;
  std::vector<IdRange> many(wire::revoke_ranges);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = {static_cast<std::uint32_t>(i + 1), 1};
  for (std::size_t i = 0; i < Revocation::most_pending_ranges / many.size(); ++i)
    parts.revocation.asked(link, {i, 2, many});
  EXPECT_EQ(link->state(), LinkState::ready);
  parts.revocation.asked(link, {99'999, 2, many});
  EXPECT_EQ(link->state(), LinkState::lost);
}

TEST_F(RevocationTest, ranges_in_any_order_that_overlap_revoke_each_of_their_regions) {
  const auto life = parts.import("there");
  const auto link = parts.ready_link(life, backend);
  {
    const GatePass pass(link->gate());
    for (std::uint32_t id = 1; id <= 20; ++id) ASSERT_TRUE(link->load(id, RemoteRegion{}.to_c(id, {})));
  }
  parts.revocation.asked(link, {42, 2, {{9, 4}, {1, 8}, {2, 1}, {10, 1}}});
  EXPECT_EQ(life->regions.find(1), nullptr);
  EXPECT_EQ(Recorded::unloaded, 12);
  EXPECT_EQ(last<wire::Revoked>().sequence, 42U);
}

/// What happens while the backend maps.
std::function<void()> while_it_maps;

headrace_backend_v1 mapping_table() {
  headrace_backend_v1 table = recording_table("mapping");
  table.info = [](void*, headrace_info_v1* info) {
    info->abilities = HEADRACE_REMOTE | HEADRACE_NOTIFY | HEADRACE_MAP;
    info->local_kinds = info->remote_kinds = HEADRACE_KIND_BIT(HEADRACE_DRAM);
  };
  table.map = [](void*, void*, headrace_map_v1* args, headrace_text_v1*) {
    while_it_maps();
    args->address = &Recorded::handle;
    args->length = 1;
    return int32_t{HEADRACE_OK};
  };
  table.unmap = [](void*, void*, void*) {};
  return table;
}

const headrace_backend_v1 backend_of_mappings = mapping_table();

TEST_F(RevocationTest, a_region_that_is_revoked_while_it_is_mapped_gives_no_mapping) {
  BackendInstance& mapping = parts.add(backend_of_mappings);
  const auto link = parts.ready_link(parts.import("there"), mapping);
  while_it_maps = [&] { parts.revocation.asked(link, {42, 2, ranges}); };
  const auto mapped = parts.mappings.map("there", {1}, 0ns);
  EXPECT_EQ(mapped.code(), Code::not_found);
  EXPECT_EQ(last<wire::Revoked>().sequence, 42U);
}

/// Peers and the mappings of their regions 1 to `count`.
class MappedRegions {
 public:
  MappedRegions(Parts& parts, BackendInstance& backend, const std::string& peer, std::uint32_t count)
      : life_(parts.import(peer)), link_(parts.ready_link(life_, backend)) {
    while_it_maps = [] {};
    std::vector<std::uint32_t> ids;
    for (std::uint32_t id = 1; id <= count; ++id) ids.push_back(id);
    const RemoteRegion row{.length = 1, .backends = 0xff, .kind = HEADRACE_DRAM};
    (void)life_->regions.merge(ids, std::vector(ids.size(), row), true);
    for (const std::uint32_t id : ids) mappings_.emplace_back(parts.mappings.map(peer, {id}, 0ns).value());
  }
  [[nodiscard]] const PeerLife& life() const { return *life_; }
  [[nodiscard]] std::vector<std::uint32_t> dead() const {
    std::vector<std::uint32_t> ids;
    for (std::size_t i = 0; i < mappings_.size(); ++i)
      if (!mappings_[i].alive()) ids.push_back(static_cast<std::uint32_t>(i + 1));
    return ids;
  }

 private:
  std::shared_ptr<PeerLife> life_;
  std::shared_ptr<Link> link_;
  std::vector<Mapping> mappings_;
};

TEST_F(RevocationTest, mappings_of_the_regions_that_their_peer_revokes_end_and_no_others) {
  BackendInstance& mapping = parts.add(backend_of_mappings);
  const MappedRegions there(parts, mapping, "there", 100), elsewhere(parts, mapping, "elsewhere", 100);
  const MappedRegions again(parts, mapping, "there", 100);
  parts.mappings.revoked(there.life(), std::vector<IdRange>{{3, 2}, {100, 5}});
  EXPECT_EQ(there.dead(), (std::vector<std::uint32_t>{3, 4, 100}));
  EXPECT_EQ(again.dead(), there.dead());
  EXPECT_TRUE(elsewhere.dead().empty());
}

TEST_F(RevocationTest, revoking_a_region_takes_the_same_time_however_many_are_mapped) {
  BackendInstance& mapping = parts.add(backend_of_mappings);
  const auto revoke_ns = [&](const std::string& peer, std::uint32_t count) {
    const MappedRegions mapped(parts, mapping, peer, count);
    return test::median_ns(101, [&](std::size_t i) {
      const IdRange one{static_cast<std::uint32_t>(1 + i), 1};
      parts.mappings.revoked(mapped.life(), {&one, 1});
    });
  };
  const double few = revoke_ns("few", 200), many = revoke_ns("many", 10'000);
  EXPECT_LE(many, 8 * few) << few << " ns of 200 mappings, " << many << " ns of 10,000";
}

}  // namespace
}  // namespace headrace::engine
