// SPDX-License-Identifier: Apache-2.0
// Requests to several peers in one post: one completion for all, and a state for each part.
#include "peer_process.hpp"

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

namespace headrace::test {
namespace {

constexpr std::size_t peers = 3;
constexpr std::size_t page = 4096 + 13;

using Options = std::map<std::string, std::string>;

/// One agent with memory of its own and memory for each of three other agents, all in this process.
class OneAndSeveral {
 public:
  explicit OneAndSeveral(const std::string& backend, std::size_t pages = 64, const Options& options = {})
      : count(pages), here(must(Agent::open(unique_name("here"), {{backend}, "", "", options}))) {
    ours = random_bytes(peers * count * page, 1);
    mine = must(here.register_memory({ours.data(), ours.size()}));
    for (std::size_t i = 0; i < peers; ++i) {
      Agent& peer =
          others.emplace_back(must(Agent::open(unique_name("there"), {{backend}, "", "", options})));
      auto& bytes = theirs.emplace_back(random_bytes(count * page, 10 + i));
      regions.push_back(must(peer.register_memory({bytes.data(), bytes.size()})));
    }
    meet();
  }
  void meet() {
    for (Agent& other : others) {
      must(here.import_metadata(must(other.export_metadata())));
      must(other.import_metadata(must(here.export_metadata())));
    }
  }
  /// Page k is in the third of our memory that is for this peer; on the peer it is page k of the peer's
  /// memory.
  [[nodiscard]] PageList local(std::size_t peer) {
    return must(here.prepare(UniformPages{mine.id, peer * count * page, 0, page, count}));
  }
  [[nodiscard]] PageList remote(std::size_t peer) {
    return must(here.prepare(others[peer].name(), UniformPages{regions[peer].id, 0, 0, page, count}));
  }
  [[nodiscard]] std::vector<RequestPart> parts() {
    std::vector<RequestPart> all;
    for (std::size_t i = 0; i < peers; ++i) all.push_back({local(i), remote(i)});
    return all;
  }
  [[nodiscard]] Request request(Op op, const RequestOptions& options = {}) {
    return must(here.make_request(op, parts(), options));
  }
  /// Makes every link ready, so that a script of faults, which counts posts as the backend gets them, counts
  /// parts in their order.
  void connect() {
    for (const Agent& other : others) must(here.connect(other.name()));
  }

  [[nodiscard]] std::span<std::byte> slice(std::size_t peer) {
    return std::span(ours).subspan(peer * count * page, count * page);
  }
  [[nodiscard]] bool equal(std::size_t peer) {
    return std::memcmp(slice(peer).data(), theirs[peer].data(), count * page) == 0;
  }

  std::size_t count;
  std::vector<std::byte> ours;  // destroyed after the agents, because registered memory must stay valid
  std::deque<std::vector<std::byte>> theirs;
  Agent here;
  std::deque<Agent> others;
  Region mine;
  std::vector<Region> regions;
};

class SeveralPeers : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Backends, SeveralPeers, ::testing::ValuesIn(all_backends()),
                         [](const auto& backend) { return backend.param; });

TEST_P(SeveralPeers, pages_of_all_peers_are_read_and_written_in_one_post) {
  for (const Op op : {Op::read, Op::write}) {
    OneAndSeveral all(GetParam());
    Request request = all.request(op);
    EXPECT_EQ(request.state(), RequestState::prepared);
    ASSERT_TRUE(request.post().ok()) << request.error().message;
    ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
    EXPECT_EQ(request.state(), RequestState::done);
    EXPECT_EQ(request.error().code, Code::ok);
    for (std::size_t i = 0; i < peers; ++i) EXPECT_TRUE(all.equal(i)) << i;
    EXPECT_EQ(request.op(), op);
    EXPECT_EQ(request.pages(), peers * all.count);
    EXPECT_EQ(request.bytes(), all.ours.size());
    EXPECT_EQ(request.times().bytes, all.ours.size());
    EXPECT_EQ(request.times().pages, peers * all.count);
    EXPECT_EQ(request.times().posts, 1u);
    EXPECT_GT(request.times().transfer_ns, 0u);
    EXPECT_EQ(request.backend(), GetParam());
    EXPECT_EQ(request.peer(),
              all.others[0].name() + ", " + all.others[1].name() + ", " + all.others[2].name());
    EXPECT_EQ(must(request.cost()).backend, GetParam());
    const auto parts = request.parts();
    ASSERT_EQ(parts.size(), peers);
    for (std::size_t i = 0; i < peers; ++i) {
      EXPECT_EQ(parts[i].peer, all.others[i].name());
      EXPECT_EQ(parts[i].backend, GetParam());
      EXPECT_EQ(parts[i].pages, all.count);
      EXPECT_EQ(parts[i].bytes, all.count * page);
      EXPECT_EQ(parts[i].state, RequestState::done);
      EXPECT_EQ(parts[i].error.code, Code::ok);
      EXPECT_NE(request.explain().find("part " + std::to_string(i) + ", peer " + all.others[i].name() + ": "),
                std::string::npos)
          << request.explain();
    }
  }
}

TEST_P(SeveralPeers, each_peer_may_have_indices_of_its_own) {
  OneAndSeveral all(GetParam());
  const PageList whole = must(all.here.prepare(UniformPages{all.mine.id, 0, 0, page, peers * all.count}));
  std::vector<std::uint32_t> order(peers * all.count);
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937_64 random(run_seed());
  std::shuffle(order.begin(), order.end(), random);
  std::vector<RequestPart> parts;
  std::vector<std::vector<std::uint32_t>> far(peers);
  std::vector<std::span<const std::uint32_t>> near;
  std::size_t taken = 0;
  for (std::size_t i = 0; i < peers; ++i) {
    const std::size_t few = 10 + 5 * i;
    for (std::uint32_t k = 0; k < few; ++k)
      far[i].push_back(static_cast<std::uint32_t>((k * 7 + i) % all.count));
    near.push_back(std::span(order).subspan(taken, few));
    parts.push_back({whole, all.remote(i), near.back(), far[i]});
    taken += few;
  }
  auto expected = all.ours;
  for (std::size_t i = 0; i < peers; ++i) {
    for (std::size_t k = 0; k < far[i].size(); ++k)
      std::memcpy(expected.data() + near[i][k] * page, all.theirs[i].data() + far[i][k] * page, page);
  }
  Request request = must(all.here.make_request(Op::read, parts));
  EXPECT_EQ(request.pages(), taken);
  for (auto& numbers : far)
    std::fill(numbers.begin(), numbers.end(), 0u);  // the request keeps no reference to the caller's arrays
  ASSERT_TRUE(request.post().ok()) << request.error().message;
  ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  EXPECT_TRUE(all.ours == expected);
}

TEST_P(SeveralPeers, each_peer_is_notified_once_and_after_its_own_pages) {
  OneAndSeveral all(GetParam());
  Request request = all.request(Op::write);
  for (int round = 0; round < 20; ++round) {
    const auto fresh = random_bytes(all.ours.size(), 100u + static_cast<unsigned>(round));
    std::copy(fresh.begin(), fresh.end(), all.ours.begin());
    const std::string word = "round " + std::to_string(round);
    ASSERT_TRUE(request.post({word, {}}).ok()) << request.error().message;
    for (std::size_t i = 0; i < peers; ++i) {
      const Notification n = must(all.others[i].wait_notification(patience));
      EXPECT_EQ(n.peer, all.here.name());
      EXPECT_EQ(n.payload, word);
      EXPECT_TRUE(all.equal(i)) << i;
    }
    ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  }
  EXPECT_EQ(request.times().posts, 20u);
  for (Agent& other : all.others)
    EXPECT_TRUE(must(other.take_notifications()).empty()) << "each notification is delivered once";
}

TEST_P(SeveralPeers, a_post_has_one_completion_for_the_callback_and_the_descriptor) {
  OneAndSeveral all(GetParam());
  Request request = all.request(Op::read);
  std::mutex mutex;
  std::condition_variable told;
  std::vector<Status> heard;
  std::atomic<bool> seen_done = true;
  request.on_done([&](Status status) {
    seen_done = request.state() == RequestState::done && seen_done;
    const std::lock_guard lock(mutex);
    heard.push_back(status);
    told.notify_all();
  });
  const int fd = must(request.event_fd());
  for (std::size_t post = 1; post <= 5; ++post) {
    ASSERT_TRUE(request.post().ok());
    pollfd ready{fd, POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 30000), 1);
    EXPECT_EQ(request.state(), RequestState::done);
    std::uint64_t rings = 0;
    ASSERT_EQ(::read(fd, &rings, sizeof rings), 8);
    EXPECT_EQ(rings, 1u);
    std::unique_lock lock(mutex);
    ASSERT_TRUE(told.wait_for(lock, patience, [&] { return heard.size() >= post; }));
    EXPECT_EQ(heard.size(), post);
    EXPECT_TRUE(heard.back().ok());
  }
  EXPECT_TRUE(seen_done);
}

TEST_P(SeveralPeers, the_other_peers_get_their_pages_if_one_is_gone) {
  OneAndSeveral all(GetParam());
  Request request = all.request(Op::read);
  ASSERT_TRUE(request.post().ok());
  ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  must(all.here.forget(all.others[1].name()));
  std::ranges::fill(all.ours, std::byte{0});
  const auto untouched = std::vector<std::byte>(all.count * page);
  for (int round = 0; round < 3; ++round) {
    Status status = request.post();
    if (status.ok()) status = request.wait(patience);
    EXPECT_EQ(status.code, Code::peer_lost);
    EXPECT_EQ(request.state(), RequestState::failed);
    EXPECT_EQ(request.error().code, Code::peer_lost);
    EXPECT_NE(request.error().message.find("part 1 of 3"), std::string::npos) << request.error().message;
    EXPECT_NE(request.error().message.find(all.others[1].name()), std::string::npos)
        << request.error().message;
    const auto parts = request.parts();
    EXPECT_EQ(parts[0].state, RequestState::done);
    EXPECT_EQ(parts[1].state, RequestState::failed);
    EXPECT_EQ(parts[1].error.code, Code::peer_lost);
    EXPECT_EQ(parts[2].state, RequestState::done);
    EXPECT_TRUE(all.equal(0));
    EXPECT_TRUE(std::ranges::equal(all.slice(1), untouched));
    EXPECT_TRUE(all.equal(2));
  }
}

TEST_P(SeveralPeers, a_single_peer_or_this_agent_itself_is_accepted) {
  OneAndSeveral all(GetParam());
  const std::vector<RequestPart> alone{{all.local(0), all.remote(0)}};
  Request single = must(all.here.make_request(Op::read, alone));
  ASSERT_TRUE(single.post().ok());
  ASSERT_TRUE(single.wait(patience).ok()) << single.error().message;
  EXPECT_TRUE(all.equal(0));
  ASSERT_EQ(single.parts().size(), 1u);
  EXPECT_EQ(single.parts()[0].peer, all.others[0].name());

  const PageList self = must(
      all.here.prepare(all.here.name(), UniformPages{all.mine.id, 2 * all.count * page, 0, page, all.count}));
  const std::vector<RequestPart> both{{all.local(1), self}, {all.local(0), all.remote(0)}};
  Request request = must(all.here.make_request(Op::write, both));
  ASSERT_TRUE(request.post({"took it", {}}).ok()) << request.error().message;
  ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  EXPECT_TRUE(std::ranges::equal(all.slice(1), all.slice(2)));
  EXPECT_TRUE(all.equal(0));
  EXPECT_EQ(must(all.here.wait_notification(patience)).peer, all.here.name());
  EXPECT_EQ(must(all.others[0].wait_notification(patience)).payload, "took it");
}

TEST_P(SeveralPeers, a_wrong_part_is_refused_with_its_number) {
  OneAndSeveral all(GetParam(), 8, {{"check", "yes"}});
  const auto refused = [&](Op op, const std::vector<RequestPart>& parts, const std::string& words) {
    const auto request = all.here.make_request(op, parts);
    ASSERT_EQ(request.code(), Code::invalid_argument);
    EXPECT_NE(request.error().message.find(words), std::string::npos) << request.error().message;
  };
  refused(Op::read, {}, "no parts");
  refused(Op::read, {{all.local(0), all.remote(0)}, {all.local(1), all.remote(0)}},
          "parts 0 and 1 are both of peer " + all.others[0].name());
  const PageList few = must(all.here.prepare(UniformPages{all.mine.id, 0, 0, page, 2}));
  refused(Op::read, {{all.local(0), all.remote(0)}, {few, all.remote(1)}},
          "part 1 of 2: 2 local pages and 8 remote pages");
  const std::vector<std::uint32_t> good{1, 2}, beyond{1, 8};
  refused(Op::read, {{all.local(0), all.remote(0), good, good}, {all.local(1), all.remote(1), good, beyond}},
          "part 1 of 2: ");
  refused(Op::read, {{all.local(0), all.remote(0), good}, {all.local(1), all.remote(1)}},
          "part 0 of 2: 2 local indices and 0 remote indices");
  refused(Op::read, {{all.local(0), all.remote(0)}, {all.local(0), all.remote(1)}},
          "page 0 of part 0 and page 0 of part 1 are read to one place");
  EXPECT_TRUE(all.here.make_request(
      Op::write, std::vector<RequestPart>{{all.local(0), all.remote(0)}, {all.local(0), all.remote(1)}}))
      << "two peers may share one source";

  Request request = all.request(Op::read);
  EXPECT_EQ(request.wait(std::chrono::nanoseconds(0)).code, Code::invalid_argument)
      << "the request was never posted";
  EXPECT_EQ(request.post({std::string(65537, 'x'), {}}).code, Code::invalid_argument);
  EXPECT_EQ(request.state(), RequestState::prepared);
  EXPECT_EQ(request.check().code(), Code::invalid_argument);
  EXPECT_EQ(request.set_indices({.local = good, .part = peers}, nullptr).code(), Code::invalid_argument);
  PostOptions on_stream;
  on_stream.stream = nullptr;
  EXPECT_EQ(request.post(on_stream).code, Code::not_supported) << "host memory does not follow a stream";
  EXPECT_EQ(request.state(), RequestState::prepared);
}

TEST_P(SeveralPeers, pages_of_several_peers_may_interleave_in_memory) {
  OneAndSeveral all(GetParam(), 8, {{"check", "yes"}});
  // Each of our pages holds bytes of all peers: four rows, each with one run of the first peer, one of the
  // second and one of the third.
  constexpr std::uint64_t run = page / 4, row = peers * run;
  const PageView view{{4, run}, {row, 1}, 1};
  const auto local = [&](std::uint64_t begin) {
    return must(
        all.here.prepare(PageSpec(UniformPages{all.mine.id, begin, 4 * row, 0, all.count - 1}, view)));
  };
  const auto remote = [&](std::size_t i) {
    return must(all.here.prepare(all.others[i].name(),
                                 UniformPages{all.regions[i].id, 0, 0, 4 * run, all.count - 1}));
  };
  std::vector<RequestPart> parts;
  for (std::size_t i = 0; i < peers; ++i) parts.push_back({local(i * run), remote(i)});
  Request request = must(all.here.make_request(Op::read, parts));
  ASSERT_TRUE(request.post().ok());
  ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  for (std::size_t i = 0; i < peers; ++i)
    for (std::uint64_t r = 0; r < 4 * (all.count - 1); ++r)
      ASSERT_EQ(std::memcmp(&all.ours[i * run + r * row], &all.theirs[i][r * run], run), 0) << i << " " << r;

  // The last run of a page of the first peer, far behind the begin of the page, is the first run of the
  // second peer.
  const std::vector<RequestPart> same{{local(0), remote(0)}, {local(3 * row), remote(1)}};
  EXPECT_EQ(all.here.make_request(Op::read, same).code(), Code::invalid_argument);
}

/// Of `least` posts or more; as many as it takes until enough of them were canceled.
void storm_of_cancels(const std::string& backend, int least) {
  OneAndSeveral all(backend, 400, slow_enough_to_cancel(backend));
  Request request = all.request(Op::read);
  const auto told = std::make_shared<std::atomic<std::uint64_t>>(0);
  request.on_done([told](Status) { ++*told; });
  Canceler canceler(request);
  int canceled = 0;
  for (int i = 0; i < least || canceled < least / 20; ++i) {
    ASSERT_LT(i, 20 * least) << canceled << " posts were canceled";
    canceler.post_comes();
    const Status status = request.post();
    ASSERT_TRUE(status.ok() || status.code == Code::canceled) << request.error().message;
    const Status ended = request.wait(patience);
    ASSERT_TRUE(ended.ok() || ended.code == Code::canceled) << request.error().message;
    ASSERT_EQ(request.state(), ended.ok() ? RequestState::done : RequestState::canceled);
    for (std::size_t k = 0; k < peers; ++k) {
      const PartInfo part = request.parts()[k];
      ASSERT_TRUE(part.state == RequestState::done || part.state == RequestState::canceled);
      ASSERT_TRUE(part.state != RequestState::done || all.equal(k)) << k;
    }
    if (!ended.ok()) ++canceled;
    std::memset(all.ours.data(), 0, all.ours.size());
  }
  canceler.stop();
  ASSERT_TRUE(request.post().ok()) << request.error().message;
  ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  for (std::size_t k = 0; k < peers; ++k) EXPECT_TRUE(all.equal(k)) << k;
  // Callbacks run in the order of the completions: after that of the last post there is no other one.
  const std::uint64_t posts = request.times().posts;
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (*told < posts && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  EXPECT_EQ(*told, posts) << "each post has one completion";
}

TEST_P(SeveralPeers, every_post_completes_once_in_a_storm_of_cancels) { storm_of_cancels(GetParam(), 60); }
TEST_P(SeveralPeers, every_post_completes_once_in_a_storm_of_cancels_many_rounds) {
  storm_of_cancels(GetParam(), 200);
}

TEST_P(SeveralPeers, requests_without_handles_complete_and_closing_the_agent_ends_the_rest) {
  OneAndSeveral all(GetParam(), 500);
  std::atomic<int> ends = 0;
  for (int i = 0; i < 5; ++i) {
    Request dropped = all.request(Op::read);
    dropped.on_done([&](Status) { ++ends; });
    ASSERT_TRUE(dropped.post().ok());
  }
  const auto began = std::chrono::steady_clock::now();
  while (ends < 5 && std::chrono::steady_clock::now() - began < patience)
    (void)all.here.wait_notification(std::chrono::milliseconds(1));
  EXPECT_EQ(ends, 5) << "a callback must run without a wait, too";
  // The request may end before the agent is closed: then again.
  bool canceled = false;
  for (int i = 0; i < 200 && !canceled; ++i) {
    OneAndSeveral passing(GetParam(), 500);
    Request kept = passing.request(Op::read);
    ASSERT_TRUE(kept.post().ok());
    passing.here = must(Agent::open(unique_name("next"), {{GetParam()}, "", "", {}}));
    EXPECT_TRUE(kept.state() == RequestState::done || kept.state() == RequestState::canceled);
    EXPECT_EQ(kept.post().code, Code::invalid_argument) << "the agent of the request is closed";
    canceled = kept.state() == RequestState::canceled;
  }
  EXPECT_TRUE(canceled) << "no request was in flight when its agent was closed";
}

TEST_P(SeveralPeers, four_threads_may_post_requests_of_their_own) {
  OneAndSeveral all(GetParam(), 64);
  std::vector<std::jthread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::uint32_t> numbers(16);
      std::iota(numbers.begin(), numbers.end(), t * 16);
      std::vector<RequestPart> parts = all.parts();
      for (RequestPart& part : parts) part.local_index = part.remote_index = numbers;
      Request request = must(all.here.make_request(Op::read, parts));
      for (int i = 0; i < 50; ++i) {
        ASSERT_TRUE(request.post().ok()) << request.error().message;
        ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
      }
    });
  }
  threads.clear();
  for (std::size_t i = 0; i < peers; ++i) EXPECT_TRUE(all.equal(i)) << i;
}

// --- failures that the backend `fake` makes

TEST(SeveralPeersOverFake, a_part_waits_for_a_full_queue_after_others_have_begun) {
  OneAndSeveral all("fake", 4, {{"fake.queue_depth", "1"}});
  Request request = all.request(Op::write);
  for (int round = 0; round < 10; ++round) {
    all.ours[0] = std::byte(round);
    ASSERT_TRUE(request.post({"there", {}}).ok()) << request.error().message;
    ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
    for (std::size_t i = 0; i < peers; ++i) {
      EXPECT_TRUE(all.equal(i)) << i;
      EXPECT_EQ(must(all.others[i].wait_notification(patience)).payload, "there");
      EXPECT_TRUE(must(all.others[i].take_notifications()).empty()) << "each notification is delivered once";
    }
  }
}

TEST(SeveralPeersOverFake, a_post_is_refused_as_a_whole_if_the_queue_of_its_first_part_is_full) {
  OneAndSeveral all("fake", 4, {{"fake.queue_depth", "1"}, {"fake.faults", "drop@1"}});
  all.connect();
  Request stuck = must(all.here.make_request(Op::read, {all.local(0), all.remote(0)}));
  ASSERT_TRUE(stuck.post().ok());
  Request request = all.request(Op::read);
  EXPECT_EQ(request.post().code, Code::would_block);
  EXPECT_EQ(request.state(), RequestState::prepared);
  for (std::size_t i = 0; i < peers; ++i) EXPECT_FALSE(all.equal(i)) << "no part has begun";
  stuck.cancel();
  EXPECT_EQ(stuck.wait(patience).code, Code::canceled);
  ASSERT_TRUE(request.post().ok()) << request.error().message;
  EXPECT_TRUE(request.wait(patience).ok()) << request.error().message;
  for (std::size_t i = 0; i < peers; ++i) EXPECT_TRUE(all.equal(i)) << i;
  EXPECT_EQ(request.post({std::string(65537, 'x'), {}}).code, Code::invalid_argument);
  EXPECT_EQ(request.state(), RequestState::done) << "a refused post changes nothing";
}

TEST(SeveralPeersOverFake, one_deadline_holds_for_all_parts_and_the_late_peer_is_named) {
  OneAndSeveral all("fake", 4, {{"fake.faults", "drop@2"}});
  all.connect();
  Request request = all.request(Op::read);
  ASSERT_TRUE(request.post({.timeout = std::chrono::milliseconds(100)}).ok());
  EXPECT_EQ(request.wait(patience).code, Code::timed_out);
  EXPECT_EQ(request.state(), RequestState::failed);
  EXPECT_NE(request.error().message.find(all.others[1].name()), std::string::npos) << request.error().message;
  EXPECT_TRUE(all.equal(0));
  EXPECT_FALSE(all.equal(1));
  EXPECT_TRUE(all.equal(2));
  ASSERT_TRUE(request.post().ok());
  EXPECT_TRUE(request.wait(patience).ok()) << request.error().message;
  EXPECT_TRUE(all.equal(1));
}

TEST(SeveralPeersOverFake, parts_that_wait_for_a_queue_end_by_a_deadline_or_a_cancel) {
  // The first part is dropped and keeps the only slot of the queue, so the others wait behind it. While they
  // are cancelled they may get it.
  OneAndSeveral all("fake", 4, {{"fake.queue_depth", "1"}, {"fake.faults", "drop@1..4"}});
  Request request = all.request(Op::read);
  ASSERT_TRUE(request.post().ok());
  EXPECT_EQ(request.wait(std::chrono::milliseconds(20)).code, Code::timed_out)
      << "the request is still in flight";
  EXPECT_EQ(request.state(), RequestState::posted);
  request.cancel();
  EXPECT_EQ(request.wait(patience).code, Code::canceled);
  for (const PartInfo& part : request.parts()) EXPECT_EQ(part.state, RequestState::canceled);
  ASSERT_TRUE(request.post({.timeout = std::chrono::milliseconds(50)}).ok());
  EXPECT_EQ(request.wait(patience).code, Code::timed_out);
  EXPECT_FALSE(all.equal(0));
  const auto drops_are_over = [&] {
    EXPECT_TRUE(request.post({.timeout = std::chrono::milliseconds(100)}).ok());
    return request.wait(patience).ok();
  };
  for (int left = 4; left > 0 && !drops_are_over(); --left) {
  }
  ASSERT_TRUE(request.post().ok());
  EXPECT_TRUE(request.wait(patience).ok()) << request.error().message;
}

TEST(SeveralPeersOverFake, closing_the_agent_cancels_a_request_of_which_one_part_is_in_flight) {
  OneAndSeveral all("fake", 4, {{"fake.faults", "drop@2"}});
  all.connect();
  Request kept = all.request(Op::read);
  ASSERT_TRUE(kept.post().ok());
  all.here = must(Agent::open(unique_name("next"), {{"fake"}, "", "", {}}));
  EXPECT_EQ(kept.state(), RequestState::canceled);
  EXPECT_EQ(kept.parts()[1].state, RequestState::canceled);
}

TEST(SeveralPeersOverFake, the_error_names_the_page_at_which_a_part_was_lost) {
  OneAndSeveral all("fake", 8, {{"fake.faults", "kill:5@3"}});
  all.connect();
  Request request = all.request(Op::read);
  Status status = request.post();
  if (status.ok()) status = request.wait(patience);
  EXPECT_EQ(status.code, Code::peer_lost);
  EXPECT_EQ(request.error().page, 5u);
  EXPECT_NE(
      request.error().message.find("part 2 of 3: read from peer " + all.others[2].name() + " at page 5"),
      std::string::npos)
      << request.error().message;
  EXPECT_TRUE(all.equal(0) && all.equal(1));
}

TEST(SeveralPeersOverPaths, each_part_takes_the_path_that_reaches_its_peer) {
  constexpr std::size_t bytes = 1 << 16;
  auto ours = random_bytes(2 * bytes, 1), one = random_bytes(bytes, 2), other = random_bytes(bytes, 3);
  Agent here = must(Agent::open(unique_name("here"), {{"shm", "tcp"}, "", "", {}}));
  Agent near = must(Agent::open(unique_name("near"), {{"shm"}, "", "", {}}));
  Agent far = must(Agent::open(unique_name("far"), {{"tcp"}, "", "", {}}));
  const Region mine = must(here.register_memory({ours.data(), ours.size()}));
  std::vector<RequestPart> parts;
  for (const auto& [peer, memory] : {std::pair(&near, &one), std::pair(&far, &other)}) {
    const Region region = must(peer->register_memory({memory->data(), memory->size()}));
    must(here.import_metadata(must(peer->export_metadata())));
    must(peer->import_metadata(must(here.export_metadata())));
    parts.push_back({must(here.prepare(UniformPages{mine.id, parts.size() * bytes, 0, 4096, bytes / 4096})),
                     must(here.prepare(peer->name(), UniformPages{region.id, 0, 0, 4096, bytes / 4096}))});
  }
  Request request = must(here.make_request(Op::read, parts));
  EXPECT_EQ(request.backend(), "shm, tcp");
  EXPECT_EQ(request.parts()[0].backend, "shm");
  EXPECT_EQ(request.parts()[1].backend, "tcp");
  ASSERT_TRUE(request.post().ok()) << request.error().message;
  ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
  EXPECT_EQ(std::memcmp(ours.data(), one.data(), bytes), 0);
  EXPECT_EQ(std::memcmp(ours.data() + bytes, other.data(), bytes), 0);
}

// --- peers in processes of their own

class SeveralProcesses : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr std::size_t pages = 2048, bytes = pages * 4096;

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
  void start(Agent& here, std::uint64_t seed) {
    names.push_back(unique_name("peer"));
    processes.emplace_back(names.back(), GetParam(), bytes, seed, options());
    must(here.import_metadata(processes.back().metadata()));
  }
  RequestPart part(Agent& here, RegionId mine, std::size_t i) {
    const auto regions = must(here.peer_regions(names[i]));
    std::vector<Page> far;
    for (std::size_t k = 0; k < pages; ++k) {
      const bool second = k >= pages / 2;
      far.push_back({regions[second ? 1 : 0].id.value, (k - (second ? pages / 2 : 0)) * 4096, 4096});
    }
    return {must(here.prepare(UniformPages{mine, i * bytes, 0, 4096, pages})),
            must(here.prepare(names[i], far))};
  }
  void kill_the_third(int least);

  std::deque<PeerProcess> processes;
  std::vector<std::string> names;
};

INSTANTIATE_TEST_SUITE_P(Backends, SeveralProcesses, ::testing::Values("shm", "tcp"),
                         [](const auto& backend) { return backend.param; });

/// At as many moments as it takes until one of them met a post in flight, and at no fewer than `least`.
void SeveralProcesses::kill_the_third(int least) {
  constexpr std::size_t victim = 1;
  std::vector<std::byte> ours(3 * bytes);
  std::mt19937_64 random(run_seed() + 5);
  std::vector<std::vector<std::byte>> expected;
  for (std::size_t i = 0; i < 3; ++i) expected.push_back(PeerProcess::first_bytes(bytes, 70 + i));
  int hits = 0;  // posts that the kill has ended
  for (int moment = 0; moment < least || (hits == 0 && moment < 24); ++moment) {
    SCOPED_TRACE("moment " + std::to_string(moment));
    names.clear();
    processes.clear();
    Agent here = open_here();
    const Region mine = must(here.register_memory({ours.data(), ours.size()}));
    std::vector<RequestPart> parts;
    for (std::size_t i = 0; i < 3; ++i) {
      start(here, 70 + i);
      parts.push_back(part(here, mine.id, i));
    }
    Request request =
        must(here.make_request(Op::read, parts, {.backends = {}, .timeout = std::chrono::seconds(20)}));
    ASSERT_TRUE(request.post().ok()) << request.error().message;
    ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
    // When this page of the victim has come in this post: both follow from the seed.
    const std::size_t at = victim * bytes, first = random() % 3, page_of_victim = random() % pages * 4096;
    std::optional<Striker> striker;
    std::size_t post = 0;
    for (Status status; status.ok(); ++post) {
      std::ranges::fill(ours, std::byte{0});
      if (post == first)
        striker.emplace(request, ours.data() + at + page_of_victim, expected[victim].data() + page_of_victim,
                        [&] { processes[victim].signal(SIGKILL); });
      status = request.post();
      if (status.ok()) status = request.wait(std::chrono::seconds(25));
      if (post == first && striker->ended_the_post(status)) ++hits;
      ASSERT_NE(request.state(), RequestState::posted) << "the request outlived its deadline";
      for (std::size_t i = 0; i < 3; ++i) {
        const PartInfo of_part = request.parts()[i];
        ASSERT_TRUE(i == victim || of_part.state == RequestState::done) << of_part.error.message;
        ASSERT_TRUE(of_part.state != RequestState::done ||
                    std::memcmp(ours.data() + i * bytes, expected[i].data(), bytes) == 0)
            << "peer " << i;
      }
      if (status.ok()) continue;
      EXPECT_EQ(status.code, Code::peer_lost) << request.error().message;
      EXPECT_NE(request.error().message.find(names[victim]), std::string::npos) << request.error().message;
    }
  }
  EXPECT_GT(hits, 0) << "no peer was killed while a post was in flight";
}

TEST_P(SeveralProcesses, the_pages_of_two_peers_arrive_if_the_third_is_killed_during_a_post) {
  kill_the_third(1);
}
TEST_P(SeveralProcesses, the_pages_of_two_peers_arrive_if_the_third_is_killed_during_a_post_many_rounds) {
  kill_the_third(4);
}

TEST_P(SeveralProcesses, bytes_written_to_four_peers_in_one_post_are_read_back_in_one_post) {
  std::vector<std::byte> ours = random_bytes(4 * bytes, 8);
  const auto sent = ours;
  Agent here = open_here();
  const Region mine = must(here.register_memory({ours.data(), ours.size()}));
  std::vector<RequestPart> parts;
  for (std::size_t i = 0; i < 4; ++i) {
    start(here, 80 + i);
    parts.push_back(part(here, mine.id, i));
  }
  for (const Op op : {Op::write, Op::read}) {
    Request request = must(here.make_request(op, parts));
    ASSERT_TRUE(request.post().ok()) << request.error().message;
    ASSERT_TRUE(request.wait(patience).ok()) << request.error().message;
    if (op == Op::read) continue;
    for (std::size_t i = 0; i < 4; ++i)  // where it was to go, not merely where a read finds it again
      for (std::size_t half = 0; half < 2; ++half)
        EXPECT_EQ(std::memcmp(processes[i].memory()[half].data(), sent.data() + i * bytes + half * bytes / 2,
                              bytes / 2),
                  0)
            << "peer " << i << ", half " << half;
    std::ranges::fill(ours, std::byte{0});
  }
  EXPECT_TRUE(ours == sent);
}

}  // namespace
}  // namespace headrace::test
