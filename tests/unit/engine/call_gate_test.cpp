// SPDX-License-Identifier: Apache-2.0
#include "engine/call_gate.hpp"

#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

TEST(CallGate, a_call_after_closing_is_refused_with_the_name_of_the_agent) {
  CallGate gate("a");
  EXPECT_TRUE(Call(gate).admitted());
  EXPECT_TRUE(gate.shut());
  EXPECT_FALSE(gate.shut()) << "it is closed once";
  const auto refused = Call(gate).admitted();
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_EQ(refused.error().message, "agent a is closed: open another");
  EXPECT_EQ(gate.status().code, Code::invalid_argument);
}

TEST(CallGate, it_is_empty_once_the_last_call_has_left) {
  CallGate gate("a");
  {
    const Call first(gate), second(gate);
    (void)gate.shut();
    EXPECT_TRUE(first.admitted()) << "it was inside before";
    EXPECT_FALSE(gate.empty());
  }
  EXPECT_TRUE(gate.empty());
  EXPECT_EQ(gate.closed_meanwhile().code, Code::canceled);
}

}  // namespace
}  // namespace headrace::engine
