// SPDX-License-Identifier: Apache-2.0
// A backend that completes its posts late, twice, or after the request is gone: the engine counts that and
// ignores it.
#include "backends/fake/backend.hpp"
#include "engine/engine.hpp"
#include "support/temporary_folder.hpp"
#include "unit/engine/linked_backend.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

/// A backend that completes nothing by itself: the test does, with the tokens that it has seen.
struct Lying {
  static inline const headrace_host_v1* host = nullptr;
  static inline std::atomic<std::uint64_t> token = 0;
  static inline std::atomic<int> released = 0;
  static inline bool completes_and_refuses = false;

  static const headrace_backend_v1* table() {
    static headrace_backend_v1 t = *plugin::table<fake::FakeBackend>();
    t.name = "lying";
    t.create = [](const headrace_host_v1* h, const headrace_create_v1* args, void** instance,
                  headrace_text_v1* e) {
      host = h;
      return plugin::table<fake::FakeBackend>()->create(h, args, instance, e);
    };
    t.prepare = [](void*, const headrace_prepare_v1*, void** request, headrace_text_v1*) {
      static int one = 0;
      *request = &one;
      return int32_t{HEADRACE_OK};
    };
    t.post = [](void*, void*, const headrace_post_v1* args) {
      token = args->token;
      if (!completes_and_refuses) return headrace_status_v1{HEADRACE_OK, 0, HEADRACE_NO_PAGE};
      complete(args->token);
      return headrace_status_v1{HEADRACE_BACKEND_FAILED, 0, HEADRACE_NO_PAGE};
    };
    t.poll = [](void*, void*) { return int32_t{0}; };
    t.cancel = [](void*, void*) { complete(token, HEADRACE_CANCELED); };
    t.release = [](void*, void*) { ++released; };
    token = 0;
    released = 0;
    completes_and_refuses = false;
    return &t;
  }
  static void complete(std::uint64_t which, headrace_code_v1 code = HEADRACE_OK) {
    host->completed(host->context, which, {code, 0, HEADRACE_NO_PAGE}, nullptr, 0);
  }
};

class CompletionsTest : public testing::Test {
 protected:
  CompletionsTest() {
    add_linked(*engine, *Lying::table());
    const MemoryRange range{memory.data(), memory.size()};
    region = engine->regions().add({&range, 1}, {}, {}).value().front().id;
  }
  ~CompletionsTest() override { engine->close(); }

  std::shared_ptr<RequestCore> make() {
    RequestPlan plan;
    plan.local = engine->lists().prepare(Side::local(), UniformPages{region, 0, 64, 64, 1}).value();
    plan.remote = engine->lists().prepare(Side::remote("alone"), UniformPages{region, 64, 64, 64, 1}).value();
    plan.count = 1;
    return engine->requests().make(std::move(plan)).value();
  }
  [[nodiscard]] std::uint64_t ignored() { return engine->counters().completions_ignored.value(); }
  void come_and_go(std::uint64_t rounds);

  Logger logger;
  const test::TemporaryFolder folder;
  std::shared_ptr<Engine> engine =
      Engine::open({.name = "alone", .runtime_dir = folder.path()}, logger).value();
  std::array<std::byte, 128> memory{};
  RegionId region{};
};

TEST_F(CompletionsTest, a_second_completion_is_counted_and_changes_nothing) {
  const auto request = make();
  ASSERT_TRUE(request->post(nullptr).ok());
  Lying::complete(Lying::token);
  EXPECT_EQ(request->state(), RequestState::done);
  Lying::complete(Lying::token, HEADRACE_PEER_LOST);
  EXPECT_EQ(request->state(), RequestState::done);
  EXPECT_EQ(ignored(), 1U);
}

TEST_F(CompletionsTest, a_late_completion_does_not_end_the_next_post) {
  const auto request = make();
  ASSERT_TRUE(request->post(nullptr).ok());
  const std::uint64_t first = Lying::token;
  Lying::complete(first);
  ASSERT_TRUE(request->post(nullptr).ok());
  Lying::complete(first);
  EXPECT_EQ(request->state(), RequestState::posted);
  EXPECT_EQ(ignored(), 1U);
  Lying::complete(Lying::token);
  EXPECT_EQ(request->state(), RequestState::done);
}

TEST_F(CompletionsTest, a_completion_after_the_request_is_gone_is_counted) {
  auto request = make();
  ASSERT_TRUE(request->post(nullptr).ok());
  Lying::complete(Lying::token);
  request.reset();
  EXPECT_EQ(Lying::released, 1);
  Lying::complete(Lying::token);
  EXPECT_EQ(ignored(), 1U);
}

TEST_F(CompletionsTest, a_post_that_is_completed_and_refused_ends_once) {
  const auto request = make();
  Lying::completes_and_refuses = true;
  (void)request->post(nullptr);
  EXPECT_EQ(request->state(), RequestState::done);
  EXPECT_EQ(engine->counters().done.value(), 1U);
}

void CompletionsTest::come_and_go(std::uint64_t rounds) {
  std::atomic<std::uint64_t> calls = 0;
  std::jthread completing([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      Lying::complete(Lying::token);
      ++calls;
    }
  });
  for (std::uint64_t i = 0; i < rounds; ++i) {
    auto request = make();
    ASSERT_TRUE(request->post(nullptr).ok());
    ASSERT_TRUE(request->wait(30s).ok());
  }
  completing.request_stop();
  completing.join();
  EXPECT_EQ(engine->counters().done.value(), rounds);
  EXPECT_EQ(ignored(), calls - rounds);
  const Deadline deadline = Deadline::after(10s);  // a request may have been let go of inside a completion
  while (Lying::released < static_cast<int>(rounds) && !deadline.expired()) (void)engine->progress().poll();
  EXPECT_EQ(Lying::released, static_cast<int>(rounds));
}

TEST_F(CompletionsTest, another_thread_completes_at_any_time_while_requests_come_and_go) { come_and_go(400); }
TEST_F(CompletionsTest, another_thread_completes_at_any_time_while_requests_come_and_go_many_rounds) {
  come_and_go(2000);
}

}  // namespace
}  // namespace headrace::engine
