// SPDX-License-Identifier: Apache-2.0
// Posts and messages for a link that is not ready: they wait in the engine, and the backend sees none of
// them.
#include "backends/fake/backend.hpp"
#include "engine/engine.hpp"
#include "support/temporary_folder.hpp"
#include "unit/engine/linked_backend.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

/// A backend whose links become ready, or are lost, when the test says so. It ends no post.
struct Stalled {
  static inline const headrace_host_v1* host = nullptr;  // of agent "here"
  static inline std::uint64_t link = 0;
  static inline std::atomic<int> posts = 0, cancels = 0, links = 0;
  static inline std::vector<std::string> messages;
  static inline int full = 0;  // the next so many messages find no room

  static void* handle() {
    static int one = 0;
    return &one;
  }
  static const headrace_backend_v1* table() {
    static headrace_backend_v1 t = *plugin::table<fake::FakeBackend>();
    t.unsent = nullptr;
    t.name = "stalled";
    t.create = [](const headrace_host_v1* h, const headrace_create_v1* args, void** instance,
                  headrace_text_v1* e) {
      if (std::string(h->agent_name) == "here") host = h;
      return plugin::table<fake::FakeBackend>()->create(h, args, instance, e);
    };
    t.connect = [](void*, const headrace_connect_v1* args, void** connection, headrace_text_v1*) {
      link = args->link_token;
      *connection = handle();
      ++links;
      return int32_t{HEADRACE_OK};
    };
    t.disconnect = [](void*, void*) {};
    t.load_remote = [](void*, void*, const headrace_remote_region_v1*, void** remote, headrace_text_v1*) {
      *remote = handle();
      return int32_t{HEADRACE_OK};
    };
    t.unload = [](void*, void*) {};
    t.prepare = [](void*, const headrace_prepare_v1*, void** request, headrace_text_v1*) {
      *request = handle();
      return int32_t{HEADRACE_OK};
    };
    t.post = [](void*, void*, const headrace_post_v1* args) {
      ++posts;
      host->completed(host->context, args->token, {HEADRACE_OK, 0, HEADRACE_NO_PAGE}, nullptr, 0);
      return headrace_status_v1{HEADRACE_OK, 0, HEADRACE_NO_PAGE};
    };
    t.poll = [](void*, void*) { return int32_t{0}; };
    t.cancel = [](void*, void*) { ++cancels; };
    t.release = [](void*, void*) {};
    t.notify = [](void*, void*, uint32_t channel, const void* bytes, size_t length) {
      if (full > 0) {
        --full;
        return headrace_status_v1{HEADRACE_WOULD_BLOCK, 0, HEADRACE_NO_PAGE};
      }
      if (channel == HEADRACE_CHANNEL_USER) messages.emplace_back(static_cast<const char*>(bytes), length);
      return headrace_status_v1{HEADRACE_OK, 0, HEADRACE_NO_PAGE};
    };
    t.cost = [](void*, const headrace_prepare_v1*, headrace_cost_v1* cost) {
      *cost = {sizeof *cost, 1, 0, 1e12, 0, "none"};
      return int32_t{HEADRACE_OK};
    };
    posts = cancels = links = full = 0;
    messages.clear();
    return &t;
  }
  static void say(headrace_link_event_v1 event, headrace_code_v1 code = HEADRACE_OK) {
    const std::string text = "the test says so";
    host->link_event(host->context, link, event, {code, 0, HEADRACE_NO_PAGE}, text.data(), text.size());
  }
};

class WaitingTest : public testing::Test {
 protected:
  WaitingTest() {
    for (const auto& engine : {here, there}) add_linked(*engine, *Stalled::table());
  }
  ~WaitingTest() override {
    here->close();
    there->close();
  }
  void add_fake() {
    for (const auto& engine : {here, there}) add_linked(*engine, *plugin::table<fake::FakeBackend>());
  }
  std::shared_ptr<RequestCore> make() {
    const auto region = [](Engine& engine, std::span<std::byte> bytes) {
      const MemoryRange range{bytes.data(), bytes.size()};
      return engine.regions().add({&range, 1}, {}, {}).value().front().id;
    };
    const RegionId theirs = region(*there, far);
    meet();
    ours = region(*here, near);
    RequestPlan plan;
    plan.op = Op::read;
    plan.local = here->lists().prepare(Side::local(), UniformPages{ours, 0, 4096, 4096, 1}).value();
    plan.remote =
        here->lists().prepare(Side::remote("there"), UniformPages{theirs, 0, 4096, 4096, 1}).value();
    plan.count = 1;
    return here->requests().make(std::move(plan)).value();
  }
  void meet() { EXPECT_TRUE(here->peers().import(there->regions().exported({}).value()).ok()); }
  /// Runs progress until the condition holds.
  template <class Done>
  [[nodiscard]] bool until(Done done) {
    const Deadline deadline = Deadline::after(10s);
    while (!done() && !deadline.expired()) {
      (void)here->progress().poll();
      (void)there->progress().poll();
    }
    return done();
  }

  Logger logger;
  const test::TemporaryFolder folder;
  FakeClock clock;
  std::shared_ptr<Engine> here = Engine::open({.name = "here", .runtime_dir = folder.path()}, logger, clock)
                                     .value(),
                          there =
                              Engine::open({.name = "there", .runtime_dir = folder.path()}, logger).value();
  std::array<std::byte, 4096> near{}, far{};
  RegionId ours{};
};

TEST_F(WaitingTest, a_post_waits_for_its_link_and_goes_to_the_backend_once_it_is_ready) {
  const auto request = make();
  ASSERT_TRUE(request->post(nullptr).ok());
  (void)here->progress().poll();
  EXPECT_EQ(request->state(), RequestState::posted);
  EXPECT_EQ(Stalled::posts, 0);
  Stalled::say(HEADRACE_LINK_READY);
  EXPECT_TRUE(until([&] { return request->ended(); }));
  EXPECT_EQ(request->state(), RequestState::done);
  EXPECT_EQ(Stalled::posts, 1);
  EXPECT_TRUE(request->post(nullptr).ok());
  EXPECT_EQ(Stalled::posts, 2) << "the link is ready: a post goes to the backend at once";
}

TEST_F(WaitingTest, a_canceled_post_ends_at_once_and_is_never_handed_over) {
  const auto request = make();
  ASSERT_TRUE(request->post(nullptr).ok());
  request->cancel();
  EXPECT_EQ(request->state(), RequestState::canceled);
  EXPECT_EQ(Stalled::cancels, 0);
  for (const auto& link : here->links().all()) EXPECT_TRUE(link->in_flight().all().empty());
  Stalled::say(HEADRACE_LINK_READY);
  (void)here->progress().poll();
  EXPECT_EQ(Stalled::posts, 0);
}

TEST_F(WaitingTest, a_deadline_ends_a_waiting_post_by_the_clock_of_the_engine) {
  const auto request = make();
  const PostOptions options{.timeout = 5s};
  ASSERT_TRUE(request->post(&options).ok());
  clock.advance(4s);
  (void)here->progress().poll();
  EXPECT_EQ(request->state(), RequestState::posted);
  clock.advance(2s);
  // The engine's own thread may be the one that runs the timer: it needs a moment.
  const auto until = std::chrono::steady_clock::now() + 10s;
  while (!request->ended() && std::chrono::steady_clock::now() < until) (void)here->progress().poll();
  EXPECT_EQ(request->wait(0ns).code, Code::timed_out);
  EXPECT_EQ(request->state(), RequestState::failed);
}

TEST_F(WaitingTest, the_deadline_of_a_post_does_not_cancel_the_next_post) {
  const auto request = make();
  const PostOptions options{.timeout = 5s};
  ASSERT_TRUE(request->post(&options).ok());
  request->cancel();
  ASSERT_TRUE(request->post(nullptr).ok());
  clock.advance(10s);
  (void)here->progress().poll();
  EXPECT_EQ(request->state(), RequestState::posted);
  request->cancel();
}

TEST_F(WaitingTest, a_waiting_post_goes_over_the_next_path_if_its_link_cannot_be_made) {
  add_fake();
  far.fill(std::byte{7});
  const auto request = make();
  ASSERT_EQ(request->backend(), "stalled");
  ASSERT_TRUE(request->post(nullptr).ok());
  Stalled::say(HEADRACE_LINK_LOST, HEADRACE_NOT_SUPPORTED);
  EXPECT_TRUE(until([&] { return request->ended(); }));
  EXPECT_EQ(request->state(), RequestState::done) << request->error().message;
  EXPECT_EQ(request->backend(), "fake");
  EXPECT_EQ(near.back(), std::byte{7});
}

TEST_F(WaitingTest, a_waiting_post_ends_with_peer_lost_and_the_text_of_its_link) {
  const auto request = make();
  ASSERT_TRUE(request->post(nullptr).ok());
  Stalled::say(HEADRACE_LINK_LOST, HEADRACE_TIMED_OUT);
  EXPECT_TRUE(until([&] { return request->ended(); }));
  EXPECT_EQ(request->wait(0ns).code, Code::peer_lost);
  EXPECT_THAT(request->error().message, HasSubstr("the test says so"));
  EXPECT_EQ(Stalled::posts, 0);
}

TEST_F(WaitingTest, a_waiting_post_goes_over_the_next_path_if_there_are_no_descriptors_for_its_link) {
  add_fake();
  const auto request = make();
  ASSERT_TRUE(request->post(nullptr).ok());
  Stalled::say(HEADRACE_LINK_LOST, HEADRACE_EXHAUSTED);
  EXPECT_TRUE(until([&] { return request->ended(); }));
  EXPECT_EQ(request->state(), RequestState::done);
  EXPECT_EQ(request->backend(), "fake");
}

TEST_F(WaitingTest, a_waiting_post_ends_with_exhausted_if_no_path_has_descriptors_for_its_link) {
  const auto request = make();
  ASSERT_TRUE(request->post(nullptr).ok());
  Stalled::say(HEADRACE_LINK_LOST, HEADRACE_EXHAUSTED);
  EXPECT_TRUE(until([&] { return request->ended(); }));
  EXPECT_EQ(request->wait(0ns).code, Code::exhausted);
  EXPECT_THAT(request->error().message, HasSubstr("the test says so"));
}

TEST_F(WaitingTest, closing_the_agent_cancels_a_waiting_post) {
  const auto request = make();
  ASSERT_TRUE(request->post(nullptr).ok());
  here->close();
  EXPECT_EQ(request->state(), RequestState::canceled);
  EXPECT_EQ(request->post(nullptr).code, Code::invalid_argument);
}

TEST_F(WaitingTest, messages_wait_for_their_link_and_are_sent_in_order) {
  meet();
  for (const char* const text : {"one", "two", "three"})
    ASSERT_TRUE(here->notifications().send("there", text).ok());
  (void)here->progress().poll();
  EXPECT_TRUE(Stalled::messages.empty());
  Stalled::full = 1;
  Stalled::say(HEADRACE_LINK_READY);
  ASSERT_TRUE(here->notifications().send("there", "four").ok());
  EXPECT_TRUE(until([&] {
    clock.advance(1ms);  // after a full queue the backend is asked again in a while
    return Stalled::messages.size() == 4;
  }));
  const std::array<const char*, 4> expected{"one", "two", "three", "four"};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_THAT(Stalled::messages[i], HasSubstr(expected[i]));
}

TEST_F(WaitingTest, messages_of_a_link_that_cannot_be_made_go_over_the_next_backend) {
  add_fake();
  meet();
  ASSERT_TRUE(here->notifications().send("there", "hello").ok());
  EXPECT_EQ(Stalled::links, 1);
  Stalled::say(HEADRACE_LINK_LOST, HEADRACE_NOT_SUPPORTED);
  EXPECT_TRUE(until([&] { return !there->notifications().inbox().empty(); }));
  const auto taken = there->notifications().take({});
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken.front().payload, "hello");
  EXPECT_EQ(here->counters().notifications_dropped.value(), 0U);
}

TEST_F(WaitingTest, messages_that_no_backend_can_carry_are_counted_as_dropped) {
  meet();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(here->notifications().send("there", "hello").ok());
  Stalled::say(HEADRACE_LINK_LOST, HEADRACE_NOT_SUPPORTED);
  EXPECT_TRUE(until([&] { return here->counters().notifications_dropped.value() == 3; }));
}

TEST_F(WaitingTest, a_call_that_waits_returns_canceled_when_the_agent_is_closed) {
  meet();
  std::thread waiting([&] { EXPECT_EQ(here->peers().connect("there", forever, {}).code(), Code::canceled); });
  while (Stalled::links == 0) std::this_thread::yield();
  here->close();
  waiting.join();
  EXPECT_EQ(here->peers().connect("there", 0ns, {}).code(), Code::invalid_argument);
}

TEST_F(WaitingTest, a_deregistration_asks_a_peer_that_connects_meanwhile) {
  const RegionId region = (make(), ours);
  Stalled::say(HEADRACE_LINK_READY);
  add_fake();
  const auto from_a_store = here->regions().exported({}).value();
  std::atomic<bool> done = false;
  // The peer behind the first link never answers. The other peer answers over the link that it makes
  // meanwhile.
  std::thread deregistering([&] {
    EXPECT_EQ(here->regions().deregister({&region, 1}, forever).code(), Code::canceled);
    done = true;
  });
  while (here->regions().find(region.value) != nullptr) std::this_thread::yield();
  const auto other = Engine::open({.name = "other", .runtime_dir = folder.path()}, logger).value();
  add_linked(*other, *plugin::table<fake::FakeBackend>());
  ASSERT_TRUE(other->peers().import(from_a_store).ok());
  ASSERT_EQ(other->peers().regions_of("here").value().size(), 1U);
  const auto life = other->peers().find("here").value();
  const std::uint64_t epoch = life->epoch.load();
  ASSERT_TRUE(other->peers().connect("here", 10s, {}).ok());
  const Deadline deadline = Deadline::after(10s);
  while (life->epoch.load() == epoch && !deadline.expired()) (void)other->progress().poll();
  EXPECT_GT(life->epoch.load(), epoch) << "the question has arrived";
  ASSERT_TRUE(other->peers().import(from_a_store).ok());
  EXPECT_TRUE(other->peers().regions_of("here").value().empty()) << "it is older than the revocation";
  EXPECT_FALSE(done);
  here->close();
  deregistering.join();
  other->close();
}

}  // namespace
}  // namespace headrace::engine
