// SPDX-License-Identifier: Apache-2.0
#include "metadata/shared_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <latch>
#include <semaphore>
#include <thread>

namespace headrace::metadata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Kind = StoreEvent::Kind;
using Watch = std::unique_ptr<Store::Watch>;
using namespace std::chrono_literals;

/// A store whose names the test sets. It counts how often it is read from the beginning, and by how many now.
class PlayedStore {
 public:
  void join(const std::string& name) { change({Kind::joined, name}); }
  void update(const std::string& name) { change({Kind::updated, name}); }
  void leave(const std::string& name) { change({Kind::left, name}); }

  SharedWatch::Source source() {
    return [this](const std::stop_token& stop, const Tell& tell) { read(stop, tell); };
  }
  [[nodiscard]] int starts() const { return starts_; }
  [[nodiscard]] int readers() const { return readers_; }

 private:
  void change(const StoreEvent& event) {
    {
      const std::scoped_lock lock(mutex_);
      history_.push_back(event);
    }
    changed_.notify_all();
  }

  void read(const std::stop_token& stop, const Tell& tell) {
    ++readers_;
    ++starts_;
    std::unique_lock lock(mutex_);
    for (std::size_t at = 0; changed_.wait(lock, stop, [&] { return at < history_.size(); }); ++at) {
      const StoreEvent event = history_[at];
      lock.unlock();
      tell(event.kind, event.name);
      lock.lock();
    }
    --readers_;
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<StoreEvent> history_;
  std::atomic<int> starts_ = 0;
  std::atomic<int> readers_ = 0;
};

/// What one listener has heard.
class Heard {
 public:
  Store::OnEvent listener() {
    return [this](const StoreEvent& event) {
      {
        const std::scoped_lock lock(mutex_);
        events_.push_back(event);
      }
      came_.notify_all();
    };
  }
  /// The events so far, once there are `count`.
  std::vector<StoreEvent> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    came_.wait_for(lock, 30s, [&] { return events_.size() >= count; });
    return events_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<StoreEvent> events_;
};

class SharedWatchTest : public ::testing::Test {
 protected:
  Watch listen(Store::OnEvent on_event) {
    return std::move(watch_.listen(store_.source(), std::move(on_event))).value();
  }
  Watch listen(Heard& heard) { return listen(heard.listener()); }
  void wait_for_readers(int count) const {
    const Deadline give_up = Deadline::after(30s);
    while (store_.readers() != count && !give_up.expired()) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(store_.readers(), count);
  }

  PlayedStore store_;
  SharedWatch watch_;
};

TEST_F(SharedWatchTest, many_listeners_read_the_store_once) {
  std::vector<Heard> heard(50);
  std::vector<Watch> watches;
  for (Heard& one : heard) watches.push_back(listen(one));
  store_.join("a");
  store_.update("a");
  for (Heard& one : heard)
    EXPECT_THAT(one.wait_for(2), ElementsAre(StoreEvent{Kind::joined, "a"}, StoreEvent{Kind::updated, "a"}));
  EXPECT_EQ(store_.starts(), 1);
}

TEST_F(SharedWatchTest, a_later_listener_hears_of_the_names_that_are_there_then_of_changes) {
  Heard first, later;
  const Watch one = listen(first);
  for (const char* name : {"a", "b", "c"}) store_.join(name);
  store_.leave("b");
  store_.update("a");
  (void)first.wait_for(5);
  const Watch other = listen(later);
  EXPECT_THAT(later.wait_for(2),
              UnorderedElementsAre(StoreEvent{Kind::joined, "a"}, StoreEvent{Kind::joined, "c"}));
  store_.leave("c");
  EXPECT_EQ(later.wait_for(3).back(), (StoreEvent{Kind::left, "c"}));
  EXPECT_EQ(first.wait_for(6).size(), 6U) << "the first listener hears nothing twice";
  EXPECT_EQ(store_.starts(), 1);
}

TEST_F(SharedWatchTest, the_end_of_the_last_listener_ends_the_reading_and_the_next_one_begins_anew) {
  Heard first, second, third;
  Watch one = listen(first), two = listen(second);
  store_.join("a");
  (void)second.wait_for(1);
  one.reset();
  EXPECT_EQ(store_.readers(), 1);
  two.reset();
  EXPECT_EQ(store_.readers(), 0) << "the reading goes on without a listener";
  const Watch three = listen(third);
  EXPECT_THAT(third.wait_for(1), ElementsAre(StoreEvent{Kind::joined, "a"}));
  EXPECT_EQ(store_.starts(), 2);
}

TEST_F(SharedWatchTest, a_listener_that_waits_delays_no_end_of_another) {
  Heard heard;
  std::latch inside(1), go_on(1);
  const Watch waiting = listen([&](const StoreEvent&) {
    inside.count_down();
    go_on.wait();
  });
  Watch other = listen(heard);
  store_.join("a");
  inside.wait();
  other.reset();
  go_on.count_down();
  EXPECT_THAT(heard.wait_for(0), IsEmpty());
}

TEST_F(SharedWatchTest, an_end_waits_for_the_call_of_its_own_listener) {
  std::latch inside(1);
  std::atomic<bool> returned = false;
  Watch watch = listen([&](const StoreEvent&) {
    inside.count_down();
    std::this_thread::sleep_for(20ms);  // time for an end that does not wait to be seen
    returned = true;
  });
  store_.join("a");
  inside.wait();
  watch.reset();
  EXPECT_TRUE(returned);
}

TEST_F(SharedWatchTest, a_listener_ends_itself_inside_its_call_and_hears_no_more) {
  Heard other;
  std::atomic<int> calls = 0;
  std::mutex mutex;
  Watch own;
  {
    const std::scoped_lock lock(mutex);
    own = listen([&](const StoreEvent&) {
      ++calls;
      const std::scoped_lock inner(mutex);
      own.reset();
    });
  }
  const Watch watch = listen(other);
  store_.join("a");
  store_.join("b");
  (void)other.wait_for(2);
  EXPECT_EQ(calls, 1);
}

TEST_F(SharedWatchTest, the_last_listener_ends_itself_inside_its_call_and_the_reading_ends) {
  struct Own {
    std::mutex mutex;
    Watch watch;
  };
  const auto own = std::make_shared<Own>();  // nobody waits for the end of the call
  {
    const std::scoped_lock lock(own->mutex);
    own->watch = listen([own](const StoreEvent&) {
      const std::scoped_lock inner(own->mutex);
      own->watch.reset();
    });
  }
  store_.join("a");
  const Deadline give_up = Deadline::after(30s);
  while (store_.starts() == 0 && !give_up.expired()) std::this_thread::sleep_for(1ms);
  wait_for_readers(0);
  Heard heard;
  const Watch next = listen(heard);
  EXPECT_THAT(heard.wait_for(1), ElementsAre(StoreEvent{Kind::joined, "a"}));
}

TEST_F(SharedWatchTest, a_listener_ends_another_and_begins_a_third_inside_its_call) {
  Heard other_heard, third_heard;
  Watch other = listen(other_heard), third;
  std::binary_semaphore done(0);
  store_.join("a");
  (void)other_heard.wait_for(1);
  const Watch watch = listen([&](const StoreEvent&) {
    if (third != nullptr) return;
    other.reset();
    third = listen(third_heard);
    done.release();
  });
  ASSERT_TRUE(done.try_acquire_for(30s));
  store_.join("b");
  EXPECT_THAT(third_heard.wait_for(2),
              ElementsAre(StoreEvent{Kind::joined, "a"}, StoreEvent{Kind::joined, "b"}));
  EXPECT_EQ(other_heard.wait_for(0).size(), 1U);
}

TEST_F(SharedWatchTest, listeners_that_come_and_go_at_once_hear_of_every_name_once) {
  constexpr int names = 40;
  const std::jthread changing([&](const std::stop_token& stop) {
    for (int i = 0; i < names; ++i) store_.join(std::to_string(i));
    while (!stop.stop_requested()) {
      store_.update("0");
      std::this_thread::sleep_for(100us);
    }
  });
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        std::atomic<int> joined = 0;
        std::atomic<bool> ended = false;
        std::binary_semaphore all(0);
        Watch watch = listen([&](const StoreEvent& event) {
          EXPECT_FALSE(ended) << "called after its end";
          if (event.kind == Kind::joined && ++joined == names) all.release();
        });
        EXPECT_TRUE(all.try_acquire_for(30s));
        watch.reset();
        ended = true;
        EXPECT_EQ(joined, names);
      }
    });
  }
}

}  // namespace
}  // namespace headrace::metadata
