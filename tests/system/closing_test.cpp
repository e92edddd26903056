// SPDX-License-Identifier: Apache-2.0
// An agent may be closed at any moment, beside any call: calls that wait return canceled, later ones
// invalid_argument.
#include "two_agents.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
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

/// A port of this host on which connections wait for an accept that never comes.
class SilentPort {
 public:
  SilentPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address_), sizeof address_), 0);
    EXPECT_EQ(::listen(socket_, 8), 0);
    socklen_t length = sizeof address_;
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address_), &length), 0);
  }
  ~SilentPort() { ::close(socket_); }
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;
  [[nodiscard]] std::string address() const {
    return "127.0.0.1:" + std::to_string(ntohs(address_.sin_port));
  }

 private:
  int socket_;
  sockaddr_in address_{AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {}};
};

TEST(Closing, it_ends_fetches_and_sends_of_metadata_that_a_silent_server_holds_up) {
  const SilentPort port;
  Agent agent = must(Agent::open(unique_name("closed"), {{"shm"}, "", "", {}}));
  Code fetched = Code::ok, sent = Code::ok;
  const auto begin = std::chrono::steady_clock::now();
  {
    const std::jthread fetching([&] { fetched = agent.fetch_metadata(port.address(), patience).code(); });
    const std::jthread sending([&] { sent = agent.send_metadata(port.address(), {}, patience).code(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    agent.close();
  }
  EXPECT_EQ(fetched, Code::canceled);
  EXPECT_EQ(sent, Code::canceled);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, patience / 2);
}

}  // namespace
}  // namespace headrace::test
