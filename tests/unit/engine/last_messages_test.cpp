// SPDX-License-Identifier: Apache-2.0
// Notifications that were accepted leave: before an agent that closes says goodbye, and over another link if
// theirs is lost.
#include "base/clock.hpp"
#include "engine/engine.hpp"
#include "support/temporary_folder.hpp"
#include "unit/engine/deaf_backend.hpp"
#include "unit/engine/linked_backend.hpp"
#include "unit/engine/parts.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace headrace::engine {
namespace {

using namespace std::chrono_literals;

/// The time of day, until a test stops it.
class StoppableClock final : public Clock {
 public:
  [[nodiscard]] std::uint64_t now_ns() const noexcept override {
    const std::uint64_t stopped_ns = stopped_ns_;
    return stopped_ns != 0 ? stopped_ns : headrace::now_ns();
  }
  void stop() { stopped_ns_ = headrace::now_ns(); }
  void go_on() { stopped_ns_ = 0; }

 private:
  std::atomic<std::uint64_t> stopped_ns_ = 0;
};

class LastMessages : public testing::Test {
 protected:
  static constexpr std::size_t header_bytes = 16;

  LastMessages() {
    add_linked(*engine, *Deaf::table());
    Deaf::sends = [this](std::uint32_t channel, std::string_view bytes) { note(channel, bytes); };
  }
  ~LastMessages() override {
    Deaf::unsent = 0;
    engine->close();
    Deaf::sends = nullptr;
  }

  void import_peer(const std::vector<std::string>& backends) {
    wire::Metadata m;
    m.name = "there";
    m.incarnation = 5;
    m.version = 1;
    for (const std::string& backend : backends) m.backends.push_back({backend, "1", "info"});
    ASSERT_TRUE(engine->peers().import(std::move(m)).ok());
  }
  Code send(std::string_view payload) { return engine->notifications().send("there", payload).code(); }
  /// From now on a close is waiting for what has not left. What this sends before does not count.
  void wait_for_the_close() {
    while (send("late") != Code::invalid_argument) std::this_thread::yield();
  }
  void note(std::uint32_t channel, std::string_view bytes) {
    const std::lock_guard lock(mutex);
    if (channel == HEADRACE_CHANNEL_USER && bytes.substr(header_bytes) == "late") return;
    if (channel == HEADRACE_CHANNEL_USER)
      sent.emplace_back(bytes.substr(header_bytes));
    else
      sent.emplace_back(Deaf::unsent == 0 ? "goodbye" : "goodbye before the rest");
  }
  std::vector<std::string> all_sent() {
    const std::lock_guard lock(mutex);
    return sent;
  }
  std::uint64_t dropped() { return engine->counters().notifications_dropped.value(); }
  template <class Condition>
  [[nodiscard]] bool until(Condition&& condition) {
    return engine->progress().wait(condition, Deadline::after(30s));
  }

  Logger logger;
  const test::TemporaryFolder folder;
  StoppableClock clock;
  std::shared_ptr<Engine> engine =
      Engine::open({.name = "here", .runtime_dir = folder.path()}, logger, clock).value();
  std::mutex mutex;
  std::vector<std::string> sent;
};

TEST_F(LastMessages, that_wait_for_a_link_leave_when_it_is_ready_though_the_agent_is_closing) {
  import_peer({"deaf"});
  ASSERT_EQ(send("first"), Code::ok);
  ASSERT_EQ(send("second"), Code::ok);
  const std::jthread peer([&] {
    wait_for_the_close();
    Deaf::make_ready();
  });
  engine->close();
  EXPECT_EQ(all_sent(), (std::vector<std::string>{"first", "second", "goodbye"}));
  EXPECT_EQ(dropped(), 0U);
}

TEST_F(LastMessages, that_wait_in_a_backend_leave_before_the_goodbye) {
  import_peer({"deaf"});
  ASSERT_EQ(send("message"), Code::ok);
  Deaf::make_ready();
  ASSERT_TRUE(until([&] { return all_sent().size() == 1; }));
  Deaf::unsent = 3;
  const std::jthread peer([&] {
    wait_for_the_close();
    Deaf::unsent = 0;
  });
  engine->close();
  EXPECT_EQ(all_sent(), (std::vector<std::string>{"message", "goodbye"}));
}

TEST_F(LastMessages, that_a_peer_does_not_take_are_counted_and_hold_the_close_up_for_a_second) {
  import_peer({"deaf"});
  ASSERT_EQ(send("message"), Code::ok);
  Deaf::make_ready();
  ASSERT_TRUE(until([&] { return all_sent().size() == 1; }));
  Deaf::unsent = 3;
  const auto begin = std::chrono::steady_clock::now();
  engine->close();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 1s);
  EXPECT_EQ(dropped(), 3U);
}

TEST_F(LastMessages, for_a_link_that_is_not_ready_by_then_are_counted) {
  import_peer({"deaf"});
  ASSERT_EQ(send("first"), Code::ok);
  ASSERT_EQ(send("second"), Code::ok);
  engine->close();
  EXPECT_EQ(dropped(), 2U);
}

TEST_F(LastMessages, of_a_link_that_is_lost_hold_no_close_up) {
  import_peer({"deaf"});
  ASSERT_EQ(send("message"), Code::ok);
  Deaf::make_ready();
  ASSERT_TRUE(until([&] { return all_sent().size() == 1; }));
  Deaf::unsent = 3;
  engine->link_event(Deaf::link, HEADRACE_LINK_LOST, {Code::peer_lost}, "it died");
  clock.stop();  // the second never passes
  const auto closed = std::async(std::launch::async, [&] { engine->close(); });
  EXPECT_EQ(closed.wait_for(60s), std::future_status::ready);
  clock.go_on();
}

TEST_F(LastMessages, that_wait_for_a_link_take_the_credit_of_the_first_messages) {
  import_peer({"deaf"});
  for (std::uint64_t i = 0; i < wire::first_credit.messages; ++i) ASSERT_EQ(send("m"), Code::ok);
  EXPECT_EQ(send("one more"), Code::would_block);
  Deaf::make_ready();
  ASSERT_TRUE(until([&] { return all_sent().size() == wire::first_credit.messages; }));
  EXPECT_EQ(send("one more"), Code::would_block);
  engine->links().find(Deaf::link)->credit().raise({wire::first_credit.messages + 1, 1 << 20});
  EXPECT_EQ(send("one more"), Code::ok);
}

/// Another backend that reaches the peer, over a link that is ready.
class AnotherLink : public LastMessages {
 protected:
  AnotherLink() {
    Recorded::clear();
    sends = [this](std::uint32_t channel, std::string_view bytes) { note(channel, bytes); };
    static headrace_backend_v1 table;
    table = recording_table("other");
    table.notify = [](void*, void*, uint32_t channel, const void* bytes, size_t length) {
      sends(channel, {static_cast<const char*>(bytes), length});
      return headrace_status_v1{HEADRACE_OK, 0, HEADRACE_NO_PAGE};
    };
    add_linked(*engine, table);
  }
  ~AnotherLink() override { engine->close(); }

  std::shared_ptr<Link> connect_over_other() {
    EXPECT_EQ(engine->peers().connect("there", 0ns, {"other"}).code(), Code::timed_out);
    for (const auto& link : engine->links().all()) {
      if (link->backend().name() != "other") continue;
      engine->link_event(link->token(), HEADRACE_LINK_READY, {}, "");
      return link;
    }
    return nullptr;
  }

  static inline std::function<void(std::uint32_t, std::string_view)> sends;
};

TEST_F(AnotherLink, takes_the_messages_of_a_lost_one_in_their_order_once_the_peer_has_room) {
  import_peer({"deaf", "other"});
  for (const char* const payload : {"first", "second", "third"}) ASSERT_EQ(send(payload), Code::ok);
  const auto other = connect_over_other();
  ASSERT_TRUE(other);
  while (other->credit().take(1)) {
  }
  engine->link_event(Deaf::link, HEADRACE_LINK_LOST, {Code::not_supported}, "not this way");
  ASSERT_TRUE(until([&] { return other->queue().messages() == 3; })) << dropped() << " dropped";
  EXPECT_EQ(send("fourth"), Code::would_block) << "it would overtake them";
  EXPECT_EQ(all_sent(), std::vector<std::string>());
  other->credit().raise({2 * wire::first_credit.messages, 2 * wire::first_credit.bytes});
  ASSERT_TRUE(until([&] { return all_sent().size() == 3; }));
  ASSERT_TRUE(until([&] { return send("fourth") == Code::ok; }));
  EXPECT_EQ(all_sent(), (std::vector<std::string>{"first", "second", "third", "fourth"}));
  EXPECT_EQ(dropped(), 0U);
}

}  // namespace
}  // namespace headrace::engine
