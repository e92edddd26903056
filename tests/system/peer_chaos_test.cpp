// SPDX-License-Identifier: Apache-2.0
// A peer that is killed, stopped and restarted under its name at random moments: every request ends within
// its deadline, done with the right bytes or peer_lost with the peer's name, and nothing is left behind.
#include "peer_process.hpp"

#include <dirent.h>

#include <fstream>
#include <random>
#include <thread>

namespace headrace::test {
namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t pages = 2048;
constexpr std::size_t bytes = pages * page_bytes;
constexpr auto deadline = std::chrono::seconds(20);

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

std::size_t mapped_files() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:") != std::string::npos) ++count;
  return count;
}

class PeerChaos : public ::testing::TestWithParam<std::string> {
 protected:
  // A stopped peer gives no sign over sockets but its silence: it is not to take 5 s a time here.
  std::vector<std::string> options() const {
    return GetParam() == "tcp"
               ? std::vector<std::string>{"tcp.heartbeat_interval=100ms", "tcp.heartbeat_timeout=2s"}
               : std::vector<std::string>{};
  }
  Agent open_here() const {
    AgentOptions o;
    o.backends = {GetParam()};
    for (const std::string& option : options())
      o.options[option.substr(0, option.find('='))] = option.substr(option.find('=') + 1);
    return must(Agent::open(unique_name("survivor"), o));
  }

  void run(int moments) {
    std::mt19937_64 random(std::random_device{}());
    std::vector<std::byte> ours(bytes);
    Agent here = open_here();
    const std::string name = unique_name("victim");
    const Region mine = must(here.register_memory({ours.data(), ours.size()}));
    const PageList local = must(here.prepare(UniformPages{mine.id, 0, 0, page_bytes, pages}));
    std::size_t descriptors = 0;
    std::size_t mappings = 0;
    int done = 0, lost = 0;
    for (int moment = 0; moment < moments; ++moment) {
      SCOPED_TRACE("moment " + std::to_string(moment));
      const std::uint64_t seed = random();
      PeerProcess peer(name, GetParam(), bytes, seed, options());
      ASSERT_FALSE(peer.metadata().empty()) << "the peer did not start";
      must(here.import_metadata(peer.metadata()));
      const auto regions = must(here.peer_regions(name));
      ASSERT_EQ(regions.size(), 2u);
      std::vector<Page> far;
      for (std::size_t i = 0; i < pages; ++i) {
        const bool second = i >= pages / 2;
        far.push_back(
            {regions[second ? 1 : 0].id.value, (i - (second ? pages / 2 : 0)) * page_bytes, page_bytes});
      }
      Request request = must(here.make_request(Op::read, local, must(here.prepare(name, far)),
                                               {.backends = {}, .timeout = deadline}));

      if (moment % 2 ==
          0) {  // every other peer is hit after a first transfer, the rest perhaps while they connect
        ASSERT_TRUE(request.post().ok());
        ASSERT_TRUE(request.wait(deadline).ok()) << request.error().message;
        ++done;
      }
      const int what = moment % 3;  // kill, stop, kill in a pause between posts
      std::thread blow([&, pause = std::chrono::microseconds(random() % 8000)] {
        std::this_thread::sleep_for(pause);
        peer.signal(what == 1 ? SIGSTOP : SIGKILL);
      });
      bool over = false;
      const auto began = std::chrono::steady_clock::now();
      while (!over) {
        std::fill(ours.begin(), ours.end(), std::byte{0});
        Status status = request.post();
        if (status.ok()) status = request.wait(deadline + std::chrono::seconds(3));
        ASSERT_NE(request.state(), RequestState::posted) << "a request outlived its deadline";
        if (status.ok()) {
          ++done;
          for (std::size_t i = 0; i < bytes; i += 997)
            ASSERT_EQ(static_cast<unsigned char>(ours[i]), PeerProcess::expected(i, seed)) << "byte " << i;
        } else {
          ++lost;
          over = true;
          EXPECT_EQ(status.code, Code::peer_lost) << request.error().message;
          EXPECT_NE(request.error().message.find(name), std::string::npos) << request.error().message;
        }
        // Copies from a stopped process of this host go on; the test need not.
        if (what == 1 && std::chrono::steady_clock::now() - began > std::chrono::milliseconds(3500))
          over = true;
      }
      blow.join();
      peer.end();
      request = Request();
      if (moment == 2) {
        descriptors = open_descriptors();
        mappings = mapped_files();
      }
    }
    must(here.forget(name));
    // Links of the dead are closed by whoever drives, soon after.
    const auto settled = [&] {
      return open_descriptors() <= descriptors + 4 && mapped_files() <= mappings + 2;
    };
    for (const auto began = std::chrono::steady_clock::now();
         !settled() && std::chrono::steady_clock::now() - began < deadline;) {
      (void)here.wait_notification(std::chrono::milliseconds(10));
    }
    EXPECT_LE(open_descriptors(), descriptors + 4) << "descriptors of dead peers stayed open";
    EXPECT_LE(mapped_files(), mappings + 2) << "memory of dead peers stayed mapped";
    EXPECT_GT(done, 0);
    EXPECT_GT(lost, 0);
    std::printf("%s: %d posts done, %d peer_lost over %d moments\n", GetParam().c_str(), done, lost, moments);
  }
};

std::vector<std::string> process_backends() {
  std::vector<std::string> names;
  for (const std::string& name : all_backends())
    if (name != "fake") names.push_back(name);  // lives within one process
  return names;
}

TEST_P(PeerChaos, a_notification_to_a_dead_peer_is_refused_with_its_name) {
  Agent here = open_here();
  const std::string name = unique_name("victim");
  PeerProcess peer(name, GetParam(), bytes, 1, options());
  must(here.import_metadata(peer.metadata()));
  must(here.notify(name, "are you there?"));
  must(here.connect(name, deadline));
  peer.signal(SIGKILL);
  peer.end();
  Result<void> told;
  for (const auto began = std::chrono::steady_clock::now();
       told.ok() && std::chrono::steady_clock::now() - began < deadline;) {
    told = here.notify(name, "still there?");
    (void)here.wait_notification(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(told.code(), Code::peer_lost);
  EXPECT_NE(told.error().message.find(name), std::string::npos) << told.error().message;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(here.notify(name, "and now?").code(), Code::peer_lost)
        << "not taken by a connection that will never be";
    (void)here.wait_notification(std::chrono::milliseconds(1));
  }
}

TEST_P(PeerChaos, a_peer_dies_stops_and_restarts_at_random_moments) { run(12); }
TEST_P(PeerChaos, a_peer_dies_stops_and_restarts_at_two_hundred_random_moments_slow) { run(200); }

INSTANTIATE_TEST_SUITE_P(Backends, PeerChaos, ::testing::ValuesIn(process_backends()),
                         [](const auto& backend) { return backend.param; });

}  // namespace
}  // namespace headrace::test
