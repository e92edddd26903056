// SPDX-License-Identifier: Apache-2.0
// What a post ends with when its peer refuses a chunk, whatever the peer says.
#include "backends/tcp/backend.hpp"
#include "backends/tcp/connection_info.hpp"
#include "support/played_socket.hpp"
#include "support/plugin_instance.hpp"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace headrace::tcp {
namespace {

constexpr std::uint64_t page = 4096;

/// What the peer says, and how the post ends.
struct Case {
  Code said, expected;
};

class Refusal : public testing::TestWithParam<std::tuple<headrace_op_v1, Case>> {};

TEST_P(Refusal, ends_the_post_with_a_code_that_is_about_the_peers_memory) {
  const auto [op, code] = GetParam();
  test::World world;
  test::Instance instance(world, plugin::table<TcpBackend>(), {{"listen", "127.0.0.1:0"}},
                          test::PluginHost::Args{});
  const auto info = ConnectionInfo::parse(instance.connection_info());
  const test::PlayedSocket peer(
      info.value().addresses.front().resolve(TcpAddress::Use::connect).value().front(), 0);
  ASSERT_TRUE(world.until([&] { return instance.host().accepted_links().size() == 1; }));
  const auto accepted = instance.host().accepted_links().front();
  test::Link link(instance, accepted.connection, accepted.token);
  const test::Memory memory(test::Memory::Kind::plain, page, 1);
  const test::Region mine(instance, memory);
  test::RegionFacts facts;
  facts.id = 1;
  facts.length = page;
  const test::Remote theirs(link, facts);
  test::Request request(instance, op, &link, test::uniform_side(mine.handle(), 0, page, page),
                        test::uniform_side(theirs.handle(), 0, page, page), 1);
  request.post();
  const bool reads = op == HEADRACE_READ;
  peer.refuse(peer.hear(reads ? FrameType::read : FrameType::write),
              reads ? FrameType::read_data : FrameType::write_ack, code.said);
  EXPECT_EQ(request.wait().status.code, code.expected);
  EXPECT_FALSE(link.lost());
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
