// SPDX-License-Identifier: Apache-2.0
// Several calls as one, on a backend that has no groups of its own.
#include "collectives/core.hpp"
#include "ranks.hpp"

#include <gmock/gmock.h>

#include <utility>

namespace headrace::test {
namespace {

using collectives::KeptCall;
using testing::ElementsAre;

/// Begins calls, and ends them when a test says so.
class PlayedCore final : public Comm::Core {
 public:
  PlayedCore() : Core({0, 2, "played", {0, 1}}, std::make_shared<collectives::Hooks>()) {}

  [[nodiscard]] std::string_view backend() const override { return "played"; }
  [[nodiscard]] std::string_view backend_version() const override { return "1"; }
  [[nodiscard]] CommOptions options() const override { return {}; }
  void set_timeout(Timeout) override {}
  Result<void> set_hints(const std::map<std::string, std::string>&) override { return {}; }
  Result<std::shared_ptr<Core>> split(std::span<const int>, const std::string&,
                                      const SplitOptions&) override {
    return std::shared_ptr<Core>();
  }
  void abort(std::string_view) override {}
  [[nodiscard]] bool ended() const override { return false; }
  Result<void> finalize() override { return {}; }
  void close() override {}
  bool wait(Work::State&, Deadline) override { return true; }

  /// Ends one call. Its work, which keeps this object, goes.
  void end(std::size_t call, Result<void> result) {
    std::exchange(works[call], nullptr)->end(std::move(result));
  }

  std::vector<std::uint32_t> tags;  // of calls that have begun
  std::vector<std::shared_ptr<Work::State>> works;

 protected:
  Result<void> check_open() override { return {}; }
  Result<Work> issue(CommCall& call, std::shared_ptr<const void> owner) override {
    EXPECT_TRUE(call.async);
    if (call.tag == 99) return Error{Code::exhausted, "no room"};
    tags.push_back(call.tag);
    collectives::Call running;
    running.operation = call.operation;
    running.number = tags.size();
    running.group = call.group;
    works.push_back(std::make_shared<Work::State>(shared_from_this(), running, std::move(owner)));
    return Work(works.back());
  }
};

std::vector<KeptCall> sends(const std::vector<std::uint32_t>& tags) {
  std::vector<KeptCall> calls;
  for (const std::uint32_t tag : tags) {
    CommCall call;
    call.operation = CommOperation::send;
    call.tag = tag;
    calls.emplace_back(call);
  }
  return calls;
}

TEST(Group, begins_the_calls_in_order_and_ends_with_the_last_of_them) {
  const auto core = std::make_shared<PlayedCore>();
  const Work work = must(core->batch(sends({3, 1, 2}), {.async = true}));
  EXPECT_THAT(core->tags, ElementsAre(3, 1, 2));
  core->end(2, {});
  core->end(0, {});
  EXPECT_EQ(work.status(), WorkStatus::in_progress);
  core->end(1, {});
  EXPECT_EQ(work.status(), WorkStatus::completed);
}

TEST(Group, keeps_the_first_error_until_the_last_call_has_ended) {
  const auto core = std::make_shared<PlayedCore>();
  const Work work = must(core->batch(sends({1, 2, 3}), {.async = true}));
  core->end(1, Error{Code::timed_out, "first"});
  core->end(0, Error{Code::peer_lost, "second"});
  EXPECT_EQ(work.status(), WorkStatus::in_progress);
  core->end(2, {});
  EXPECT_EQ(work.status(), WorkStatus::timed_out);
  EXPECT_EQ(work.error().message, "rank 0, send number 2 of batch number 1 of \"played\": first");
}

TEST(Group, with_a_call_that_cannot_begin_waits_for_the_others) {
  const auto core = std::make_shared<PlayedCore>();
  const Work work = must(core->batch(sends({1, 99, 2}), {.async = true}));
  EXPECT_THAT(core->tags, ElementsAre(1, 2));
  core->end(0, {});
  EXPECT_EQ(work.status(), WorkStatus::in_progress);
  core->end(1, {});
  EXPECT_EQ(work.error().code, Code::exhausted);
}

}  // namespace
}  // namespace headrace::test
