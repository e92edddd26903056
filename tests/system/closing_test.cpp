// SPDX-License-Identifier: Apache-2.0
// An agent may be closed at any moment, beside any call: calls that wait return canceled, later ones
// invalid_argument.
#include "two_agents.hpp"

#include "support/child_ending.hpp"
#include "support/silent_port.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <latch>
#include <optional>
#include <thread>
#include <vector>

namespace headrace::test {
namespace {

constexpr std::size_t closing_bytes = 64 * 1024, closing_page = 1024;

/// Two agents that know each other, and a request between them.
struct Closing {
  explicit Closing(const std::string& backend) : ours(closing_bytes), theirs(closing_bytes), agents(backend) {
    const Region mine = must(agents.here.register_memory({ours.data(), ours.size()}));
    const Region far = must(agents.there.register_memory({theirs.data(), theirs.size()}));
    shared = must(agents.there.allocate(closing_page));
    agents.meet();
    constexpr std::size_t half = closing_bytes / 2;
    for (std::size_t i = 0; i < requests.size(); ++i) {  // each with memory of its own
      const UniformPages near{mine.id, i * half, 0, closing_page, half / closing_page};
      const UniformPages remote{far.id, i * half, 0, closing_page, half / closing_page};
      requests[i] =
          must(agents.here.make_request(Op::read, {must(agents.here.prepare(near)),
                                                   must(agents.here.prepare(agents.there.name(), remote))}));
    }
  }

  Code post_and_wait() {
    const Status posted = requests[0].post();
    return posted.ok() ? requests[0].wait(patience).code : posted.code;
  }
  Code post_and_poll() {
    const Status posted = requests[1].post();
    if (!posted.ok()) return posted.code;
    for (RequestState state = requests[1].state();; state = requests[1].poll())
      if (state != RequestState::posted && state != RequestState::canceling) return requests[1].error().code;
  }
  Code register_and_deregister() {
    const auto region = agents.here.register_memory({passing.data(), passing.size()});
    return region ? agents.here.deregister(region->id, patience).code() : region.code();
  }
  Code map() {
    const auto mapped = agents.here.map(agents.there.name(), shared.id, patience);
    return mapped.code() == Code::not_supported ? Code::ok : mapped.code();  // tcp maps nothing
  }
  Code wait_for_message() { return agents.here.wait_notification(patience).code(); }
  Code notify() {
    const Code code = agents.here.notify(agents.there.name(), "hello").code();
    (void)agents.there.take_notifications();
    return code == Code::would_block ? Code::ok : code;
  }
  Code connect() { return agents.here.connect(agents.there.name(), patience).code(); }

  std::vector<std::byte> ours, theirs, passing = std::vector<std::byte>(closing_page);
  TwoAgents agents;
  Region shared;
  std::array<Request, 2> requests;
};

class ClosingOverBackend : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Backends, ClosingOverBackend, ::testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend.param; });

TEST(Closing, after_the_close_taking_notifications_is_invalid_and_the_descriptor_is_readable) {
  Agent agent = must(Agent::open(unique_name("agent"), {{"shm"}, "", "", {}}));
  const int fd = must(agent.notification_fd());
  ASSERT_TRUE(agent.notify(agent.name(), "x").ok());
  agent.close();
  pollfd poll{fd, POLLIN, 0};
  EXPECT_EQ(::poll(&poll, 1, 0), 1);
  EXPECT_EQ(agent.take_notifications().code(), Code::invalid_argument);
  EXPECT_EQ(agent.take_notification().code(), Code::invalid_argument);
  EXPECT_EQ(agent.notification_fd().code(), Code::invalid_argument);
  EXPECT_EQ(::poll(&poll, 1, 0), 1) << "still";
}

/// Repeats the call until it fails, which it does once the agent is closed.
Code last_code(const std::function<Code()>& call) {
  for (;;)
    if (const Code code = call(); code != Code::ok) return code;
}

TEST_P(ClosingOverBackend, calls_on_other_threads_end_with_canceled_or_invalid_argument) {
  std::mt19937_64 random(run_seed() + 71);
  for (int round = 0; round < 12; ++round) {
    Closing closing(GetParam());
    const std::vector<std::function<Code()>> calls{[&] { return closing.post_and_wait(); },
                                                   [&] { return closing.post_and_poll(); },
                                                   [&] { return closing.register_and_deregister(); },
                                                   [&] { return closing.map(); },
                                                   [&] { return closing.wait_for_message(); },
                                                   [&] { return closing.notify(); },
                                                   [&] { return closing.connect(); }};
    std::latch begun(static_cast<std::ptrdiff_t>(calls.size()));
    std::vector<Code> ends(calls.size(), Code::internal);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < calls.size(); ++i)
        threads.emplace_back([&, i] {
          begun.count_down();
          ends[i] = last_code(calls[i]);
        });
      begun.wait();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
      closing.agents.here.close();
    }
    for (std::size_t i = 0; i < ends.size(); ++i)
      EXPECT_TRUE(ends[i] == Code::canceled || ends[i] == Code::invalid_argument)
          << "round " << round << ", call " << i << ": " << code_name(ends[i]) << ", "
          << closing.requests[0].error().message;
    EXPECT_EQ(closing.requests[0].post().code, Code::invalid_argument);
    EXPECT_EQ(closing.notify(), Code::invalid_argument);
  }
}

TEST_P(ClosingOverBackend, notifications_that_were_accepted_arrive_though_their_sender_closes_at_once) {
  struct Case {
    bool connected;
    std::size_t count, bytes;
  };
  for (const auto& [connected, count, bytes] :
       {Case{false, 3, 10}, Case{false, 100, 30'000}, Case{true, 100, 30'000}}) {
    TwoAgents agents(GetParam());
    agents.meet();
    if (connected) must(agents.here.connect(agents.there.name(), patience));
    const std::string filler(bytes, '.');
    std::size_t accepted = 0;
    while (accepted < count &&
           agents.here.notify(agents.there.name(), std::to_string(accepted) + filler).ok())
      ++accepted;
    agents.here.close();
    for (std::size_t i = 0; i < accepted; ++i)
      ASSERT_EQ(must(agents.there.wait_notification(patience)).payload, std::to_string(i) + filler)
          << "of " << accepted << (connected ? " over a link" : " before there was a link");
  }
}

TEST_P(ClosingOverBackend, notifications_of_posts_that_are_done_arrive_though_their_sender_closes_at_once) {
  TwoAgents agents(GetParam());
  std::vector<std::byte> ours(64), theirs(64);
  const Region mine = must(agents.here.register_memory({ours.data(), ours.size()}));
  const Region far = must(agents.there.register_memory({theirs.data(), theirs.size()}));
  agents.meet();
  const UniformPages near{mine.id, 0, 64, 64, 1}, remote{far.id, 0, 64, 64, 1};
  Request request = must(agents.here.write(agents.there.name(), near, remote));
  ASSERT_TRUE(request.wait(patience).ok());
  const std::string filler(60'000, '.');
  std::size_t done = 0;
  for (; done < 50; ++done) {
    if (!request.post({.notification = std::to_string(done) + filler}).ok()) break;
    ASSERT_TRUE(request.wait(patience).ok());
  }
  agents.here.close();
  for (std::size_t i = 0; i < done; ++i)
    ASSERT_EQ(must(agents.there.wait_notification(patience)).payload, std::to_string(i) + filler);
}

TEST(Closing, it_ends_fetches_and_sends_of_metadata_that_a_silent_server_holds_up) {
  SilentPort port;
  Agent agent = must(Agent::open(unique_name("closed"), {{"shm"}, "", "", {}}));
  Code fetched = Code::ok, sent = Code::ok;
  const auto begin = std::chrono::steady_clock::now();
  {
    const std::jthread fetching([&] { fetched = agent.fetch_metadata(port.address(), patience).code(); });
    const std::jthread sending([&] { sent = agent.send_metadata(port.address(), {}, patience).code(); });
    EXPECT_TRUE(port.accepts(2));
    agent.close();
  }
  EXPECT_EQ(fetched, Code::canceled);
  EXPECT_EQ(sent, Code::canceled);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, patience / 2);
}

TEST(Closing, it_ends_calls_of_a_store_that_a_silent_server_holds_up_and_no_call_of_another_agent) {
  SilentPort etcd;
  const AgentOptions options{{"shm"}, "", "etcd://" + etcd.address() + "/closing", {}};
  Agent agent = must(Agent::open(unique_name("closed"), options));
  Agent other = must(Agent::open(unique_name("other"), options));  // of the same session
  Code published = Code::ok, found = Code::ok, listed = Code::ok, found_by_other = Code::ok;
  std::atomic<bool> other_waits{true};
  std::jthread finding_by_other([&] {
    found_by_other = other.find("nobody", patience).code();
    other_waits = false;
  });
  must(agent.watch_namespace([](const PeerEvent&) {}));
  std::chrono::steady_clock::time_point begin;
  {
    const std::jthread publishing([&] { published = agent.publish().code(); });
    const std::jthread finding([&] { found = agent.find("nobody", patience).code(); });
    const std::jthread listing([&] { listed = agent.list_namespace(patience).code(); });
    EXPECT_TRUE(etcd.accepts(5)) << "one connection for each call, and one for the watch";
    begin = std::chrono::steady_clock::now();
    agent.close();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, patience / 2);
  EXPECT_EQ(published, Code::canceled);
  EXPECT_EQ(found, Code::canceled);
  EXPECT_EQ(listed, Code::canceled);
  EXPECT_EQ(agent.publish().code(), Code::invalid_argument);
  EXPECT_TRUE(other_waits);
  other.close();
  finding_by_other.join();
  EXPECT_EQ(found_by_other, Code::canceled);
}

TEST(Closing, a_forked_child_that_destroys_its_copy_ends_no_call_of_its_parent) {
  Agent agent = must(Agent::open(unique_name("parent"), {{"shm"}, "", "", {}}));
  const Agent server = must(Agent::open(unique_name("server"), {{"shm"}, "127.0.0.1:0", "", {}}));
  const pid_t child = ::fork();
  if (child == 0) {
    {
      const Agent copy = std::move(agent);
    }
    ::_exit(0);
  }
  EXPECT_TRUE(ends_well(child));
  must(agent.fetch_metadata(server.listen_address(), patience));
}

}  // namespace
}  // namespace headrace::test
