// SPDX-License-Identifier: Apache-2.0
#include "engine/local_regions.hpp"
#include "unit/engine/parts.hpp"

#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

const headrace_backend_v1 backend_of_regions = recording_table("first");

/// Users that use and answer as the test says.
struct ScriptedUsers final : RegionUsers {
  [[nodiscard]] bool in_use(std::span<const IdRange>) const override { return used; }
  Result<void> ask_peers(std::span<const IdRange> ranges, std::uint64_t version, Deadline,
                         const std::function<void()>& give_back) override {
    asked.assign(ranges.begin(), ranges.end());
    asked_in = version;
    if (meanwhile) meanwhile();
    if (answer) give_back();
    return answer ? late_answer : answer;
  }
  bool used = false;
  Result<void> answer, late_answer;
  std::vector<IdRange> asked;
  std::uint64_t asked_in = 0;
  std::function<void()> meanwhile;
};

class LocalRegionsTest : public testing::Test {
 protected:
  LocalRegionsTest() { parts.add(backend_of_regions); }
  RegionId add(const std::string& name = {}) {
    const MemoryRange range{parts.memory.data(), parts.memory.size()};
    return regions.add({&range, 1}, {.name = name}, {}).value().front().id;
  }
  Parts parts;
  ScriptedUsers users;
  LocalRegions regions{parts.self, parts.calls, parts.backends, users, *parts.progress, parts.callbacks};
};

TEST_F(LocalRegionsTest, a_region_is_found_until_it_is_deregistered) {
  const RegionId id = add();
  ASSERT_NE(regions.find(id.value), nullptr);
  EXPECT_EQ(Recorded::registered, 1);
  const std::uint64_t epoch = regions.epoch();
  ASSERT_TRUE(regions.deregister({&id, 1}, 0ns));
  EXPECT_EQ(regions.find(id.value), nullptr);
  EXPECT_EQ(Recorded::registered, 0);
  EXPECT_GT(regions.epoch(), epoch);
  EXPECT_EQ(users.asked, (std::vector<IdRange>{{id.value, 1}}));
  EXPECT_EQ(regions.deregister({&id, 1}, 0ns).code(), Code::not_found);
}

TEST_F(LocalRegionsTest, a_region_in_use_stays) {
  const RegionId id = add();
  users.used = true;
  EXPECT_EQ(regions.deregister({&id, 1}, 0ns).code(), Code::would_block);
  EXPECT_NE(regions.find(id.value), nullptr);
  EXPECT_TRUE(users.asked.empty()) << "no peer is asked while posts of our own run";
}

TEST_F(LocalRegionsTest, a_region_that_a_peer_does_not_let_go_of_stays) {
  const RegionId id = add();
  users.answer = Error{Code::timed_out, "no answer"};
  EXPECT_EQ(regions.deregister({&id, 1}, 0ns).code(), Code::timed_out);
  EXPECT_NE(regions.find(id.value), nullptr);
  EXPECT_EQ(Recorded::registered, 1);
}

TEST_F(LocalRegionsTest, the_version_rises_and_exports_leave_a_region_out_before_peers_are_asked) {
  const RegionId id = add();
  const std::uint64_t version = regions.version();
  wire::Metadata whole, update;
  users.meanwhile = [&] {
    whole = regions.exported({}).value();
    update = regions.exported({.since_version = version}).value();
  };
  ASSERT_TRUE(regions.deregister({&id, 1}, 0ns));
  EXPECT_GT(users.asked_in, version);
  EXPECT_EQ(whole.version, users.asked_in);
  EXPECT_TRUE(whole.ids.empty());
  EXPECT_EQ(update.gone, (std::vector<IdRange>{{id.value, 1}}));
  EXPECT_EQ(regions.version(), users.asked_in) << "nothing changes for peers after that";
}

TEST_F(LocalRegionsTest, a_region_that_stays_after_all_is_in_later_exports_and_updates) {
  const RegionId id = add();
  const std::uint64_t version = regions.version();
  users.answer = Error{Code::timed_out, "no answer"};
  ASSERT_EQ(regions.deregister({&id, 1}, 0ns).code(), Code::timed_out);
  EXPECT_GT(regions.version(), users.asked_in);
  EXPECT_EQ(regions.exported({}).value().ids, std::vector{id.value});
  for (const std::uint64_t since : {version, users.asked_in}) {
    const auto update = regions.exported({.since_version = since}).value();
    EXPECT_EQ(update.ids, std::vector{id.value});
    EXPECT_TRUE(update.gone.empty());
  }
  EXPECT_TRUE(regions.exported({.since_version = regions.version()}).value().ids.empty());
}

/// What happens while a backend registers a region.
std::function<void()> while_it_registers;

TEST_F(LocalRegionsTest, a_region_that_is_registered_while_another_thread_exports_is_in_the_next_update) {
  static headrace_backend_v1 table = recording_table("second");
  table.register_region = [](void*, const headrace_region_v1*, void** handle, headrace_text_v1*) {
    while_it_registers();
    *handle = &Recorded::handle;
    return int32_t{HEADRACE_OK};
  };
  parts.add(table);
  wire::Metadata exported;
  while_it_registers = [&] { exported = regions.exported({}).value(); };
  const RegionId id = add();
  EXPECT_TRUE(exported.ids.empty());
  EXPECT_EQ(regions.exported({.since_version = exported.version}).value().ids, std::vector{id.value});
  while_it_registers = [] {};
  const std::uint64_t version = regions.version();
  (void)add();
  EXPECT_EQ(regions.version(), version + 1) << "no export was made meanwhile";
}

TEST_F(LocalRegionsTest, memory_that_a_late_peer_may_still_use_stays_although_its_region_is_gone) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> kept = held;
  const MemoryRange range{parts.memory.data(), parts.memory.size()};
  RegisterOptions options;
  options.keep_alive = std::move(held);
  const RegionId id = regions.add({&range, 1}, options, {}).value().front().id;
  options = {};
  users.late_answer = Error{Code::timed_out, "no answer"};
  EXPECT_EQ(regions.deregister({&id, 1}, 0ns).code(), Code::timed_out);
  EXPECT_EQ(regions.find(id.value), nullptr);
  EXPECT_EQ(Recorded::registered, 0);
  EXPECT_FALSE(kept.expired());
}

TEST_F(LocalRegionsTest, a_region_that_our_own_post_uses_changes_nothing_for_peers) {
  const RegionId id = add();
  const std::uint64_t version = regions.version();
  users.used = true;
  EXPECT_EQ(regions.deregister({&id, 1}, 0ns).code(), Code::would_block);
  EXPECT_EQ(regions.version(), version);
}

TEST_F(LocalRegionsTest, names_are_unique_and_free_again_after_deregistration) {
  const RegionId id = add("cache");
  const MemoryRange range{parts.memory.data(), parts.memory.size()};
  EXPECT_EQ(regions.add({&range, 1}, {.name = "cache"}, {}).code(), Code::invalid_argument);
  ASSERT_TRUE(regions.deregister({&id, 1}, 0ns));
  EXPECT_NE(add("cache").value, id.value) << "ids are not used again";
}

TEST_F(LocalRegionsTest, a_name_that_a_reader_would_cut_off_or_obey_is_refused_with_the_name) {
  const MemoryRange range{parts.memory.data(), parts.memory.size()};
  const auto refused = regions.add({&range, 1}, {.name = std::string("half\0name", 9)}, {});
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_NE(refused.error().message.find("\"half\\x00name\""), std::string::npos) << refused.error().message;
}

TEST_F(LocalRegionsTest, an_address_is_looked_up_among_registered_regions) {
  const auto address = reinterpret_cast<std::uint64_t>(parts.memory.data());
  EXPECT_EQ(regions.look_by_address().at_address(address, 1), nullptr);
  const RegionId id = add();
  const LocalRegion* const found = regions.look_by_address().at_address(address + 100, 50);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->info.id, id);
  EXPECT_EQ(regions.look_by_address().at_address(address + 100, parts.memory.size()), nullptr);
}

TEST_F(LocalRegionsTest, an_export_has_the_regions_asked_for_and_an_update_what_is_gone) {
  const RegionId first = add(), second = add();
  const std::uint64_t version = regions.version();
  EXPECT_EQ(regions.exported({}).value().ids, (std::vector{first.value, second.value}));
  EXPECT_EQ(regions.exported({.regions = {second}}).value().ids, std::vector{second.value});
  ASSERT_TRUE(regions.deregister({&first, 1}, 0ns));
  const auto update = regions.exported({.since_version = version}).value();
  EXPECT_TRUE(update.ids.empty());
  EXPECT_EQ(update.gone, (std::vector<IdRange>{{first.value, 1}}));
  EXPECT_EQ(regions.exported({.regions = {first}}).code(), Code::not_found);
}

}  // namespace
}  // namespace headrace::engine
