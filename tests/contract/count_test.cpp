// SPDX-License-Identifier: Apache-2.0
// Immediates of posts: the far side counts each once, and after its bytes.
#include "contract/fixture.hpp"

#include <array>
#include <atomic>
#include <thread>

namespace headrace::contract {
namespace {

constexpr std::uint32_t scope = 7;
constexpr std::uint64_t row_bytes = 20'000;

/// Rows of a's memory that are written to the rows of b's, one request each. Inside `counted` the test
/// compares the row that has the immediate's number.
class Counts : public Contract {
 protected:
  struct Rows {
    Rows(Pair& the_pair, std::uint32_t rows)
        : pair(the_pair),
          source(Memory::Kind::plain, rows * row_bytes, 1),
          target(Memory::Kind::shared, rows * row_bytes, 2, 3),
          mine(*pair.a, source),
          theirs(*pair.b, target),
          remote(pair.ab, theirs.facts()) {
      for (std::uint32_t row = 0; row < rows; ++row) {
        requests.push_back(std::make_unique<Request>(
            *pair.a, HEADRACE_WRITE, &pair.ab, uniform_side(mine.handle(), row * row_bytes, 1000, 1000),
            uniform_side(remote.handle(), row * row_bytes, 1000, 1000), row_bytes / 1000));
        requests.back()->set_immediate(plugin::Immediate{scope, row});
      }
      pair.b->host().on_counted = [this](const HostCount& count) { check(count); };
    }
    ~Rows() {  // a count of a canceled post may come as long as there is a link
      pair.ab.disconnect();
      pair.ba.disconnect();
      pair.b->host().on_counted = nullptr;
    }
    Rows(const Rows&) = delete;

    void check(const HostCount& count) {
      if (count.scope != scope || count.immediate >= requests.size() || !arrived(count.immediate)) ++wrong;
      if (count.immediate < of_row.size()) of_row[count.immediate] += count.amount;
      counted += count.amount;
    }
    [[nodiscard]] bool arrived(std::uint32_t row) const {
      return same_bytes(source.bytes().subspan(row * row_bytes, row_bytes),
                        target.bytes().subspan(row * row_bytes, row_bytes));
    }

    Pair& pair;
    const Memory source, target;
    const Region mine, theirs;
    const Remote remote;
    std::vector<std::unique_ptr<Request>> requests;
    std::atomic<std::uint64_t> counted{0}, wrong{0};
    std::array<std::atomic<std::uint64_t>, 4> of_row{};  // counted of the first rows
  };
};
HEADRACE_FOR_EACH_BACKEND_THAT(Counts, HEADRACE_REMOTE | HEADRACE_COUNT);

TEST_P(Counts, of_writes_come_once_and_after_the_bytes) {
  Pair pair = open_pair();
  constexpr std::uint32_t rows = 40;
  Rows all(pair, rows);
  for (const auto& request : all.requests) request->post();
  for (const auto& request : all.requests) ASSERT_TRUE(request->wait().status.ok());
  ASSERT_TRUE(world.until([&] { return all.counted == rows; })) << world.describe();
  EXPECT_EQ(all.wrong, 0U);
  for (std::uint32_t row = 0; row < rows; ++row) EXPECT_EQ(pair.b->host().count_of(scope, row), 1U) << row;
  EXPECT_EQ(pair.b->host().message_count(), 0U);
}

TEST_P(Counts, from_four_threads_are_as_many_as_the_posts) {
  Pair pair = open_pair();
  constexpr std::uint32_t threads = 4;
  constexpr std::uint64_t posts = 250;
  Rows all(pair, threads);
  world.start_driver();
  std::vector<std::thread> writers;
  for (std::uint32_t t = 0; t < threads; ++t)
    writers.emplace_back([&, t] {
      try {
        for (std::uint64_t i = 0; i < posts; ++i) {
          if (const PostEnd end = all.requests[t]->run(); !end.status.ok()) ADD_FAILURE() << end.text;
          // The owner looks at the row when it is counted: the next post may write it only then.
          const Deadline deadline = Deadline::after(std::chrono::seconds(20));
          while (all.of_row[t] <= i && !deadline.expired()) std::this_thread::yield();
        }
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
      }
    });
  for (std::thread& writer : writers) writer.join();
  EXPECT_TRUE(world.until([&] { return all.counted >= threads * posts; })) << world.describe();
  world.stop_driver();
  EXPECT_EQ(all.wrong, 0U);
  for (std::uint32_t t = 0; t < threads; ++t) EXPECT_EQ(pair.b->host().count_of(scope, t), posts);
}

TEST_P(Counts, and_messages_of_one_post_both_come) {
  Pair pair = open_pair();
  Rows all(pair, 2);
  constexpr std::uint64_t posts = 50;
  for (std::uint64_t i = 1; i <= posts; ++i) {
    all.requests[0]->post(std::to_string(i));  // both
    all.requests[1]->post();                   // the count alone
    pair.ab.send(world, HEADRACE_CHANNEL_AGENT, "in between");
    ASSERT_TRUE(all.requests[0]->wait().status.ok());
    ASSERT_TRUE(all.requests[1]->wait().status.ok());
    ASSERT_TRUE(world.until([&] { return all.counted == 2 * i; })) << world.describe();
  }
  ASSERT_TRUE(world.until([&] {
    return all.counted == 2 * posts && pair.b->host().message_count() == 2 * posts;
  })) << world.describe();
  EXPECT_EQ(all.wrong, 0U);
  std::uint64_t expected = 0;
  for (const HostMessage& message : pair.b->host().messages()) {
    if (message.channel == HEADRACE_CHANNEL_USER) {
      EXPECT_EQ(message.bytes, std::to_string(++expected));
    }
  }
  EXPECT_EQ(expected, posts);
}

// An agent says on that channel that it leaves: what it has waited for is counted by then.
TEST_P(Counts, come_before_what_channel_1_says_after_the_posts) {
  Pair pair = open_pair();
  Rows all(pair, 1);
  std::atomic<std::uint64_t> messages{0}, early{0};
  pair.b->host().on_received = [&](const HostMessage&) { early += all.counted < ++messages ? 1 : 0; };
  world.start_driver();
  for (std::uint64_t i = 1; i <= 200; ++i) {
    ASSERT_TRUE(all.requests[0]->run().status.ok());
    pair.ab.send(world, HEADRACE_CHANNEL_AGENT, "after it");
    // The owner looks at the row when it is counted: the next post may write it only then.
    ASSERT_TRUE(world.until([&] { return all.counted == i && messages == i; })) << world.describe();
  }
  world.stop_driver();
  pair.b->host().on_received = nullptr;
  EXPECT_EQ(early, 0U);
}

TEST_P(Counts, of_a_read_come_to_the_owner_once) {
  const Pair pair = open_pair();
  const Memory target(Memory::Kind::plain, 50'000, 1), source(Memory::Kind::plain, 50'000, 2);
  const Region mine(*pair.a, target), theirs(*pair.b, source);
  const Remote remote(pair.ab, theirs.facts());
  Request request(*pair.a, HEADRACE_READ, &pair.ab, uniform_side(mine.handle(), 0, 1000, 1000),
                  uniform_side(remote.handle(), 0, 1000, 1000), 50);
  request.set_immediate(plugin::Immediate{0, UINT32_MAX});
  for (std::uint64_t i = 1; i <= 50; ++i) {
    request.post();
    ASSERT_TRUE(request.wait().status.ok());
    ASSERT_TRUE(world.until([&] { return pair.b->host().count_of(0, UINT32_MAX) >= i; })) << world.describe();
  }
  EXPECT_EQ(pair.b->host().count_of(0, UINT32_MAX), 50U);
  EXPECT_TRUE(same_bytes(source.bytes(), target.bytes()));
}

TEST_P(Counts, of_posts_without_bytes_come) {
  const Pair pair = open_pair();
  const Memory source(Memory::Kind::plain, 100, 1), target(Memory::Kind::plain, 100, 2);
  const Region mine(*pair.a, source), theirs(*pair.b, target);
  const Remote remote(pair.ab, theirs.facts());
  Request request(*pair.a, HEADRACE_WRITE, &pair.ab, uniform_side(mine.handle(), 0, 10, 10),
                  uniform_side(remote.handle(), 0, 10, 10), 0);
  request.set_immediate(plugin::Immediate{1, 2});
  ASSERT_TRUE(request.run().status.ok());
  EXPECT_TRUE(world.until([&] { return pair.b->host().count_of(1, 2) == 1; })) << world.describe();
}

TEST_P(Counts, of_failed_posts_do_not_come) {
  const Pair pair = open_pair();
  const Memory source(Memory::Kind::plain, 1000, 1), target(Memory::Kind::plain, 1000, 2);
  const Region mine(*pair.a, source), closed(*pair.b, target, 0, 1000, HEADRACE_REGION_READ_ONLY),
      open(*pair.b, source);
  const Remote to_closed(pair.ab, closed.facts()), to_open(pair.ab, open.facts());
  const auto write_to = [&](const Remote& remote) {
    auto request =
        std::make_unique<Request>(*pair.a, HEADRACE_WRITE, &pair.ab, uniform_side(mine.handle(), 0, 100, 100),
                                  uniform_side(remote.handle(), 0, 100, 100), 10);
    request->set_immediate(plugin::Immediate{scope, 1});
    return request;
  };
  const auto refused = write_to(to_closed), good = write_to(to_open);
  for (int i = 0; i < 20; ++i) {
    const Status status = refused->try_post();
    EXPECT_EQ(status.ok() ? refused->wait().status.code : status.code, Code::invalid_argument);
    ASSERT_TRUE(good->run().status.ok());
  }
  ASSERT_TRUE(world.until([&] { return pair.b->host().count_of(scope, 1) >= 20; })) << world.describe();
  pair.ab.send(world, HEADRACE_CHANNEL_USER, "behind the counts");
  ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == 1; })) << world.describe();
  EXPECT_EQ(pair.b->host().count_of(scope, 1), 20U);
}

TEST_P(Counts, of_canceled_posts_come_at_most_once_and_only_with_all_bytes) {
  Pair pair = open_pair();
  constexpr std::uint32_t rows = 60;
  Rows all(pair, rows);
  std::vector<Code> ends(rows);
  for (std::uint32_t row = 0; row < rows; ++row) {
    all.requests[row]->post();
    if (row % 2 == 0) all.requests[row]->cancel();
  }
  std::uint64_t ok = 0;
  for (std::uint32_t row = 0; row < rows; ++row) {
    ends[row] = all.requests[row]->wait().status.code;
    if (ends[row] == Code::ok) ++ok;
    EXPECT_TRUE(ends[row] == Code::ok || row % 2 == 0) << code_name(ends[row]);
  }
  ASSERT_TRUE(world.until([&] { return all.counted >= ok; })) << world.describe();
  pair.ab.send(world, HEADRACE_CHANNEL_USER, "the last");
  ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == 1; })) << world.describe();
  EXPECT_EQ(all.wrong, 0U);
  for (std::uint32_t row = 0; row < rows; ++row) {
    const std::uint64_t counts = pair.b->host().count_of(scope, row);
    EXPECT_LE(counts, 1U);
    EXPECT_TRUE(counts == 1 || ends[row] != Code::ok) << "row " << row;
  }
}

TEST_P(Counts, of_a_link_that_is_closed_meanwhile_come_at_most_once_and_only_with_all_bytes) {
  Pair pair = open_pair();
  constexpr std::uint32_t rows = 60;
  Rows all(pair, rows);
  world.start_driver();
  for (std::uint32_t row = 0; row < rows; ++row) {
    if (row == rows / 2) pair.ba.disconnect();
    (void)all.requests[row]->try_post();
  }
  for (const auto& request : all.requests)
    if (request->in_flight()) (void)request->wait();
  EXPECT_TRUE(world.until([&] { return pair.ab.lost(); })) << world.describe();
  world.stop_driver();
  EXPECT_EQ(all.wrong, 0U);
  for (std::uint32_t row = 0; row < rows; ++row) EXPECT_LE(pair.b->host().count_of(scope, row), 1U);
}

}  // namespace
}  // namespace headrace::contract
