// SPDX-License-Identifier: Apache-2.0
#include "host_link/live_table.hpp"

#include <gtest/gtest.h>

#include <sys/stat.h>

namespace headrace::host_link {
namespace {

TEST(LiveTable, a_peer_sees_the_states_that_the_owner_sets) {
  const auto table = LiveTable::create().value();
  const auto view = LiveView::open(UniqueFd(::dup(table->fd()))).value();
  for (const std::uint32_t id : {1U, 77U, static_cast<std::uint32_t>(live_step_bytes) + 5, 4'000'000U}) {
    const RegionSlot* const mine = table->set(id, RegionState::registered).value();
    const RegionSlot* const theirs = view->slot(id).value();
    EXPECT_NE(mine, theirs);
    EXPECT_EQ(theirs->load(), static_cast<std::uint8_t>(RegionState::registered));
    ASSERT_TRUE(table->set(id, RegionState::gone).ok());
    EXPECT_EQ(theirs->load(), static_cast<std::uint8_t>(RegionState::gone));
  }
  EXPECT_EQ(view->slot(2).value()->load(), static_cast<std::uint8_t>(RegionState::unknown));
  EXPECT_FALSE(view->closed());
  table->close();
  EXPECT_TRUE(view->closed());
}

TEST(LiveTable, an_id_above_all_registered_ones_is_not_found) {
  const auto table = LiveTable::create().value();
  const auto view = LiveView::open(UniqueFd(::dup(table->fd()))).value();
  EXPECT_EQ(view->slot(4'000'000'000U).code(), Code::not_found);
  ASSERT_TRUE(table->set(4'000'000'000U, RegionState::allocated).ok());
  EXPECT_EQ(view->slot(4'000'000'000U).value()->load(), static_cast<std::uint8_t>(RegionState::allocated));
}

TEST(LiveTable, regions_that_are_gone_for_long_take_no_memory) {
  const auto table = LiveTable::create().value();
  const auto view = LiveView::open(UniqueFd(::dup(table->fd()))).value();
  const RegionSlot* const first = view->slot(1).value();
  ASSERT_TRUE(table->set(2, RegionState::registered).ok());
  for (std::uint32_t id = 70'000; id < 1'000'000; ++id) {
    ASSERT_TRUE(table->set(id, RegionState::registered).ok());
    ASSERT_TRUE(table->set(id, RegionState::gone).ok());
    ASSERT_TRUE(table->set(id, RegionState::gone).ok()) << "told twice, counted once";
  }
  struct stat file {};
  ASSERT_EQ(::fstat(table->fd(), &file), 0);
  EXPECT_LE(static_cast<std::uint64_t>(file.st_blocks) * 512, live_header_bytes + 4 * live_page_bytes);
  EXPECT_EQ(view->slot(500'000).value()->load(), static_cast<std::uint8_t>(RegionState::unknown));
  EXPECT_EQ(view->slot(2).value()->load(), static_cast<std::uint8_t>(RegionState::registered));
  EXPECT_EQ(first->load(), static_cast<std::uint8_t>(RegionState::unknown));
}

TEST(LiveTable, a_peer_cannot_write_the_table) {
  const auto table = LiveTable::create().value();
  EXPECT_EQ(::fcntl(table->fd(), F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_FALSE(Mapping::of_file(table->fd(), 0, 4096, Mapping::Access::read_write).ok());
}

}  // namespace
}  // namespace headrace::host_link
