// SPDX-License-Identifier: Apache-2.0
// Ends: canceled, disconnected, a peer that goes. Whatever happens, each post ends once and its memory is
// quiet then.
#include "contract/fixture.hpp"

#include <fmt/format.h>

#include <array>
#include <condition_variable>
#include <thread>

namespace headrace::contract {
namespace {

/// What a race may end with, a test must have met: it goes on until it has, and fails if it never does.
class Rounds {
 public:
  /// So many at least. `must_come` false: what the test waits for cannot come on this row.
  Rounds(int least, bool must_come) : least_(least), must_come_(must_come) {}

  /// Whether there is one more to do.
  [[nodiscard]] bool next() {
    ++round_;
    return round_ < least_ || (must_come_ && seen_ == 0 && !deadline_.expired());
  }
  [[nodiscard]] int round() const { return round_; }
  void saw(bool it_came) { seen_ += it_came ? 1 : 0; }
  [[nodiscard]] testing::AssertionResult as_expected() const {
    if (!must_come_ || seen_ > 0) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "it came in none of " << round_ << " rounds";
  }

 private:
  const int least_;
  const bool must_come_;
  const Deadline deadline_ = Deadline::after(World::default_limit);
  int round_ = -1;
  int seen_ = 0;
};

class Endings : public Contract {
 protected:
  static constexpr std::uint64_t page_bytes = 256 << 10;
  static constexpr std::uint64_t pages = 64;

  /// The memory of a large request. A test fills it once, and makes requests with it in each round.
  struct Pages {
    Memory mine{Memory::Kind::plain, page_bytes* pages, 1}, theirs{Memory::Kind::plain, page_bytes* pages, 2};
  };

  /// A request that is large enough to be in flight for a while, in one direction or the other.
  struct Large {
    const Memory &mine, &theirs;
    Region local, owner;
    Remote remote;
    Request request;
    Large(const Pages& of, const Link& link, Instance& peer, headrace_op_v1 op)
        : mine(of.mine),
          theirs(of.theirs),
          local(link.instance(), mine),
          owner(peer, theirs),
          remote(link, owner.facts()),
          request(link.instance(), op, &link, uniform_side(local.handle(), 0, page_bytes, page_bytes),
                  uniform_side(remote.handle(), 0, page_bytes, page_bytes), pages) {}
    [[nodiscard]] const Memory& destination() const {
      return request.args().op == HEADRACE_READ ? mine : theirs;
    }
    [[nodiscard]] const Memory& source() const { return request.args().op == HEADRACE_READ ? theirs : mine; }
  };
};
HEADRACE_FOR_EACH_BACKEND_THAT(Endings, HEADRACE_REMOTE);

TEST_P(Endings, cancel_and_poll_do_nothing_before_the_first_post_and_after_an_end) {
  const Pages memory;
  const Pair pair = open_pair();
  Large large(memory, pair.ab, *pair.b, HEADRACE_WRITE);
  large.request.cancel();
  EXPECT_EQ(large.request.poll(), 0);
  EXPECT_EQ(large.request.ends(), 0U);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const PostEnd end = large.request.run();
    ASSERT_TRUE(end.status.ok()) << "a cancel that came before must not count: " << end.text;
    large.request.cancel();
    EXPECT_EQ(large.request.poll(), 0);
    ASSERT_EQ(large.request.ends(), i);
  }
  EXPECT_FALSE(pair.ab.lost());
}

TEST_P(Endings, cancel_during_a_post_ends_it_once_and_the_memory_is_quiet_then) {
  // Each direction has its own: a source keeps its pattern, which its destination never has at a post.
  const Pages to_write, to_read;
  Rounds rounds(12, GetParam().cancels(HEADRACE_REMOTE));
  while (rounds.next()) {
    const Pair pair = open_pair();
    const bool writes = rounds.round() % 2 == 0;
    Large large(writes ? to_write : to_read, pair.ab, *pair.b, writes ? HEADRACE_WRITE : HEADRACE_READ);
    large.request.post();
    EXPECT_FALSE(GetParam().carried_out == CarriedOut::inside_calls && large.request.in_flight());
    for (int i = 0; i < rounds.round() / 2 % 6; ++i) (void)world.progress();
    large.request.cancel();
    const PostEnd end = large.request.wait();
    EXPECT_TRUE(one_of(end.status.code, {Code::ok, Code::canceled})) << ": " << end.text;
    rounds.saw(end.status.code == Code::canceled);
    EXPECT_EQ(large.request.ends(), 1U);
    if (end.status.ok()) {
      EXPECT_TRUE(same_bytes(large.source().bytes(), large.destination().bytes()));
    }
    // Nothing may write any more: what is put there now must stay, whatever still runs.
    set_bytes(large.destination().bytes(), std::byte{0x77});
    for (int i = 0; i < 200; ++i) (void)world.progress();
    if (!pair.ab.lost()) {  // closing the link is a way to keep the promise
      pair.ab.send(world, HEADRACE_CHANNEL_USER, "and then");
      ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == 1 || pair.ab.lost(); }))
          << world.describe();
    }
    EXPECT_TRUE(all_bytes(large.destination().bytes(), std::byte{0x77}));
  }
  EXPECT_TRUE(rounds.as_expected()) << ": no post ended as canceled";
}

TEST_P(Endings, a_canceled_request_may_be_posted_again) {
  const Pages memory;
  Rounds rounds(1, GetParam().cancels(HEADRACE_REMOTE));
  while (rounds.next()) {
    const Pair pair = open_pair();
    set_bytes(memory.theirs.bytes(), std::byte{0});
    Large large(memory, pair.ab, *pair.b, HEADRACE_WRITE);
    bool canceled = false;
    for (std::uint64_t i = 1; i <= 20 && !pair.ab.lost(); ++i) {
      large.request.post();
      large.request.cancel();
      const PostEnd end = large.request.wait();
      ASSERT_TRUE(one_of(end.status.code, {Code::ok, Code::canceled}));
      ASSERT_EQ(large.request.ends(), i);
      canceled = end.status.code == Code::canceled || canceled;
    }
    if (pair.ab.lost()) continue;  // closed to keep the promise: nothing can be posted on it
    ASSERT_TRUE(large.request.run().status.ok());
    EXPECT_TRUE(same_bytes(large.source().bytes(), large.destination().bytes()));
    rounds.saw(canceled);
  }
  EXPECT_TRUE(rounds.as_expected()) << ": no post ended as canceled on a link that went on";
}

TEST_P(Endings, cancel_from_another_thread_races_the_end_without_harm) {
  Rounds rounds(1, true);
  while (rounds.next()) {
    const Pair pair = open_pair();
    const Memory memory(Memory::Kind::plain, 64'000, 1), target(Memory::Kind::plain, 64'000, 2);
    const Region mine(*pair.a, memory), theirs(*pair.b, target);
    const Remote remote(pair.ab, theirs.facts());
    Request request(*pair.a, HEADRACE_WRITE, &pair.ab, uniform_side(mine.handle(), 0, 640, 640),
                    uniform_side(remote.handle(), 0, 640, 640), 100);
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> moment{0};  // odd from before a post until after its end
    std::atomic<int> came_in_time{0};      // cancels that began and returned within one such time
    std::thread canceler([&] {
      while (!stop) {
        const std::uint64_t before = moment;
        request.cancel();
        if (before % 2 == 1 && moment == before) ++came_in_time;
        std::this_thread::yield();
      }
    });
    std::uint64_t posts = 0;
    for (; (posts < 300 || came_in_time < 10) && posts < 100'000 && !pair.ab.lost(); ++posts) {
      ++moment;
      const Status posted = request.try_post();
      if (!posted.ok()) {
        EXPECT_TRUE(pair.ab.lost()) << "post: " << code_name(posted.code);
        break;
      }
      const PostEnd end = request.wait();
      ++moment;
      EXPECT_TRUE(one_of(end.status.code, {Code::ok, Code::canceled, Code::backend_failed}));
    }
    stop = true;
    canceler.join();
    EXPECT_EQ(request.ends(), posts);
    rounds.saw(posts >= 300 && came_in_time >= 10);  // else the link was closed: a new one
  }
  EXPECT_TRUE(rounds.as_expected()) << ": no 10 cancels between a post and its end";
}

TEST_P(Endings, disconnect_ends_every_post_before_it_returns) {
  const std::array<Pages, 4> memory;
  Rounds rounds(2, GetParam().cancels(HEADRACE_REMOTE));
  while (rounds.next()) {
    Pair pair = open_pair();
    std::vector<std::unique_ptr<Large>> requests;
    for (const Pages& each : memory)
      requests.push_back(std::make_unique<Large>(each, pair.ab, *pair.b,
                                                 requests.size() % 2 == 0 ? HEADRACE_WRITE : HEADRACE_READ));
    for (const auto& large : requests) large->request.post("never mind");
    if (rounds.round() % 2 == 1) (void)world.progress();
    pair.ab.disconnect();
    for (const auto& large : requests) {
      EXPECT_FALSE(large->request.in_flight());
      EXPECT_EQ(large->request.ends(), 1U);
      const auto end = pair.a->host().last_end(large->request.slot());
      ASSERT_TRUE(end);
      EXPECT_TRUE(one_of(end->status.code, {Code::ok, Code::canceled}));
      rounds.saw(end->status.code == Code::canceled);
    }
    ASSERT_TRUE(world.until([&] { return pair.ba.lost(); })) << world.describe();
  }
  EXPECT_TRUE(rounds.as_expected()) << ": no post was in flight when its link was closed";
}

TEST_P(Endings, a_peer_that_closes_the_link_ends_posts_as_peer_lost) {
  const Pages to_write, to_read;
  Rounds rounds(2, GetParam().cancels(HEADRACE_REMOTE));
  while (rounds.next()) {
    const bool destroyed = rounds.round() % 2 == 1;
    Pair pair = open_pair();
    auto large = std::make_unique<Large>(to_write, pair.ab, *pair.b, HEADRACE_WRITE);
    auto other = std::make_unique<Large>(to_read, pair.ab, *pair.b, HEADRACE_READ);
    large->request.post();
    other->request.post();
    pair.ba.disconnect();
    if (destroyed) {
      large->owner.deregister();
      other->owner.deregister();
      pair.b.reset();
    }
    for (Large* one : {large.get(), other.get()}) {
      const PostEnd end = one->request.wait();
      EXPECT_TRUE(one_of(end.status.code, {Code::ok, Code::peer_lost})) << ": " << end.text;
      if (!end.status.ok()) {
        EXPECT_FALSE(end.text.empty());
      }
      rounds.saw(end.status.code == Code::peer_lost);
    }
    ASSERT_TRUE(world.until([&] { return pair.ab.lost(); })) << world.describe();
    EXPECT_EQ(pair.a->host().link(pair.ab.token())->lost_status.code, Code::peer_lost);
    EXPECT_EQ(large->request.try_post().code, Code::peer_lost) << "posts on a lost link are not accepted";
    EXPECT_EQ(pair.ab.notify(0, "too late").code, Code::peer_lost);
  }
  EXPECT_TRUE(rounds.as_expected()) << ": no post was in flight when the peer closed the link";
}

TEST_P(Endings, a_peer_that_comes_back_is_reached_by_a_new_link) {
  const auto a = open("a");
  const Pages memory;
  for (int life = 0; life < 5; ++life) {
    set_bytes(memory.mine.bytes(), std::byte{0});
    auto b = open("b");
    Link ab = a->connect(*b);
    ASSERT_TRUE(world.until([&] { return ab.ready(); })) << world.describe();
    Large large(memory, ab, *b, HEADRACE_READ);
    ASSERT_TRUE(large.request.run().status.ok());
    EXPECT_TRUE(same_bytes(large.mine.bytes(), large.theirs.bytes()));
  }
}

/// The re-entry rule: while a host function runs, another thread may use the instance. A backend that holds a
/// lock there hangs here.
TEST_P(Endings, host_functions_are_called_without_a_lock) {
  const Pair pair = open_pair();
  const Memory memory(Memory::Kind::plain, 3000, 1), target(Memory::Kind::plain, 3000, 2);
  const Region mine(*pair.a, memory), theirs(*pair.b, target);
  const Remote remote(pair.ab, theirs.facts());
  const auto side = [&](void* region) { return uniform_side(region, 0, 30, 30); };
  Request first(*pair.a, HEADRACE_WRITE, &pair.ab, side(mine.handle()), side(remote.handle()), 100);
  Request second(*pair.a, HEADRACE_WRITE, &pair.ab, side(mine.handle()), side(remote.handle()), 100);

  std::mutex mutex;
  std::condition_variable changed;
  int calls = 0, done = 0;
  std::vector<Status> statuses;
  std::atomic<int> once_completed{0}, once_received{0};
  std::atomic<int> left_completed{0},
      left_received{0};  // calls that are through: a pool's thread may tell an end
  // Lets the other thread work and waits until it is through, inside the host function.
  const auto hand_over = [&] {
    std::unique_lock lock(mutex);
    const int mine_is = ++calls;
    changed.notify_all();
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return done >= mine_is; }))
        << "a call hangs while a host function runs";
  };
  std::jthread other([&] {
    for (int handled = 0; handled < 2; ++handled) {
      std::unique_lock lock(mutex);
      if (!changed.wait_for(lock, std::chrono::seconds(30), [&] { return calls > handled; })) return;
      lock.unlock();
      const Status posted =
          handled == 0 ? second.try_post() : pair.ba.notify(HEADRACE_CHANNEL_USER, "answer");
      lock.lock();
      statuses.push_back(posted);
      ++done;
      changed.notify_all();
    }
  });
  pair.a->host().on_completed = [&](std::uint64_t slot, Status) {
    if (slot == first.slot() && once_completed++ == 0) hand_over();
    ++left_completed;
  };
  pair.b->host().on_received = [&](const HostMessage&) {
    if (once_received++ == 0) hand_over();
    ++left_received;
  };
  EXPECT_TRUE(first.run().status.ok());
  // The host knows that the first has ended before the other thread has posted the second.
  ASSERT_TRUE(world.until([&] { return second.ends() == 1; })) << world.describe();
  EXPECT_TRUE(second.wait().status.ok());
  pair.ab.send(world, HEADRACE_CHANNEL_USER, "question");
  EXPECT_TRUE(world.until([&] { return pair.a->host().message_count() == 1; })) << world.describe();
  other.join();
  ASSERT_EQ(statuses.size(), 2U);
  EXPECT_TRUE(statuses[0].ok() && statuses[1].ok());
  ASSERT_TRUE(world.until([&] { return left_completed == 2 && left_received == 1; })) << world.describe();
  pair.a->host().on_completed = nullptr;
  pair.b->host().on_received = nullptr;
}

// ------------------------------------------------------------------------------------------ inside one agent

class LocalEndings : public Contract {};
HEADRACE_FOR_EACH_BACKEND_THAT(LocalEndings, HEADRACE_LOCAL);

TEST_P(LocalEndings, cancel_during_a_post_ends_it_once_and_the_memory_is_quiet_then) {
  const auto a = open();
  // A post that a cancel cannot end is to be in flight when the cancel comes.
  const bool ends = GetParam().cancels(HEADRACE_LOCAL);
  Rounds rounds(12, ends || GetParam().local_posts_run_to_their_end);
  const Memory source(Memory::Kind::plain, 16 << 20, 1),
      target(far_kind(*a, Memory::Kind::plain), 16 << 20, 2);
  while (rounds.next()) {
    const Region from(*a, source), to(*a, target);
    const Remote remote(*a, to);
    Request request(*a, HEADRACE_WRITE, nullptr, uniform_side(from.handle(), 0, 64 << 10, 64 << 10),
                    uniform_side(remote.handle(), 0, 64 << 10, 64 << 10), 256);
    request.post();
    for (int i = 0; i < rounds.round() / 2 % 6; ++i) (void)world.progress();
    const bool in_flight = request.in_flight();
    EXPECT_FALSE(GetParam().carried_out == CarriedOut::inside_calls && in_flight);
    request.cancel();
    const PostEnd end = request.wait();
    EXPECT_TRUE(one_of(end.status.code, {Code::ok, Code::canceled}));
    rounds.saw(ends ? end.status.code == Code::canceled : in_flight);
    EXPECT_EQ(request.ends(), 1U);
    set_bytes(target.bytes(), std::byte{0x77});
    for (int i = 0; i < 100; ++i) (void)world.progress();
    EXPECT_TRUE(all_bytes(target.bytes(), std::byte{0x77}));
    ASSERT_TRUE(request.run().status.ok());
    EXPECT_TRUE(same_bytes(source.bytes(), target.bytes()));
  }
  EXPECT_TRUE(rounds.as_expected()) << (ends ? ": no post ended as canceled" : ": no post was in flight");
}

}  // namespace
}  // namespace headrace::contract
