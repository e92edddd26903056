// SPDX-License-Identifier: Apache-2.0
#include "host_link/live_table.hpp"

#include <gtest/gtest.h>

#include <sys/stat.h>

namespace headrace::host_link {
namespace {

TEST(LiveTable, a_peer_sees_the_states_that_the_owner_sets) {
  const auto table = LiveTable::create().value();
  const auto view = LiveView::open(UniqueFd(::dup(table->fd()))).value();
  for (const std::uint32_t id : {1U, 77U, static_cast<std::uint32_t>(live_step_ids) + 5, 4'000'000U}) {
    const RegionPlace place{std::uint64_t{id} << 20, id};
    const RegionSlot* const mine = table->enter(id, place).value();
    const LiveView::Entry theirs = view->find(id).value();
    EXPECT_NE(mine, theirs.slot);
    EXPECT_EQ(theirs.slot->load(), static_cast<std::uint8_t>(RegionState::registered));
    EXPECT_EQ(theirs.registered_at(), place);
    table->leave(id);
    EXPECT_EQ(theirs.slot->load(), static_cast<std::uint8_t>(RegionState::gone));
    EXPECT_EQ(theirs.registered_at(), std::nullopt);
  }
  EXPECT_EQ(view->find(2).value().slot->load(), static_cast<std::uint8_t>(RegionState::unknown));
  EXPECT_EQ(view->find(2).value().registered_at(), std::nullopt);
  EXPECT_FALSE(view->closed());
  table->close();
  EXPECT_TRUE(view->closed());
}

TEST(LiveTable, an_id_above_all_registered_ones_is_not_found) {
  const auto table = LiveTable::create().value();
  const auto view = LiveView::open(UniqueFd(::dup(table->fd()))).value();
  EXPECT_EQ(view->find(4'000'000'000U).code(), Code::not_found);
  ASSERT_TRUE(table->enter(4'000'000'000U, {}, RegionState::allocated).ok());
  EXPECT_EQ(view->find(4'000'000'000U).value().slot->load(),
            static_cast<std::uint8_t>(RegionState::allocated));
}

TEST(LiveTable, the_places_of_regions_that_have_left_take_no_memory) {
  const auto table = LiveTable::create().value();
  const auto used_bytes = [&] {
    struct stat found {};
    EXPECT_EQ(::fstat(table->fd(), &found), 0);
    return static_cast<std::uint64_t>(found.st_blocks) * 512;
  };
  constexpr std::uint32_t ids = 100'000;
  for (std::uint32_t id = 1; id < ids; ++id) {
    ASSERT_TRUE(table->enter(id, {id, id}).ok());
    table->leave(id);
  }
  EXPECT_LT(used_bytes(), 2 * ids) << "a byte of state for each id, and little else";
}

TEST(LiveTable, steps_whose_regions_have_all_left_take_no_memory) {
  const auto table = LiveTable::create().value();
  const auto view = LiveView::open(UniqueFd(::dup(table->fd()))).value();
  constexpr auto steps = static_cast<std::uint32_t>(8 * live_step_ids);
  ASSERT_TRUE(table->enter(2, {2, 2}).ok());
  for (std::uint32_t id = live_step_ids; id < steps; ++id) {
    ASSERT_TRUE(table->enter(id, {id, id}).ok());
    table->leave(id);
  }
  struct stat file {};
  ASSERT_EQ(::fstat(table->fd(), &file), 0);
  EXPECT_LE(static_cast<std::uint64_t>(file.st_blocks) * 512, live_header_bytes + live_step_ids + 4096);
  EXPECT_FALSE(view->find(5 * live_step_ids).value().registered_at());
  EXPECT_EQ(view->find(2).value().registered_at()->base, 2U);
}

TEST(LiveTable, a_peer_cannot_write_the_table) {
  const auto table = LiveTable::create().value();
  EXPECT_EQ(::fcntl(table->fd(), F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_FALSE(Mapping::of_file(table->fd(), 0, 4096, Mapping::Access::read_write).ok());
}

}  // namespace
}  // namespace headrace::host_link
