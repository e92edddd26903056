// SPDX-License-Identifier: Apache-2.0
// Rows with scripted faults, those included whose posts end with errors or not by themselves: every post ends
// once, a done one has moved every byte, and a message comes once, in order and after its bytes.
#include "contract/fixture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>

namespace headrace::contract {
namespace {

class Faults : public Contract {
 protected:
  static constexpr std::uint64_t page_bytes = 301, pages = 24;

  /// Pages of its own on both sides, and what they held before the post.
  struct Work {
    Memory mine, theirs;
    Region local, owner;
    Remote remote;
    Request request;
    Bytes before;
    PostEnd end;
    Work(const Link& link, Instance& peer, headrace_op_v1 op, std::uint64_t seed)
        : mine(Memory::Kind::plain, page_bytes * pages, seed),
          theirs(Memory::Kind::shared, page_bytes * pages, seed + 1),
          local(link.instance(), mine),
          owner(peer, theirs),
          remote(link, owner.facts()),
          request(link.instance(), op, &link, side(local.handle(), false), side(remote.handle(), true),
                  pages) {}

    /// One side in rising order, the other in falling order: no two pages are one run.
    static PageSide side(void* region, bool falling) {
      return falling ? uniform_side(region, (pages - 1) * page_bytes, 0 - page_bytes, page_bytes)
                     : uniform_side(region, 0, page_bytes, page_bytes);
    }
    [[nodiscard]] bool reads() const { return request.args().op == HEADRACE_READ; }
    [[nodiscard]] std::span<std::byte> source() const { return (reads() ? theirs : mine).bytes(); }
    [[nodiscard]] std::span<std::byte> target() const { return (reads() ? mine : theirs).bytes(); }
    void refill(std::uint64_t seed) {
      fill_pattern(source(), seed);
      fill_pattern(target(), seed + 1);
      before.assign(target().begin(), target().end());
    }
    /// The source's bytes of the page that the target's page i gets.
    [[nodiscard]] std::span<const std::byte> wanted(std::uint64_t i) const {
      return source().subspan((pages - 1 - i) * page_bytes, page_bytes);
    }
    [[nodiscard]] testing::AssertionResult holds_the_sources_bytes() const {
      for (std::uint64_t i = 0; i < pages; ++i)
        if (!same_bytes(target().subspan(i * page_bytes, page_bytes), wanted(i)))
          return testing::AssertionFailure() << "page " << i << " of a post that is done holds other bytes";
      return testing::AssertionSuccess();
    }
    [[nodiscard]] testing::AssertionResult holds_old_or_new_bytes() const {
      for (std::uint64_t i = 0; i < pages; ++i)
        for (std::uint64_t k = 0; k < page_bytes; ++k) {
          const std::byte found = target()[i * page_bytes + k];
          if (found != wanted(i)[k] && found != before[i * page_bytes + k])
            return testing::AssertionFailure()
                   << "byte " << k << " of page " << i << " is neither its old nor its new one";
        }
      return testing::AssertionSuccess();
    }
  };

  void post_over_links(int links);

  /// Waits for the end of a post; where faults keep posts from ending, only for a while, then cancels it.
  PostEnd end_of(Request& request) {
    // How long does not matter: a post that would have ended by itself may be canceled as well.
    constexpr auto while_others_may_end = std::chrono::milliseconds(30);
    if (!GetParam().posts_succeed && !world.until([&] { return !request.in_flight(); }, while_others_may_end))
      request.cancel();
    return request.wait();
  }
  /// Whether a post may have ended so.
  testing::AssertionResult is_allowed(Code code) {
    if (GetParam().posts_succeed) return one_of(code, {Code::ok});
    return one_of(code, {Code::ok, Code::canceled, Code::peer_lost, Code::backend_failed});
  }
  /// What came over a link before it was lost may be written until the owner knows of the loss as well.
  bool both_know_if_it_is_lost(const Pair& pair) {
    return !pair.ab.lost() || world.until([&] { return pair.ba.lost(); });
  }
  /// Whether a post or a message was taken, or refused since its link is lost, which the host is told then.
  testing::AssertionResult may_be_refused(const Link& link, Status status) {
    if (status.ok()) return testing::AssertionSuccess();
    if (status.code != Code::peer_lost || GetParam().posts_succeed) return testing::AssertionFailure();
    if (world.until([&] { return link.lost(); })) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "the link is not lost: " << world.describe();
  }
  /// What an end says of itself.
  static void expect_reason(const PostEnd& end) {
    if (end.status.ok() || end.status.code == Code::canceled) return;
    EXPECT_FALSE(end.text.empty()) << code_name(end.status.code);
    EXPECT_TRUE(end.status.page == no_page || end.status.page < pages) << end.status.page;
  }
};
INSTANTIATE_TEST_SUITE_P(backend, Faults, testing::ValuesIn(fault_cases()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Faults);

void Faults::post_over_links(int links) {
  std::uint64_t done = 0, failed = 0, lost = 0, done_after_a_failure = 0, seed = 1;
  for (int link = 0; link < links; ++link) {
    const Pair pair = open_pair();
    std::vector<std::unique_ptr<Work>> work;
    for (int i = 0; i < 6; ++i)
      work.push_back(
          std::make_unique<Work>(pair.ab, *pair.b, i % 2 == 0 ? HEADRACE_READ : HEADRACE_WRITE, seed += 2));
    const std::uint64_t failed_before = failed;
    for (std::uint64_t post = 1; post <= 4 && !pair.ab.lost(); ++post) {
      std::vector<Work*> posted;
      for (const auto& one : work) {
        one->refill(seed += 2);
        const Status status = one->request.try_post();
        ASSERT_TRUE(may_be_refused(pair.ab, status)) << code_name(status.code);
        if (status.ok()) posted.push_back(one.get());
      }
      for (Work* one : posted) one->end = end_of(one->request);
      ASSERT_TRUE(both_know_if_it_is_lost(pair)) << world.describe();
      const bool had_failure = failed > failed_before;  // on this link
      for (Work* one : posted) {
        const PostEnd& end = one->end;
        expect_reason(end);
        EXPECT_TRUE(is_allowed(end.status.code)) << end.text;
        EXPECT_EQ(one->request.ends(), post);
        EXPECT_TRUE(end.status.ok() ? one->holds_the_sources_bytes() : one->holds_old_or_new_bytes());
        if (end.status.ok()) done_after_a_failure += had_failure ? 1 : 0;
        ++(end.status.ok() ? done : failed);
      }
      // Nothing of what failed comes late.
      for (Work* one : posted) one->refill(seed += 2);
      for (int i = 0; i < 50; ++i) (void)world.progress();
      for (Work* one : posted) EXPECT_TRUE(same_bytes(one->target(), one->before));
    }
    lost += pair.ab.lost() ? 1 : 0;
  }
  EXPECT_GT(done, 0U);
  EXPECT_EQ(failed > 0, !GetParam().posts_succeed) << failed << " failed, " << done << " were done";
  if (failed > 0 && lost == 0) {
    EXPECT_GT(done_after_a_failure, 0U) << "a link that is not lost goes on";
  }
}

TEST_P(Faults, let_every_post_end_once_and_none_be_done_with_wrong_bytes) { post_over_links(3); }
TEST_P(Faults, let_every_post_end_once_and_none_be_done_with_wrong_bytes_many_rounds) { post_over_links(8); }

/// The numbers of the messages that came, by any thread of the backend.
class Heard {
 public:
  void add(int number) {
    const std::scoped_lock lock(mutex_);
    numbers_.push_back(number);
  }
  [[nodiscard]] std::vector<int> numbers() const {
    const std::scoped_lock lock(mutex_);
    return numbers_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<int> numbers_;
};

TEST_P(Faults, let_messages_come_once_in_order_and_after_their_bytes) {
  int number = 0;
  std::size_t came = 0;
  for (int round = 0; round < 4; ++round) {
    Heard heard;
    std::atomic<int> stale = 0;
    std::vector<int> must_come;
    const Pair pair = open_pair();
    Work work(pair.ab, *pair.b, HEADRACE_WRITE, 1);
    pair.b->host().on_received = [&](const HostMessage& message) {
      if (message.bytes.starts_with("post ") && !work.holds_the_sources_bytes()) ++stale;
      heard.add(std::stoi(message.bytes.substr(message.bytes.find(' '))));
    };
    for (int post = 0; post < 12 && !pair.ab.lost(); ++post) {
      work.refill(1000 + 2 * static_cast<std::uint64_t>(number));
      const std::string message = fmt::format("post {}", ++number);
      const Status status = work.request.try_post(&message);
      ASSERT_TRUE(may_be_refused(pair.ab, status)) << code_name(status.code);
      if (!status.ok()) break;
      const PostEnd end = end_of(work.request);
      EXPECT_TRUE(is_allowed(end.status.code)) << end.text;
      if (end.status.ok()) must_come.push_back(number);
      const Status sent = pair.ab.notify(HEADRACE_CHANNEL_USER, fmt::format("alone {}", ++number));
      ASSERT_TRUE(may_be_refused(pair.ab, sent)) << code_name(sent.code);
      if (sent.ok()) must_come.push_back(number);
      // The source's bytes stay until the message has come. What was accepted is lost with the link alone.
      ASSERT_TRUE(world.until([&] {
        return std::ranges::includes(heard.numbers(), must_come) || pair.ab.lost();
      })) << world.describe();
    }
    ASSERT_TRUE(both_know_if_it_is_lost(pair)) << world.describe();
    pair.b->host().on_received = nullptr;
    const std::vector<int> numbers = heard.numbers();
    EXPECT_EQ(std::ranges::adjacent_find(numbers, std::greater_equal()), numbers.end())
        << "a message came twice, or before one that was sent earlier";
    EXPECT_EQ(stale, 0) << "messages that came before the bytes of their post";
    came += numbers.size();
  }
  EXPECT_GT(came, 0U);
}

TEST_P(Faults, keep_no_post_from_its_end_when_the_link_is_closed) {
  for (const bool by_the_peer : {false, true}) {
    Pair pair = open_pair();
    std::vector<std::unique_ptr<Work>> work;
    std::uint64_t posted = 0;
    for (std::uint64_t i = 0; i < 8; ++i)
      work.push_back(
          std::make_unique<Work>(pair.ab, *pair.b, i % 2 == 0 ? HEADRACE_READ : HEADRACE_WRITE, 2 * i));
    for (std::uint64_t i = 0; i < 8; ++i) {
      work[i]->refill(50 + 2 * i);
      if (work[i]->request.try_post().ok()) ++posted;
    }
    EXPECT_GT(posted, 0U);
    (by_the_peer ? pair.ba : pair.ab).disconnect();
    if (!by_the_peer) {
      ASSERT_TRUE(world.until([&] { return pair.ba.lost(); })) << world.describe();
    }
    std::uint64_t ended = 0;
    for (const auto& one : work) {
      if (by_the_peer && one->request.in_flight()) (void)one->request.wait();
      EXPECT_FALSE(one->request.in_flight());
      EXPECT_LE(one->request.ends(), 1U);
      ended += one->request.ends();
      const auto end = pair.a->host().last_end(one->request.slot());
      if (!end) continue;
      EXPECT_TRUE(
          one_of(end->status.code, {Code::ok, Code::canceled, Code::peer_lost, Code::backend_failed}));
      EXPECT_TRUE(end->status.ok() ? one->holds_the_sources_bytes() : one->holds_old_or_new_bytes());
    }
    EXPECT_EQ(ended, posted);
  }
}

}  // namespace
}  // namespace headrace::contract
