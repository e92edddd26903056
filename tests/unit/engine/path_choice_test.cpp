// SPDX-License-Identifier: Apache-2.0
// Page lists, and the choice of the backend that carries a request over them.
#include "engine/path_choice.hpp"
#include "unit/engine/parts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

template <int Ns>
headrace_backend_v1 backend_that_costs(const char* name) {
  headrace_backend_v1 t = recording_table(name);
  t.cost = [](void*, const headrace_prepare_v1*, headrace_cost_v1* cost) {
    *cost = {sizeof *cost, Ns, 0, 1e12, 0, "the test says so"};
    return int32_t{HEADRACE_OK};
  };
  return t;
}
const headrace_backend_v1 slow_backend = backend_that_costs<5000>("slow"),
                          quick_backend = backend_that_costs<10>("quick");

class PathChoiceTest : public testing::Test {
 protected:
  PathChoiceTest()
      : slow(parts.add(slow_backend)), quick(parts.add(quick_backend)), region(parts.registered()) {}
  RequestPlan plan(const std::string& peer = "here") {
    RequestPlan plan;
    plan.local = parts.lists.prepare(Side::local(), UniformPages{region, 0, 64, 64, 2}).value();
    plan.remote =
        parts.lists
            .prepare(Side::remote(peer), UniformPages{peer == "here" ? region : RegionId{1}, 128, 64, 64, 2})
            .value();
    plan.count = 2;
    plan.bytes = 128;
    return plan;
  }
  Parts parts;
  BackendInstance &slow, &quick;
  RegionId region;
  Sides sides;
};

TEST_F(PathChoiceTest, the_cheapest_backend_that_can_carry_the_request_is_chosen) {
  const auto choice = parts.paths.choose(plan(), {}, sides);
  ASSERT_TRUE(choice.ok()) << choice.error().message;
  EXPECT_EQ(choice->path.backend, &quick);
  EXPECT_EQ(Recorded::prepared, 1);
  EXPECT_THAT(choice->explanation,
              HasSubstr("quick (about 0.0 us, the cheapest by estimate; the test says so)"));
  EXPECT_THAT(choice->explanation, HasSubstr("not slow: slower, about 5.0 us"));
}

TEST_F(PathChoiceTest, a_backend_that_failed_the_post_is_left_out) {
  const std::vector<FailedPath> failed{{"quick", "it broke"}};
  const auto choice = parts.paths.choose(plan(), failed, sides);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->path.backend, &slow);
  EXPECT_THAT(choice->explanation, HasSubstr("not quick: it failed this post: it broke"));
}

TEST_F(PathChoiceTest, a_request_that_no_backend_takes_is_refused_with_each_reason) {
  Recorded::prepare_fails = true;
  const auto choice = parts.paths.choose(plan(), {}, sides);
  EXPECT_EQ(choice.code(), Code::not_supported);
  EXPECT_THAT(choice.error().message, HasSubstr("not quick: "));
  EXPECT_THAT(choice.error().message, HasSubstr("not slow: "));
}

TEST_F(PathChoiceTest, a_request_to_a_peer_is_prepared_on_a_link_that_is_not_ready) {
  parts.import("there");
  const auto choice = parts.paths.choose(plan("there"), {}, sides);
  ASSERT_TRUE(choice.ok()) << choice.error().message;
  EXPECT_EQ(choice->path.link->state(), LinkState::connecting);
  EXPECT_EQ(Recorded::connects, 1) << "only the chosen backend makes a link";
}

TEST_F(PathChoiceTest, a_list_is_no_longer_valid_once_its_region_is_deregistered) {
  const RequestPlan made = plan();
  EXPECT_TRUE(parts.lists.still_valid(*made.local).ok());
  ASSERT_TRUE(parts.regions.deregister({&region, 1}, 0ns));
  EXPECT_EQ(parts.lists.still_valid(*made.local).code, Code::not_found);
  EXPECT_EQ(parts.paths.choose(made, {}, sides).code(), Code::not_supported) << "no backend has the region";
}

TEST_F(PathChoiceTest, a_list_of_a_peer_that_was_replaced_has_lost_its_peer) {
  parts.import("there");
  const RequestPlan made = plan("there");
  parts.import("there", 2);
  EXPECT_EQ(parts.lists.still_valid(*made.remote).code, Code::peer_lost);
}

TEST_F(PathChoiceTest, a_page_that_leaves_its_region_is_named) {
  const auto list = parts.lists.prepare(Side::local(), UniformPages{region, 0, 1024, 1024, 5});
  ASSERT_FALSE(list);
  EXPECT_EQ(list.code(), Code::invalid_argument);
  EXPECT_EQ(list.error().page, 4U);
}

}  // namespace
}  // namespace headrace::engine
