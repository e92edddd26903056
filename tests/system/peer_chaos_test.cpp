// SPDX-License-Identifier: Apache-2.0
// A peer that is killed, stopped and restarted under its name at random moments, while its memory is read and
// written: every request ends within its deadline, done with all bytes or peer_lost with the peer's name, and
// nothing is left behind.
#include "peer_process.hpp"

#include <dirent.h>

#include <array>
#include <atomic>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <span>
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

/// Bytes that are others in every round, at the price of a copy: a random place of a pool twice as long.
class FreshBytes {
 public:
  explicit FreshBytes(std::uint64_t seed)
      : random_(run_seed() + seed), pool_(random_bytes(2 * bytes, seed)) {}
  std::span<const std::byte> next() { return std::span(pool_).subspan(random_() % (bytes / 8) * 8, bytes); }

 private:
  std::mt19937_64 random_;
  const std::vector<std::byte> pool_;
};

/// One side of the requests: its memory, and which of its pages belongs to the request's page i.
struct Side {
  std::array<std::span<std::byte>, 2> halves;
  std::vector<std::uint32_t> order;

  [[nodiscard]] std::byte* page(std::size_t number) const {
    return halves[number / (pages / 2)].data() + number % (pages / 2) * page_bytes;
  }
  void fill(std::span<const std::byte> from) const {
    for (std::size_t half = 0; half < 2; ++half)
      std::memcpy(halves[half].data(), from.data() + half * bytes / 2, bytes / 2);
  }
  [[nodiscard]] bool holds(std::span<const std::byte> expected) const {
    return std::memcmp(halves[0].data(), expected.data(), bytes / 2) == 0 &&
           std::memcmp(halves[1].data(), expected.data() + bytes / 2, bytes / 2) == 0;
  }
};

/// What each side held before a post.
struct Before {
  std::span<const std::byte> source, target;
};

/// After a post that is done: the target holds the source's bytes, all of them.
::testing::AssertionResult all_pages_arrived(const Side& source, const Side& target, const Before& before) {
  if (!source.holds(before.source)) return ::testing::AssertionFailure() << "the source has changed";
  for (std::size_t i = 0; i < pages; ++i) {
    const std::byte* const expected = before.source.data() + source.order[i] * page_bytes;
    const std::byte* const found = target.page(target.order[i]);
    if (std::memcmp(found, expected, page_bytes) == 0) continue;
    const bool old = std::memcmp(found, before.target.data() + target.order[i] * page_bytes, page_bytes) == 0;
    return ::testing::AssertionFailure()
           << "page " << i << " of a request that is done holds "
           << (old ? "what it held before" : "wrong bytes") << ", from byte "
           << std::mismatch(found, found + page_bytes, expected).first - found << " on";
  }
  return ::testing::AssertionSuccess();
}

/// After a post that failed: each byte is an old one or the new one of its place. `begun`: some are new.
::testing::AssertionResult pages_are_old_or_new(const Side& source, const Side& target, const Before& before,
                                                bool& begun) {
  if (!source.holds(before.source)) return ::testing::AssertionFailure() << "the source has changed";
  for (std::size_t i = 0; i < pages; ++i) {
    const std::byte* const fresh = before.source.data() + source.order[i] * page_bytes;
    const std::byte* const old = before.target.data() + target.order[i] * page_bytes;
    const std::byte* const found = target.page(target.order[i]);
    if (std::memcmp(found, old, page_bytes) == 0) continue;
    begun = true;
    if (std::memcmp(found, fresh, page_bytes) == 0) continue;
    for (std::size_t k = 0; k < page_bytes; ++k)
      if (found[k] != fresh[k] && found[k] != old[k])
        return ::testing::AssertionFailure() << "byte " << k << " of page " << i
                                             << " of a failed request is neither its old nor its new one";
  }
  return ::testing::AssertionSuccess();
}

enum class Blow { kill, stop, kill_between_posts };

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
    Agent here = open_here();
    const std::string name = unique_name("victim");
    const Region mine = must(here.register_memory({ours_.data(), ours_.size()}));
    local_.halves = {std::span(ours_).first(bytes / 2), std::span(ours_).last(bytes / 2)};
    std::size_t descriptors = 0;
    std::size_t mappings = 0;
    // A kill may come after the last byte: then there are more of them, until one has ended a post.
    int moment = 0;
    for (; moment < moments || (hits_ == 0 && moment < moments + 100); ++moment) {
      SCOPED_TRACE("moment " + std::to_string(moment));
      PeerProcess peer(name, GetParam(), bytes, random_(), options());
      ASSERT_FALSE(peer.metadata().empty()) << "the peer did not start";
      must(here.import_metadata(peer.metadata()));
      remote_.halves = peer.memory();
      shuffle_pages(moment % 4 >= 2);
      ASSERT_NO_FATAL_FAILURE(hit(here, mine.id, peer, name, moment));
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
    for (const Op op : {Op::read, Op::write}) EXPECT_GT(done_[index_of(op)], 0);
    EXPECT_GT(lost_, 0);
    EXPECT_GT(hits_, 0) << "no peer was killed while a post was in flight";
    std::printf(
        "%s: %d reads and %d writes done, %d posts ended with peer_lost, %d of them half done, %d of "
        "them hit in flight, %d moments\n",
        GetParam().c_str(), done_[0], done_[1], lost_, half_done_, hits_, moment);
  }

 private:
  static std::size_t index_of(Op op) { return op == Op::read ? 0 : 1; }
  static int stops_it(Blow blow) { return blow == Blow::stop ? SIGSTOP : SIGKILL; }

  /// Pages in a row are moved as long runs, shuffled ones one by one.
  void shuffle_pages(bool shuffled) {
    for (Side* side : {&local_, &remote_}) {
      side->order.resize(pages);
      std::iota(side->order.begin(), side->order.end(), 0u);
      if (shuffled) std::shuffle(side->order.begin(), side->order.end(), random_);
    }
  }

  std::array<Request, 2> requests(Agent& here, RegionId mine, const std::string& name) {
    const auto regions = must(here.peer_regions(name));
    EXPECT_EQ(regions.size(), 2u);
    std::vector<Page> near, far;
    for (std::size_t i = 0; i < pages; ++i) {
      const std::uint64_t number = remote_.order[i];
      near.push_back({mine.value, local_.order[i] * page_bytes, page_bytes});
      far.push_back({regions[number / (pages / 2)].id.value, number % (pages / 2) * page_bytes, page_bytes});
    }
    const PageList local = must(here.prepare(near)), remote = must(here.prepare(name, far));
    const RequestOptions options{.backends = {}, .timeout = deadline};
    return {must(here.make_request(Op::read, {local, remote}, options)),
            must(here.make_request(Op::write, {local, remote}, options))};
  }

  /// Fills both sides with fresh bytes, so that no byte of the target is right before the post.
  Before fill(Op op) {
    const auto ours = fresh_.next(), theirs = fresh_.next();
    local_.fill(ours);
    remote_.fill(theirs);
    return op == Op::read ? Before{theirs, ours} : Before{ours, theirs};
  }

  /// Posts reads and writes in turn until the blow tells, and compares every byte after each.
  void hit(Agent& here, RegionId mine, PeerProcess& peer, const std::string& name, int moment) {
    auto both = requests(here, mine, name);
    const auto blow = static_cast<Blow>(moment % 3);
    // Every other peer is hit when a page of a post has come, the rest perhaps while they connect. All of it
    // follows from the seed.
    const bool connecting = moment % 2 == 1;
    const int first = connecting ? 0 : 1 + static_cast<int>(random_() % 3);
    const std::size_t page = random_() % pages;
    const auto pause = std::chrono::microseconds(random_() % 8000);
    std::atomic<bool> struck = false;
    const auto strike = [&] {
      peer.signal(stops_it(blow));
      struck = true;
    };
    std::optional<Striker> striker;
    std::jthread timer;
    int after = 0;  // posts after the blow
    bool is_lost = false;
    for (int post = 0; !is_lost; ++post) {
      const Op op = (post + moment / 6) % 2 == 0 ? Op::read : Op::write;
      const Side &source = op == Op::read ? remote_ : local_, &target = op == Op::read ? local_ : remote_;
      Request& request = both[index_of(op)];
      const Before before = fill(op);
      if (post == first) {
        if (blow == Blow::kill_between_posts)
          strike();
        else if (connecting)
          timer = std::jthread([&] {
            std::this_thread::sleep_for(pause);
            strike();
          });
        else
          striker.emplace(request, target.page(target.order[page]),
                          before.source.data() + source.order[page] * page_bytes, strike);
      }
      if (struck) ++after;
      Status status = request.post();
      if (status.ok()) status = request.wait(deadline + std::chrono::seconds(3));
      if (post == first && striker && striker->ended_the_post(status) && blow == Blow::kill) ++hits_;
      EXPECT_NE(request.state(), RequestState::posted) << "a request outlived its deadline";
      if (status.ok()) {
        ++done_[index_of(op)];
        EXPECT_TRUE(all_pages_arrived(source, target, before)) << (op == Op::read ? "read" : "write");
      } else {
        is_lost = true;
        ++lost_;
        bool begun = false;
        EXPECT_TRUE(pages_are_old_or_new(source, target, before, begun))
            << (op == Op::read ? "read" : "write");
        half_done_ += begun ? 1 : 0;
        EXPECT_EQ(status.code, Code::peer_lost) << request.error().message;
        EXPECT_NE(request.error().message.find(name), std::string::npos) << request.error().message;
      }
      if (HasFailure()) break;
      // Copies to and from a stopped process of this host go on; the test need not.
      if (blow == Blow::stop && after == 40) break;
    }
    if (timer.joinable()) timer.join();
    std::vector<std::byte> left(ours_);
    peer.end();
    EXPECT_TRUE(ours_ == left) << "memory has changed after the end of the last request";
  }

  std::mt19937_64 random_{run_seed()};
  FreshBytes fresh_{7};
  std::vector<std::byte> ours_ = std::vector<std::byte>(bytes);
  Side local_, remote_;
  std::array<int, 2> done_{};
  int lost_ = 0, half_done_ = 0;
  int hits_ = 0;  // posts that a kill has ended
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
