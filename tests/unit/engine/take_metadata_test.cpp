// SPDX-License-Identifier: Apache-2.0
// Parts, updates and whole exports in any order: what is there at the end is what the latest of each says.
#include "engine/take_metadata.hpp"
#include "unit/engine/ids_of.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace headrace::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Ids = std::vector<std::uint32_t>;

wire::Metadata metadata(std::uint64_t version, const Ids& ids) {
  wire::Metadata m;
  m.name = "peer";
  m.incarnation = 1;
  m.version = version;
  m.backends = {{"shm", "1", std::nullopt}};
  for (const std::uint32_t id : ids) {
    m.ids.push_back(id);
    m.addresses.push_back(id * 4096);
    m.lengths.push_back(4096);
    m.kinds.push_back(HEADRACE_DRAM);
    m.masks.push_back(1);
  }
  return m;
}

wire::Metadata part(std::uint64_t version, const Ids& ids) {
  wire::Metadata m = metadata(version, ids);
  m.partial = true;
  return m;
}

/// `end`: the id that the next region gets.
wire::Metadata whole(std::uint64_t version, std::uint64_t end, const Ids& ids) {
  wire::Metadata m = metadata(version, ids);
  m.end = end;
  return m;
}

wire::Metadata update(std::uint64_t since, std::uint64_t version, const Ids& ids, Ids gone) {
  wire::Metadata m = metadata(version, ids);
  m.since = since;
  m.gone = to_ranges(std::move(gone));
  return m;
}

class TakeMetadata : public ::testing::Test {
 protected:
  Taken take(wire::Metadata m) { return take_metadata(life, m).value(); }
  PeerLife life{"peer", 1};
};

TEST_F(TakeMetadata, a_part_and_the_whole_export_from_before_it_give_both) {
  (void)take(part(3, {3}));
  EXPECT_EQ(life.version, 0U) << "of the other regions nothing is known";
  EXPECT_EQ(take(whole(2, 3, {1, 2})).note, "");
  EXPECT_THAT(ids_of(life.regions), ElementsAre(1, 2, 3));
  EXPECT_EQ(life.version, 2U);
}

TEST_F(TakeMetadata, a_part_of_the_latest_version_leaves_later_exports_as_they_are) {
  (void)take(part(wire::MetadataLimits::version, {9}));
  (void)take(whole(2, 3, {1, 2}));
  (void)take(update(2, 4, {3}, {1}));
  EXPECT_THAT(ids_of(life.regions), ElementsAre(2, 3, 9));
  EXPECT_EQ(life.version, 4U);
}

TEST_F(TakeMetadata, a_part_from_before_brings_nothing_back_and_says_so) {
  (void)take(whole(4, 4, {1, 3}));
  const Taken taken = take(part(3, {1, 2}));
  EXPECT_THAT(ids_of(life.regions), ElementsAre(1, 3));
  EXPECT_EQ(taken.left_out, 1U);
  EXPECT_THAT(taken.note, HasSubstr("1 regions in metadata of version 3 were left out"));
}

TEST_F(TakeMetadata, a_whole_export_from_before_brings_nothing_back_and_says_so) {
  (void)take(whole(5, 4, {3}));
  const Taken taken = take(whole(3, 4, {1, 2, 3}));
  EXPECT_THAT(ids_of(life.regions), ElementsAre(3));
  EXPECT_EQ(taken.left_out, 2U);
  EXPECT_EQ(life.version, 5U);
}

TEST_F(TakeMetadata, a_whole_export_drops_what_it_does_not_list_of_its_time_and_no_later_part) {
  (void)take(whole(2, 3, {1, 2}));
  (void)take(part(6, {5}));
  (void)take(whole(4, 4, {2, 3}));
  EXPECT_THAT(ids_of(life.regions), ElementsAre(2, 3, 5));
  (void)take(whole(7, 6, {}));
  EXPECT_THAT(ids_of(life.regions), IsEmpty());
}

TEST_F(TakeMetadata, a_region_that_was_revoked_does_not_come_back_with_metadata_from_before) {
  (void)take(whole(2, 3, {1, 2}));
  const std::vector<IdRange> gone = {{2, 1}, {4, 1}};
  life.revoked.add(gone, 5);
  life.regions.erase(gone);
  EXPECT_EQ(take(whole(2, 3, {1, 2})).left_out, 1U);
  EXPECT_EQ(take(part(4, {4})).left_out, 1U);
  EXPECT_THAT(ids_of(life.regions), ElementsAre(1));
}

TEST_F(TakeMetadata, an_update_of_a_later_version_than_the_one_held_is_refused_also_after_a_part) {
  (void)take(part(3, {3}));
  wire::Metadata m = update(3, 4, {4}, {});
  const auto refused = take_metadata(life, m);
  EXPECT_EQ(refused.code(), Code::not_found);
  EXPECT_THAT(refused.error().message, HasSubstr("ask it for a full export"));
  EXPECT_THAT(ids_of(life.regions), ElementsAre(3));
}

TEST_F(TakeMetadata, every_order_of_four_documents_ends_alike) {
  const std::vector<wire::Metadata> all = {part(6, {2, 5}), whole(3, 4, {1, 2, 3}), whole(5, 5, {2, 4}),
                                           part(2, {1, 2})};
  std::vector<std::size_t> order = {0, 1, 2, 3};
  do {
    PeerLife fresh("peer", 1);
    for (const std::size_t i : order) {
      wire::Metadata m = all[i];
      ASSERT_TRUE(take_metadata(fresh, m).ok());
    }
    EXPECT_THAT(ids_of(fresh.regions), ElementsAre(2, 4, 5)) << ::testing::PrintToString(order);
    EXPECT_EQ(fresh.version, 5U);
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace
}  // namespace headrace::engine
