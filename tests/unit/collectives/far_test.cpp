// SPDX-License-Identifier: Apache-2.0
// Ranks whose memory cannot be mapped, as on other hosts: the agents connect them over tcp alone.
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <numeric>

namespace headrace::test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

// Parts are as large as lanes allow.
const std::map<std::string, std::string> over_tcp{
    {"backends", "tcp"}, {"lane_bytes", "64KiB"}, {"message_lane_bytes", "64KiB"}, {"chunk_bytes", "1MiB"}};

TEST(FarRanks, reduce_gather_and_exchange_elements) {
  with_ranks(
      3,
      [](Comm& comm) {
        for (const std::size_t count : {1UL, 10UL, 1000UL, 100'000UL}) {
          std::vector<std::int32_t> data(count, comm.rank() + 1);
          ok(comm.all_reduce(data, ReduceOp::sum));
          EXPECT_EQ(data, std::vector<std::int32_t>(count, 6));
          std::vector<std::int32_t> mine(count, comm.rank()), all(3 * count);
          ok(comm.all_gather_single(all, mine));
          for (std::size_t i = 0; i < all.size(); ++i)
            ASSERT_EQ(all[i], static_cast<std::int32_t>(i / count));
          std::vector<std::int32_t> turned(3 * count);
          ok(comm.all_to_all_single(turned, all));
          EXPECT_EQ(turned, std::vector<std::int32_t>([&] {
                      std::vector<std::int32_t> expected(3 * count);
                      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = comm.rank();
                      return expected;
                    }()));
        }
        for (int i = 0; i < 300; ++i) ok(comm.barrier());  // more lines than a lane has
      },
      over_tcp);
}

TEST(FarRanks, send_and_receive_in_both_directions_at_once) {
  with_ranks(
      2,
      [](Comm& comm) {
        std::vector<std::int32_t> data(100'000), got(data.size());
        std::iota(data.begin(), data.end(), comm.rank());
        MessageOptions async;
        async.async = true;
        const Work sent = must(comm.send(data, 1 - comm.rank(), async));
        ok(comm.recv(got, 1 - comm.rank()));
        must(sent.wait());
        EXPECT_EQ(got[7], 8 - comm.rank());
        EXPECT_EQ(got.back(), static_cast<std::int32_t>(data.size()) - comm.rank());
        ok(comm.barrier());
      },
      over_tcp);
}

TEST(FarRanks, hear_of_an_abort_and_of_a_rank_that_leaves) {
  with_ranks(
      2,
      [](Comm& comm) {
        std::vector<float> data(10);
        auto group = must(comm.split(std::vector<int>{0, 1}, "group"));
        if (comm.rank() == 1) {
          group->abort("enough");
        } else {
          const auto aborted = group->recv(data, 1);
          EXPECT_EQ(aborted.code(), Code::canceled);
          EXPECT_THAT(aborted.error().message, HasSubstr("enough"));
        }
        ok(comm.barrier());  // the parent goes on
        if (comm.rank() == 1) return;
        EXPECT_EQ(comm.barrier().code(), Code::peer_lost);
      },
      over_tcp);
}

}  // namespace
}  // namespace headrace::test
