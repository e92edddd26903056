// SPDX-License-Identifier: Apache-2.0
// Metadata that does not come from the region's owner: nothing is moved that the owner has not registered.
#include "backends/shm/backend.hpp"
#include "support/plugin_instance.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace headrace::shm {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t region_bytes = 4096;

class ShmForgedMetadata : public ::testing::TestWithParam<test::Memory::Kind> {
 protected:
  static std::unique_ptr<test::Instance> open(test::World& world, const char* name,
                                              std::uint64_t incarnation) {
    return std::make_unique<test::Instance>(
        world, plugin::table<ShmBackend>(), test::Settings{},
        test::PluginHost::Args{.agent_name = name, .incarnation = incarnation});
  }

  /// Moves the first page of the peer's region to or from ours.
  test::PostEnd move(headrace_op_v1 op, const test::Remote& remote) {
    const auto local = test::uniform_side(our_region_.handle(), 0, region_bytes, region_bytes);
    const auto there = test::uniform_side(remote.handle(), 0, region_bytes, region_bytes);
    try {
      test::Request request(*initiator, op, &link_, local, there, 1);
      return request.run();
    } catch (const std::runtime_error& refused) {
      return {{Code::corrupt}, refused.what()};
    }
  }

  test::PostEnd move(headrace_op_v1 op, const test::RegionFacts& told) {
    return move(op, test::Remote(link_, told));
  }

  test::World world;
  const std::unique_ptr<test::Instance> owner = open(world, "owner", 1);
  const std::unique_ptr<test::Instance> initiator = open(world, "initiator", 2);
  const test::Link link_ = initiator->connect(*owner);
  // One piece of memory, of which the second half is never registered.
  const test::Memory owners_memory{GetParam(), 2 * region_bytes, 1};
  const test::Region region{*owner, owners_memory, 0, region_bytes};
  const test::Memory our_memory{test::Memory::Kind::plain, region_bytes, 2};

 private:
  const test::Region our_region_{*initiator, our_memory};
};

TEST_P(ShmForgedMetadata, that_names_another_place_moves_nothing) {
  const std::vector<std::byte> theirs(owners_memory.bytes().begin(), owners_memory.bytes().end());
  const std::vector<std::byte> ours(our_memory.bytes().begin(), our_memory.bytes().end());
  test::RegionFacts told = region.facts();
  told.address += region_bytes;
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    const test::PostEnd end = move(op, told);
    EXPECT_EQ(end.status.code, Code::corrupt);
    EXPECT_THAT(end.text, HasSubstr("fetch its metadata from the peer itself"));
  }
  EXPECT_TRUE(test::same_bytes(owners_memory.bytes(), theirs));
  EXPECT_TRUE(test::same_bytes(our_memory.bytes(), ours));
}

TEST_P(ShmForgedMetadata, that_makes_a_region_longer_moves_nothing) {
  test::RegionFacts told = region.facts();
  told.length = 2 * region_bytes;
  EXPECT_EQ(move(HEADRACE_WRITE, told).status.code, Code::corrupt);
  EXPECT_TRUE(move(HEADRACE_READ, region.facts()).status.ok()) << "what the owner says is moved";
  EXPECT_TRUE(test::same_bytes(our_memory.bytes(), owners_memory.bytes().first(region_bytes)));
}

TEST_P(ShmForgedMetadata, of_a_region_that_comes_later_is_not_believed_once_it_is_there) {
  test::RegionFacts told = region.facts();
  told.id = region.id() + 1;
  told.address += region_bytes;
  const test::Remote remote(link_, told);
  const test::Memory later_memory{GetParam(), region_bytes, 3};
  const test::Region later(*owner, later_memory);
  ASSERT_EQ(later.id(), told.id);
  EXPECT_EQ(move(HEADRACE_WRITE, remote).status.code, Code::corrupt);
}

TEST_P(ShmForgedMetadata, that_leads_to_another_agent_makes_no_link) {
  const test::Link link = initiator->try_connect("somebody", 1, owner->connection_info()).value();
  EXPECT_TRUE(world.until([&] { return link.lost(); })) << world.describe();
  EXPECT_THAT(initiator->host().link(link.token())->lost_text, HasSubstr("leads to another agent"));
}

INSTANTIATE_TEST_SUITE_P(of_each_kind_of_memory, ShmForgedMetadata,
                         ::testing::Values(test::Memory::Kind::plain, test::Memory::Kind::shared));

}  // namespace
}  // namespace headrace::shm
