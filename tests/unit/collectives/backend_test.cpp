// SPDX-License-Identifier: Apache-2.0
// Backends of communicators: how they are found, and `fake`.
#include "ranks.hpp"

#include <headrace/version.hpp>

#include <gmock/gmock.h>

#include <array>

namespace headrace::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

CommOptions on_backend(const std::string& backend, int rank = 0, int size = 1) {
  CommOptions options = rank_options(rank, size, unique_comm_name());
  options.backend = backend;
  options.hints.clear();
  return options;
}

TEST(CommOptions, have_defaults) {
  const CommOptions options;
  EXPECT_EQ(options.backend, "host");
  EXPECT_EQ(options.name, "world");
  EXPECT_EQ(options.timeout, std::chrono::seconds(600));
  EXPECT_EQ(options.meeting_timeout, std::chrono::seconds(120));
  EXPECT_FALSE(options.abort_on_error);
  EXPECT_TRUE(options.hints.empty());
  const Comm comm = must(Comm::open({}));
  EXPECT_EQ(comm.backend(), "host");
  EXPECT_EQ(comm.options().backend, "host");
}

TEST(CommOptions, are_those_that_the_caller_gave_with_what_was_set_since) {
  CommOptions options = on_backend("fake", 2, 4);
  options.timeout = std::chrono::seconds(5);
  options.hints = {{"a", "1"}};
  Comm comm = must(Comm::open(options));
  comm.set_timeout(std::chrono::seconds(7));
  must(comm.set_hints({{"b", "2"}}));
  EXPECT_EQ(comm.options().backend, "fake");
  EXPECT_EQ(comm.options().rank, 2);
  EXPECT_EQ(comm.options().size, 4);
  EXPECT_EQ(comm.options().timeout, std::chrono::seconds(7));
  EXPECT_THAT(comm.options().hints, ElementsAre(std::pair("a", "1"), std::pair("b", "2")));
}

TEST(CommOptions, of_a_rank_that_cannot_be_are_refused_by_every_backend) {
  for (const char* backend : {"host", "fake"}) {
    CommOptions options = on_backend(backend, 3, 3);
    EXPECT_THAT(Comm::open(options).error().message, HasSubstr("rank 3 of size 3"));
    options.rank = 0;
    options.name = "";
    EXPECT_EQ(Comm::open(options).code(), Code::invalid_argument);
  }
}

TEST(CommFactory, refuses_an_unknown_backend_and_names_the_nearest) {
  const auto opened = Comm::open(on_backend("hosts"));
  EXPECT_EQ(opened.code(), Code::not_found);
  EXPECT_THAT(opened.error().message, HasSubstr("there is no backend \"hosts\": did you mean host?"));
  EXPECT_THAT(opened.error().message, HasSubstr("fake, host"));
  EXPECT_THAT(list_comm_backends(), testing::AllOf(Contains("fake"), Contains("host")));
}

TEST(FakeComm, ends_every_call_at_once_and_moves_nothing) {
  Comm comm = must(Comm::open(on_backend("fake", 1, 3)));
  EXPECT_EQ(comm.backend(), "fake");
  EXPECT_EQ(comm.backend_version(), HEADRACE_VERSION);
  EXPECT_THAT(comm.ranks(), ElementsAre(0, 1, 2));
  std::vector<int> numbers{1, 2, 3};
  OpOptions async;
  async.async = true;
  const Work work = must(comm.all_reduce(numbers, ReduceOp::sum, async));
  EXPECT_TRUE(work.is_completed());
  ok(comm.barrier());
  ok(comm.send(numbers, 0));
  const Work received = must(comm.recv(numbers, 2));
  EXPECT_EQ(received.status(), WorkStatus::completed);
  EXPECT_EQ(received.source(), 2);
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3));
  must(comm.finalize());
  EXPECT_EQ(comm.barrier().code(), Code::invalid_argument);
}

TEST(FakeComm, checks_arguments_and_tells_hooks_as_every_backend) {
  Comm comm = must(Comm::open(on_backend("fake", 0, 2)));
  std::vector<std::string> told;
  CommHooks hooks;
  hooks.scheduled = [&](const CommCall& call) { told.push_back("scheduled " + std::to_string(call.number)); };
  hooks.completed = [&](const CommCallId& call, const Error& error) {
    told.push_back("completed " + std::to_string(call.number) + " " + std::string(code_name(error.code)));
  };
  comm.add_hooks(hooks);
  std::vector<int> numbers{1}, more{1, 2};
  EXPECT_EQ(comm.broadcast(numbers, 2).code(), Code::invalid_argument);
  EXPECT_EQ(comm.all_reduce(numbers, more, ReduceOp::sum).code(), Code::invalid_argument);
  ok(comm.broadcast(numbers, 1));
  ok(comm.recv(numbers, any_source));
  EXPECT_THAT(told, ElementsAre("scheduled 1", "completed 1 ok", "scheduled 1", "completed 1 ok"));
}

TEST(FakeComm, splits_without_other_ranks) {
  Comm comm = must(Comm::open(on_backend("fake", 2, 4)));
  const std::array group{3, 2};
  SplitOptions changes;
  changes.timeout = std::chrono::seconds(3);
  auto part = must(comm.split(group, "part", changes));
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->rank(), 1);
  EXPECT_EQ(part->size(), 2);
  EXPECT_EQ(part->name(), "part");
  EXPECT_THAT(part->ranks(), ElementsAre(3, 2));
  EXPECT_EQ(part->options().timeout, std::chrono::seconds(3));
  const std::array last{1};
  auto smaller = must(part->split(last, "smaller"));
  ASSERT_TRUE(smaller.has_value());
  EXPECT_THAT(smaller->ranks(), ElementsAre(2));
  EXPECT_FALSE(must(comm.split({}, "")).has_value());
  const std::array others{0, 1};
  EXPECT_EQ(comm.split(others, "others").code(), Code::invalid_argument);
}

TEST(FakeComm, ends_by_abort_once) {
  Comm comm = must(Comm::open(on_backend("fake", 0, 2)));
  int aborted = 0;
  CommHooks hooks;
  hooks.aborted = [&](const Error& cause) {
    ++aborted;
    EXPECT_THAT(cause.message, HasSubstr("enough"));
  };
  comm.add_hooks(hooks);
  EXPECT_FALSE(comm.is_aborted());
  comm.abort("enough");
  comm.abort("again");
  EXPECT_EQ(aborted, 1);
  EXPECT_TRUE(comm.is_aborted());
  const auto refused = comm.barrier();
  EXPECT_EQ(refused.code(), Code::canceled);
  EXPECT_THAT(refused.error().message, HasSubstr("rank 0 aborted"));
  EXPECT_EQ(comm.finalize().code(), Code::canceled);
}

}  // namespace
}  // namespace headrace::test
