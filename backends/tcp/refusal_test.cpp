// SPDX-License-Identifier: Apache-2.0
// The code with which a post ends when its peer refuses a chunk. A peer may send any code.
#include "support/played_link.hpp"

#include <gtest/gtest.h>

#include <tuple>

namespace headrace::tcp {
namespace {

/// What the peer says, and how the post ends.
struct Case {
  Code said, expected;
};

class Refusal : public testing::TestWithParam<std::tuple<headrace_op_v1, Case>> {};

TEST_P(Refusal, ends_the_post_with_a_code_that_is_about_the_peers_memory) {
  const auto [op, code] = GetParam();
  test::PlayedLink played(op, 4096);
  played.request.post();
  const bool reads = op == HEADRACE_READ;
  played.peer.refuse(played.peer.hear(reads ? FrameType::read : FrameType::write),
                     reads ? FrameType::read_data : FrameType::write_ack, code.said);
  EXPECT_EQ(played.request.wait().status.code, code.expected);
  EXPECT_FALSE(played.link.lost());
}

INSTANTIATE_TEST_SUITE_P(OfTheDocument, Refusal,
                         testing::Combine(testing::Values(HEADRACE_READ, HEADRACE_WRITE),
                                          testing::Values(Case{Code::not_found, Code::not_found},
                                                          Case{Code::backend_failed, Code::backend_failed})));

// They are about this side: nobody canceled the post, and it has not timed out.
INSTANTIATE_TEST_SUITE_P(Forged, Refusal,
                         testing::Combine(testing::Values(HEADRACE_READ, HEADRACE_WRITE),
                                          testing::Values(Case{Code::canceled, Code::backend_failed},
                                                          Case{Code::timed_out, Code::backend_failed},
                                                          Case{Code::would_block, Code::backend_failed},
                                                          Case{Code::peer_lost, Code::backend_failed})));

}  // namespace
}  // namespace headrace::tcp
