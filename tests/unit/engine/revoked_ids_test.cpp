// SPDX-License-Identifier: Apache-2.0
#include "engine/revoked_ids.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace headrace::engine {
namespace {

/// The ids among 1 to `count` that metadata of that version keeps.
std::vector<std::uint32_t> kept(const RevokedIds& revoked, std::uint64_t version, std::uint32_t count) {
  wire::Metadata m;
  m.version = version;
  for (std::uint32_t id = 1; id <= count; ++id) {
    m.ids.push_back(id);
    m.named.push_back({id, "name", ""});
    m.public_data.push_back({id, 0, "data"});
  }
  std::vector<RemoteRegion> rows(count);
  for (std::uint32_t i = 0; i < count; ++i) rows[i].address = i + 1;
  revoked.take_out(m, rows);
  for (std::size_t i = 0; i < m.ids.size(); ++i) {
    EXPECT_EQ(rows[i].address, m.ids[i]);
    EXPECT_EQ(m.named[i].id, m.ids[i]);
    EXPECT_EQ(m.public_data[i].id, m.ids[i]);
  }
  EXPECT_EQ(m.named.size(), m.ids.size());
  return m.ids;
}

TEST(RevokedIds, metadata_keeps_what_was_revoked_before_it_was_made) {
  RevokedIds revoked;
  const std::vector<IdRange> two{{2, 1}, {4, 2}};
  revoked.add(two, 10);
  EXPECT_EQ(kept(revoked, 9, 6), (std::vector<std::uint32_t>{1, 3, 6}));
  EXPECT_EQ(kept(revoked, 10, 6), (std::vector<std::uint32_t>{1, 2, 3, 4, 5, 6}));
}

TEST(RevokedIds, what_is_revoked_is_taken_out_of_older_metadata_through_random_revocations) {
  std::mt19937 random(5);
  RevokedIds revoked;
  std::map<std::uint32_t, std::uint64_t> latest;
  for (std::uint64_t version = 1; version < 200; ++version) {
    const IdRange range{static_cast<std::uint32_t>(random() % 60 + 1),
                        static_cast<std::uint32_t>(random() % 5 + 1)};
    revoked.add({&range, 1}, version);
    for (std::uint32_t id = range.first; id < range.first + range.count; ++id) latest[id] = version;
    const std::uint64_t of = random() % (version + 2);
    for (const std::uint32_t id : kept(revoked, of, 70))
      EXPECT_TRUE(!latest.contains(id) || latest[id] <= of) << id;
    for (const std::uint32_t id : kept(revoked, version, 70)) EXPECT_LE(id, 70U);
    EXPECT_EQ(kept(revoked, version, 70).size(), 70U) << "the present metadata is whole";
  }
}

TEST(RevokedIds, more_ranges_than_are_kept_make_older_metadata_unusable) {
  RevokedIds revoked;
  for (std::uint32_t i = 0; i < RevokedIds::most_ranges; ++i) {
    const IdRange apart{2 * i + 1, 1};
    revoked.add({&apart, 1}, 7);
  }
  EXPECT_TRUE(revoked.can_judge(0));
  const IdRange one_more{4'000'000'000, 1};
  revoked.add({&one_more, 1}, 8);
  EXPECT_FALSE(revoked.can_judge(7));
  EXPECT_TRUE(revoked.can_judge(8));
}

}  // namespace
}  // namespace headrace::engine
