// SPDX-License-Identifier: Apache-2.0
// Posts as ranges of a profiler.
#include "support/profiler_tool.hpp"
#include "unit/fabric/two_fabrics.hpp"

namespace headrace::test_fabric {
namespace {

using test::attach_tool;
using test::SeenRange;
using test::Timeline;

TEST(FabricRanges, each_post_is_a_range_from_its_call_to_its_end) {
  TwoFabrics two(4096);
  nvtx::attach(attach_tool);
  Timeline::one().take();
  expect_done(two.here.write(two.here_block->memory, 0, two.target(), 0, 4096));
  expect_done(two.here.post_immediate(value_of(two.here.connect(two.there.address())), {3, 0}));
  expect_refused(two.here.write(two.here_block->memory, 0, two.target(), 1, 4096), Code::invalid_argument,
                 "of the target");
  const auto waits = value_of(two.there.receive(two.there_block->memory, 0, 10));
  waits.cancel();
  EXPECT_EQ(waits.wait(long_enough).code, Code::canceled);
  const auto seen = Timeline::one().take();
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen[0].name, "headrace: write of 4096 bytes");
  EXPECT_EQ(seen[1].name, "headrace: immediate 3");
  EXPECT_EQ(seen[2].name, "headrace: receive of up to 10 bytes");
  for (const SeenRange& range : seen) EXPECT_EQ(range.ends, 1) << range.name;
}

TEST(FabricRanges, a_fabric_that_closes_ends_the_ranges_of_its_posts) {
  TwoFabrics two(4096);
  nvtx::attach(attach_tool);
  Timeline::one().take();
  static_cast<void>(value_of(two.there.receive(two.there_block->memory, 0, 10)));
  two.there.close();
  expect_refused(two.there.receive(two.there_block->memory, 0, 10), Code::invalid_argument, "closed");
  const auto seen = Timeline::one().take();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].ends, 1);
}

}  // namespace
}  // namespace headrace::test_fabric
