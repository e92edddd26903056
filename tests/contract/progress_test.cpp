// SPDX-License-Identifier: Apache-2.0
// Sleeping: an armed instance says when there is something to do.
#include "contract/fake_gpu_fixture.hpp"

#include <poll.h>

namespace headrace::contract {
namespace {

class Progress : public OverFakeGpus<Contract> {
 protected:
  /// Gives `instance` its time until it says that the host may sleep.
  static void go_to_sleep(Instance& instance) {
    for (;;) {
      while (instance.progress() > 0) {
      }
      if (instance.arm(true) == 0) return;
      instance.arm(false);
    }
  }
  /// Sleeps as the host does: on the descriptor, and on its own bell that `wake` and all host functions ring.
  static bool something_happens(Instance& instance, int milliseconds) {
    pollfd fds[2] = {{instance.host().bell().fd(), POLLIN, 0}, {instance.descriptor(), POLLIN, 0}};
    return ::poll(fds, instance.descriptor() >= 0 ? 2 : 1, milliseconds) > 0;
  }
  /// Whether something happens to the one that sleeps while only the other is given time.
  static bool wakes(Instance& other, Instance& sleeper) {
    const Deadline deadline = Deadline::after(World::default_limit);
    while (!deadline.expired()) {
      other.progress();
      if (something_happens(sleeper, 1)) return true;
    }
    return false;
  }
};
HEADRACE_FOR_EACH_BACKEND_THAT(Progress, HEADRACE_REMOTE);

TEST_P(Progress, a_message_wakes_an_instance_that_sleeps_armed) {
  const Pair pair = open_pair();
  for (std::size_t i = 1; i <= 50; ++i) {
    pair.b->host().bell().drain();
    go_to_sleep(*pair.b);
    ASSERT_TRUE(pair.ab.notify(HEADRACE_CHANNEL_USER, "wake up").ok());
    ASSERT_TRUE(wakes(*pair.a, *pair.b)) << "message " << i << ": " << world.describe();
    pair.b->arm(false);
    ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == i; })) << world.describe();
  }
}

TEST_P(Progress, a_thread_that_polls_takes_no_message_from_one_that_sleeps) {
  const Pair pair = open_pair();
  for (std::size_t i = 1; i <= 50; i += 2) {
    pair.b->host().bell().drain();
    go_to_sleep(*pair.b);
    ASSERT_TRUE(pair.ab.notify(HEADRACE_CHANNEL_USER, "one").ok());
    // Another thread than the one that sleeps polls until it has it, and then polls no more. It does not
    // sleep itself, as World::until does: that would disarm the instance that sleeps.
    const Deadline deadline = Deadline::after(World::default_limit);
    while (pair.b->host().message_count() < i && !deadline.expired()) (void)world.progress();
    ASSERT_EQ(pair.b->host().message_count(), i) << world.describe();
    pair.b->host().bell().drain();
    ASSERT_TRUE(pair.ab.notify(HEADRACE_CHANNEL_USER, "two").ok());
    ASSERT_TRUE(wakes(*pair.a, *pair.b)) << "message " << i + 1 << ": " << world.describe();
    pair.b->arm(false);
    ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == i + 1; })) << world.describe();
  }
}

TEST_P(Progress, what_came_in_before_arming_is_not_slept_over) {
  const Pair pair = open_pair();
  for (std::size_t i = 1; i <= 200; ++i) {
    pair.b->host().bell().drain();
    while (pair.b->progress() > 0) {
    }
    ASSERT_TRUE(pair.ab.notify(HEADRACE_CHANNEL_USER, "now").ok());
    pair.a->progress();
    // Whether it has arrived by now or not: arm tells, or the descriptor will.
    if (pair.b->arm(true) == 0) {
      ASSERT_TRUE(wakes(*pair.a, *pair.b)) << "message " << i << ": " << world.describe();
    }
    pair.b->arm(false);
    ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == i; })) << world.describe();
  }
}

TEST_P(Progress, an_idle_instance_lets_the_host_sleep) {
  const Pair pair = open_pair();
  pair.ab.send(world, HEADRACE_CHANNEL_USER, "done with that");
  ASSERT_TRUE(world.until([&] { return pair.b->host().message_count() == 1; })) << world.describe();
  // Without anything to do, armed instances stay silent: three quiet stretches of 20 ms in a row, looked for
  // in 10 s.
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  int quiet = 0;
  while (quiet < 3 && !deadline.expired()) {
    for (Instance* instance : {pair.a.get(), pair.b.get()}) {
      instance->host().bell().drain();
      go_to_sleep(*instance);
    }
    const bool noise = something_happens(*pair.a, 20) || something_happens(*pair.b, 20);
    quiet = noise ? 0 : quiet + 1;
    for (Instance* instance : {pair.a.get(), pair.b.get()}) instance->arm(false);
  }
  EXPECT_EQ(quiet, 3) << "the descriptor keeps being readable while there is nothing to do";
}

TEST_P(Progress, an_end_wakes_an_initiator_that_sleeps_armed) {
  const Pair pair = open_pair();
  const Memory memory(Memory::Kind::plain, 300'000, 1), target(Memory::Kind::plain, 300'000, 2);
  const Region mine(*pair.a, memory), theirs(*pair.b, target);
  const Remote remote(pair.ab, theirs.facts());
  Request request(*pair.a, HEADRACE_WRITE, &pair.ab, uniform_side(mine.handle(), 0, 3000, 3000),
                  uniform_side(remote.handle(), 0, 3000, 3000), 100);
  const bool must_sleep = GetParam().carried_out == CarriedOut::elsewhere;
  const Deadline patience = Deadline::after(World::default_limit);
  int slept = 0;
  for (int i = 0; i < 30 || (must_sleep && slept == 0 && !patience.expired()); ++i) {
    pair.a->host().bell().drain();
    // A fake GPU has done its work when a post returns, unless it is held until the initiator sleeps.
    if (GetParam().vram) driver().hold();
    request.post();
    const Deadline deadline = Deadline::after(World::default_limit);
    while (request.in_flight() && !deadline.expired()) {
      pair.b->progress();
      if (pair.a->progress() > 0) continue;
      if (pair.a->arm(true) == 0 && request.in_flight()) {
        ++slept;
        if (GetParam().vram) driver().release();
        bool woken = false;
        while (!woken && !deadline.expired()) {
          pair.b->progress();
          woken = something_happens(*pair.a, 1);
        }
        ASSERT_TRUE(woken) << world.describe();
      }
      pair.a->arm(false);
    }
    ASSERT_FALSE(request.in_flight()) << world.describe();
    ASSERT_TRUE(pair.a->host().last_end(request.slot())->status.ok());
  }
  EXPECT_TRUE(slept > 0 || !must_sleep) << "the initiator never slept while a post was in flight";
}

}  // namespace
}  // namespace headrace::contract
