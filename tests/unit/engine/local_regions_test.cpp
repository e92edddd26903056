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
  Result<void> ask_peers(std::span<const IdRange> ranges, Deadline) override {
    asked.assign(ranges.begin(), ranges.end());
    return answer;
  }
  bool used = false;
  Result<void> answer;
  std::vector<IdRange> asked;
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
