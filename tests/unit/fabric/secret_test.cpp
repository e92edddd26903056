// SPDX-License-Identifier: Apache-2.0
// The secret of fabrics, by the options that agents have.
#include "fabric/open_nics.hpp"
#include "unit/fabric/two_fabrics.hpp"

#include <map>

namespace headrace::test_fabric {
namespace {

using Values = std::map<std::string, std::string>;

Result<Fabric> open_with(const Values& values) {
  FabricOptions options;
  options.groups.push_back({.nics = {"127.0.0.1"}});
  options.options = values;
  return Fabric::open(options);
}

TEST(FabricSecret, fabrics_with_the_same_secret_meet_and_others_end_with_a_sentence) {
  Fabric here = value_of(open_with({{"auth_token", "one"}}));
  Fabric friendly = value_of(open_with({{"auth_token", "one"}}));
  Fabric strange = value_of(open_with({{"auth_token", "two"}}));
  const auto arrivals = value_of(friendly.expect({1, 0}, 1));
  expect_done(here.post_immediate(value_of(here.connect(friendly.address())), {1, 0}));
  EXPECT_TRUE(arrivals.wait(long_enough).ok());

  const auto refused = value_of(strange.post_immediate(value_of(strange.connect(here.address())), {1, 0}));
  EXPECT_EQ(refused.wait(long_enough).code, Code::peer_lost);
  EXPECT_NE(refused.error().message.find("different shared tokens"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(here.counters().arrivals, 0U);
}

TEST(FabricSecret, a_required_secret_that_is_missing_opens_no_port_beyond_loopback) {
  EXPECT_TRUE(open_with({{"auth", "required"}}));
  const auto settings = value_of(fabric::NicSettings::read({{"auth", "required"}}));
  const fabric::GroupPlan beyond{{}, {}, {{"192.0.2.7", "192.0.2.7"}}, true};
  expect_refused(fabric::open_nics(beyond, settings), Code::invalid_argument,
                 "network card 192.0.2.7 of a fabric listens on 192.0.2.7:0 without a secret");
}

TEST(FabricSecret, options_that_are_none_are_refused_by_name) {
  expect_refused(open_with({{"auth_tokens", "one"}}), Code::invalid_argument, "auth_token");
  expect_refused(open_with({{"auth", "maybe"}}), Code::invalid_argument, "write optional or required");
}

}  // namespace
}  // namespace headrace::test_fabric
