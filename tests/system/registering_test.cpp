// SPDX-License-Identifier: Apache-2.0
// Registering and deregistering for each request, while other threads post: memory stays as it is.
#include "support/heap_in_use.hpp"
#include "two_agents.hpp"

#include <thread>
#include <vector>

namespace headrace::test {
namespace {

class RegisteringOverBackend : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr std::size_t threads = 8, bytes_each = 12'345;

  /// Posts the same read again and again, and looks at its bytes.
  static void read_until(const std::stop_token& stop, Agent& here, const std::string& peer, RegionId mine,
                         RegionId far, std::size_t thread, std::vector<std::byte>& target,
                         const std::vector<std::byte>& source) {
    const std::size_t at = thread * bytes_each;
    Request request = must(
        here.make_request(Op::read, {must(here.prepare(UniformPages{mine, at, 0, bytes_each, 1})),
                                     must(here.prepare(peer, UniformPages{far, at, 0, bytes_each, 1}))}));
    while (!stop.stop_requested()) {
      std::fill_n(target.begin() + static_cast<std::ptrdiff_t>(at), bytes_each, std::byte{0});
      ASSERT_TRUE(request.post().ok()) << request.error().message;
      ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
      ASSERT_EQ(std::memcmp(target.data() + at, source.data() + at, bytes_each), 0);
    }
  }

  /// Of one agent: a region that its peer has loaded every time that it knows of it.
  static void register_and_deregister(Agent& owner, Agent& peer, std::size_t pairs) {
    std::vector<std::byte> memory(4096);
    for (std::size_t i = 0; i < pairs; ++i) {
      const Region region = must(owner.register_memory({memory.data(), memory.size()}));
      if (i % 10 == 0) must(peer.import_metadata(must(owner.export_metadata())));
      must(owner.deregister(region.id, patience));
    }
  }

  /// Returns what the heap has grown by in the last nine tenths of them.
  [[nodiscard]] double run(std::size_t pairs) {
    const std::vector<std::byte> source = random_bytes(threads * bytes_each, 1);
    std::vector<std::byte> shared = source, target(source.size());
    TwoAgents agents{GetParam()};
    const Region mine = must(agents.here.register_memory({target.data(), target.size()}));
    const Region far = must(agents.there.register_memory({shared.data(), shared.size()}));
    agents.meet();
    std::vector<std::jthread> posting;
    for (std::size_t t = 0; t < threads; ++t)
      posting.emplace_back([&, t](const std::stop_token& stop) {
        read_until(stop, agents.here, agents.there.name(), mine.id, far.id, t, target, source);
      });
    register_and_deregister(agents.there, agents.here, pairs / 10);
    register_and_deregister(agents.here, agents.there, pairs / 10);
    const std::size_t before = heap_in_use();
    register_and_deregister(agents.there, agents.here, pairs / 2);
    register_and_deregister(agents.here, agents.there, pairs / 2);
    return static_cast<double>(heap_in_use()) / static_cast<double>(before);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, RegisteringOverBackend, ::testing::Values("shm", "tcp"),
                         [](const auto& backend) { return backend.param; });

TEST_P(RegisteringOverBackend, regions_come_and_go_while_eight_threads_read) { (void)run(300); }
TEST_P(RegisteringOverBackend, a_hundred_thousand_regions_come_and_go_while_eight_threads_read_slow) {
  EXPECT_LT(run(100'000), 1.05);
}

}  // namespace
}  // namespace headrace::test
