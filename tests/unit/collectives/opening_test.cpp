// SPDX-License-Identifier: Apache-2.0
// The last step of opening a communicator, with a rank that tells one other rank that it is there, and not
// the third.
#include "ranks.hpp"

#include "collectives/meeting.hpp"
#include "collectives/members.hpp"
#include "collectives/operation.hpp"
#include "collectives/settings.hpp"
#include "collectives/station.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <latch>
#include <memory>
#include <string>

namespace headrace::test {
namespace {

using collectives::LaneKind;
using collectives::Members;
using testing::AnyOf;
using testing::HasSubstr;

class Opening : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] CommOptions options_of(int rank) const {
    CommOptions options = rank_options(rank, 3, name_);
    options.hints = {{"backends", GetParam()}};
    return options;
  }
  /// Rank 2, connected to the others.
  void last_rank(const std::function<void(Members&)>& body) const {
    const CommOptions options = options_of(2);
    const auto settings = must(collectives::Settings::read(options.hints));
    auto station = must(collectives::Station::open(name_ + ".2", settings.backends, true));
    const auto members = must(Members::open(std::move(station), 2, 3, "box", settings));
    const auto place = must(collectives::open_meeting_place(options));
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    collectives::Meeting meeting(*place, options.name, 2, 3);
    must(members->meet(must(meeting.exchange(must(members->card()), deadline))));
    must(members->reach_all(deadline));
    body(*members);
  }
  static void come(Members& members, int to) {
    const std::byte token{1};
    const auto tag = collectives::operation_tag(CommOperation::open, 1);
    EXPECT_TRUE(members.writer(to, LaneKind::collective).write({tag, 1}, &token, 1, 4096));
  }

 private:
  const std::string name_ = unique_comm_name();
};

TEST_P(Opening, a_rank_hears_from_one_that_has_opened_and_aborted_that_all_have_come) {
  std::latch over(2);
  on_threads(3, [&](int rank) {
    if (rank == 2) {
      return last_rank([&](Members& members) {
        come(members, 0);
        over.wait();
      });
    }
    Comm comm = must(Comm::open(options_of(rank)));
    if (rank == 0) comm.abort("it has seen enough");
    EXPECT_THAT(comm.barrier().error().message, HasSubstr("it has seen enough"));
    EXPECT_TRUE(comm.is_aborted());
    over.arrive_and_wait();  // the last words of one that leaves may be lost with its link
  });
}

TEST_P(Opening, a_rank_that_gives_up_while_it_opens_ends_it_for_all) {
  std::latch over(2);
  on_threads(3, [&](int rank) {
    if (rank == 2) {
      return last_rank([&](Members& members) {
        members.say_farewell(Code::invalid_argument, "rank 2 cannot go on");
        over.wait();
      });
    }
    const auto comm = Comm::open(options_of(rank));
    over.count_down();
    ASSERT_FALSE(comm.ok());
    // One may still connect to the other, which has heard of it and is gone.
    EXPECT_THAT(comm.error().message, AnyOf(HasSubstr("rank 2 cannot go on"), HasSubstr("connect to rank")));
  });
}

INSTANTIATE_TEST_SUITE_P(All, Opening, testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace headrace::test
