// SPDX-License-Identifier: Apache-2.0
// Counters between two agents, over every backend.
#include "two_agents.hpp"

#include <poll.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace headrace::test {
namespace {

class CountersOverBackend : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr Immediate counted{5, 9};
  static constexpr std::size_t writers = 4, each = 250, posts = writers * each;
  static constexpr std::size_t page_bytes = 1000;  // pages share cache lines

  /// `writers` threads write one page each time, every page once, and each write has the same immediate.
  static void write_all(Agent& here, const std::string& peer, RegionId mine, RegionId far) {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < writers; ++t)
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < each; ++i) {
          const UniformPages pages_here{mine, (t * each + i) * page_bytes, 0, page_bytes, 1};
          const UniformPages pages_there{far, (t * each + i) * page_bytes, 0, page_bytes, 1};
          PostOptions options;
          options.immediate = counted;
          Result<Request> written = here.write(peer, pages_here, pages_there, options);
          while (written.code() == Code::would_block)  // a queue is full
            written = here.write(peer, pages_here, pages_there, options);
          must(std::move(written));
        }
      });
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, CountersOverBackend, ::testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend.param; });

TEST_P(CountersOverBackend, the_waiter_wakes_once_when_all_bytes_are_there) {
  const std::vector<std::byte> sent = random_bytes(posts * page_bytes, 1);
  std::vector<std::byte> source = sent, target(posts * page_bytes);
  TwoAgents agents{GetParam()};
  const Region mine = must(agents.here.register_memory({source.data(), source.size()}));
  const Region far = must(agents.there.register_memory({target.data(), target.size()}));
  agents.meet();
  const Counter counter = must(agents.there.counter(counted));
  const int fd = must(counter.event_fd(posts));
  std::atomic<int> wakes = 0, right = 0;
  counter.on_reached(posts, [&] {
    right += target == sent;
    ++wakes;
  });
  std::jthread polling([&, word = must(counter.word())] {
    const auto* const count = reinterpret_cast<const std::atomic<std::uint64_t>*>(word.address());
    const auto limit = std::chrono::steady_clock::now() + patience;
    while (count->load(std::memory_order_acquire) < posts && std::chrono::steady_clock::now() < limit)
      std::this_thread::yield();
    right += target == sent;
  });
  std::jthread waiting([&] {
    EXPECT_TRUE(counter.wait(posts, patience).ok());
    right += target == sent;
  });
  write_all(agents.here, agents.there.name(), mine.id, far.id);
  pollfd readable{fd, POLLIN, 0};
  EXPECT_EQ(::poll(&readable, 1, 30'000), 1);
  right += target == sent;
  polling.join();
  waiting.join();
  const auto limit = std::chrono::steady_clock::now() + patience;
  while (wakes == 0 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  EXPECT_EQ(right, 4) << "each of the four ways to wait saw all bytes";
  EXPECT_EQ(wakes, 1);
  EXPECT_EQ(counter.value(), posts);
  ::close(fd);
}

}  // namespace
}  // namespace headrace::test
