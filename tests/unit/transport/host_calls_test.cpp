// SPDX-License-Identifier: Apache-2.0
#include "transport/host_calls.hpp"

#include "support/plugin_host.hpp"
#include "support/sleeping_thread.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headrace::transport {
namespace {

/// Notes its calls, and whether they came with its lock held.
class NotingLink final : public HostCalls::Link {
 public:
  explicit NotingLink(plugin::Host host) : HostCalls::Link(host) {}

  void deliver() override { note("deliver"); }
  void lose(Status status, std::string why) override {
    note("lose: " + why);
    EXPECT_EQ(status.code, Code::peer_lost);
  }
  void disconnect() const { wait_for_host_calls(); }
  void note(std::string call) {
    EXPECT_TRUE(mutex.try_lock()) << call << " with a lock held";
    mutex.unlock();
    calls.push_back(std::move(call));
  }

  std::mutex mutex;
  std::vector<std::string> calls;
};

struct HostCallsTest : ::testing::Test {
  HostCallsTest() {
    host.on_completed = [this](std::uint64_t, Status) { link.note("completed"); };
    slot = host.new_slot();
  }
  ~HostCallsTest() override { EXPECT_EQ(host.broken_rules(), std::vector<std::string>()); }

  test::PluginHost host{{}};
  NotingLink link{plugin::Host(host.table())};
  std::uint64_t slot = 0;
};

TEST_F(HostCallsTest, are_made_after_the_lock_in_the_order_ends_messages_loss) {
  const std::uint64_t token = host.post_begins(slot);
  {
    HostCalls calls(link);
    const std::scoped_lock lock(link.mutex);
    calls.lose({Code::peer_lost}, "first");
    calls.lose({Code::corrupt}, "second");
    calls.deliver();
    calls.completed(token, {Code::not_found}, "why");
    calls.sent(3);
    calls.sent(4);
    calls.received(5);
    calls.refused_chunk();
    EXPECT_TRUE(host.in_flight(slot));
    EXPECT_EQ(link.calls, std::vector<std::string>());
  }
  EXPECT_EQ(link.calls, (std::vector<std::string>{"completed", "deliver", "lose: first"}));
  EXPECT_EQ(host.last_end(slot)->status.code, Code::not_found);
  EXPECT_EQ(host.last_end(slot)->text, "why");
  EXPECT_EQ(host.counter("sent_bytes"), 7U);
  EXPECT_EQ(host.counter("received_bytes"), 5U);
  EXPECT_EQ(host.counter("refused_chunks"), 1U);
}

TEST_F(HostCallsTest, are_made_once_though_flushed_twice) {
  HostCalls calls(link);
  calls.completed(host.post_begins(slot), {}, {});
  calls.deliver();
  calls.flush();
  calls.flush();
  EXPECT_EQ(link.calls, (std::vector<std::string>{"completed", "deliver"}));
}

TEST_F(HostCallsTest, keep_a_disconnect_waiting_as_long_as_they_live) {
  std::optional<HostCalls> calls(std::in_place, link);
  calls->deliver();
  std::atomic<bool> returned{false};
  std::jthread other([&] {
    link.disconnect();
    EXPECT_EQ(link.calls, std::vector<std::string>{"deliver"});
    returned = true;
  });
  test::settle_threads();
  EXPECT_FALSE(returned.load());
  calls.reset();
  other.join();
}

}  // namespace
}  // namespace headrace::transport
