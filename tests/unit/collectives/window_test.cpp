// SPDX-License-Identifier: Apache-2.0
// Windows over each way to another rank: mapped memory, registered memory of this host, another host.
#include "ranks.hpp"

#include <headrace/comm_window.hpp>

#include <gmock/gmock.h>

#include <chrono>
#include <future>
#include <optional>
#include <random>
#include <span>
#include <utility>

namespace headrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Hints = std::map<std::string, std::string>;

struct Way {
  const char* name;
  const char* backends;
  bool allocate;
};

/// A window with memory, allocated by it or of its own.
class Opened {
 public:
  Opened(Comm& comm, const Way& way, std::size_t count, DType dtype) : window_(must(comm.new_window())) {
    if (way.allocate) {
      elements_ = must(window_.allocate(count, dtype));
    } else {
      own_.resize(count * element_bytes(dtype) / sizeof(std::uint64_t) + 1);
      elements_ = Elements(own_.data(), count, dtype);
      must(window_.tensor_register(elements_));
    }
  }
  Window& operator*() { return window_; }
  Window* operator->() { return &window_; }
  template <class T>
  [[nodiscard]] std::span<T> view() const {
    return {static_cast<T*>(elements_.data), elements_.count};
  }

 private:
  std::vector<std::uint64_t> own_;  // stays until the window has gone
  Window window_;
  Elements elements_;
};

class WindowOver : public testing::TestWithParam<Way> {
 protected:
  static void with_window(int size, std::size_t count, DType dtype,
                          const std::function<void(Comm&, Opened&)>& body) {
    with_ranks(
        size,
        [&](Comm& comm) {
          Opened window(comm, GetParam(), count, dtype);
          body(comm, window);
          must(window->tensor_deregister());
        },
        Hints{{"backends", GetParam().backends}});
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, WindowOver,
                         testing::Values(Way{"mapped", "shm", true}, Way{"registered", "shm", false},
                                         Way{"far", "tcp", true}, Way{"far_registered", "tcp", false}),
                         [](const auto& row) { return row.param.name; });

/// What one rank writes to another, as every rank can compute it.
struct RandomPut {
  int from, to;
  std::size_t at;
  std::vector<std::uint8_t> bytes;
};

/// Each rank writes to a section of its own in the memory of every rank, so that the order of ranks does not
/// matter.
std::vector<RandomPut> random_puts(int size, std::size_t section, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<RandomPut> puts;
  for (int i = 0; i < 12 * size; ++i) {
    RandomPut put;
    put.from = static_cast<int>(random() % static_cast<unsigned>(size));
    put.to = static_cast<int>(random() % static_cast<unsigned>(size));
    const std::size_t begin = random() % section;
    const std::size_t most = i % 4 == 0 ? section : 100;
    put.bytes.resize(std::min<std::size_t>(section - begin, random() % most));
    put.at = static_cast<std::size_t>(put.from) * section + begin;
    for (std::uint8_t& byte : put.bytes) byte = static_cast<std::uint8_t>(random());
    puts.push_back(std::move(put));
  }
  return puts;
}

std::vector<std::uint8_t> expected_bytes(const std::vector<RandomPut>& puts, int rank, std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  for (const RandomPut& put : puts)
    if (put.to == rank) std::ranges::copy(put.bytes, bytes.begin() + static_cast<std::ptrdiff_t>(put.at));
  return bytes;
}

TEST_P(WindowOver, puts_and_gets_of_odd_sizes_and_offsets_move_exactly_these_bytes) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  constexpr std::size_t section = 700'001;  // more than the chunks that are on the wire at once
  constexpr std::size_t count = 3 * section;
  const auto puts = random_puts(3, section, seed);
  with_window(3, count, DType::uint8, [&](Comm& comm, Opened& window) {
    for (const RandomPut& put : puts)
      if (put.from == comm.rank()) ok(window->put(put.bytes, put.to, put.at));
    ok(comm.barrier());
    const auto mine = window.view<std::uint8_t>();
    EXPECT_TRUE(std::ranges::equal(mine, expected_bytes(puts, comm.rank(), count)));
    std::mt19937 random(seed + static_cast<unsigned>(comm.rank()));
    for (int from = 0; from < 3; ++from) {
      const auto theirs = expected_bytes(puts, from, count);
      for (const std::size_t most : {count, std::size_t{10}}) {
        const std::size_t at = random() % count;
        std::vector<std::uint8_t> got(std::min<std::size_t>(count - at, random() % most));
        ok(window->get(got, from, at));
        EXPECT_TRUE(std::ranges::equal(got, std::span(theirs).subspan(at, got.size())));
      }
    }
    ok(comm.barrier());
  });
}

TEST_P(WindowOver, a_rank_that_has_waited_for_a_signal_reads_what_was_put_before) {
  with_window(2, 30'001, DType::uint16, [](Comm& comm, Opened& window) {
    const int other = 1 - comm.rank();
    for (std::uint16_t round = 1; round <= 50; ++round) {
      if (comm.rank() == 0) {
        ok(window->put(std::vector<std::uint16_t>(30'000, round), other, 1));
        ok(window->signal(other));
        EXPECT_EQ(must(window->wait_signal(other)), 1U);
      } else {
        EXPECT_EQ(must(window->wait_signal(other)), 1U);
        const auto seen = window.view<std::uint16_t>();
        EXPECT_EQ(seen[0], 0);
        EXPECT_TRUE(std::ranges::all_of(seen.subspan(1), [&](std::uint16_t n) { return n == round; }));
        ok(window->signal(other));
      }
    }
  });
}

TEST_P(WindowOver, signals_set_and_add_values_and_waits_compare_them) {
  with_window(2, 1, DType::float32, [](Comm& comm, Opened& window) {
    const int other = 1 - comm.rank();
    if (comm.rank() == 0) {
      ok(window->signal(other, {Signal::Kind::set, 40}));
      ok(window->signal(other, {Signal::Kind::add, 2}));
      must(window->wait_signal(other));
      ok(window->signal(other, {Signal::Kind::set, 7}));
      return;
    }
    using enum Comparison;
    for (const SignalCondition holds :
         {SignalCondition{eq, 42}, {ge, 42}, {gt, 41}, {ne, 0}, {le, 42}, {lt, 43}})
      if (holds.comparison != le && holds.comparison != lt && holds.comparison != ne) {
        EXPECT_EQ(must(window->wait_signal(other, holds)), 42U);
      } else {
        EXPECT_TRUE(window->wait_signal(other, holds).ok());
      }
    for (const SignalCondition fails :
         {SignalCondition{eq, 41}, {ge, 43}, {gt, 42}, {ne, 42}, {le, 41}, {lt, 42}})
      EXPECT_EQ(window->wait_signal(other, fails, 1ms).code(), Code::timed_out);
    ok(window->signal(other));
    EXPECT_EQ(must(window->wait_signal(other, {lt, 42})), 7U);
    EXPECT_EQ(must(window->wait_signal(other)), 7U);  // takes one
    EXPECT_EQ(must(window->wait_signal(other, {eq, 6})), 6U);
  });
}

/// An element that others have added to. The thread sanitizer does not follow an order that comes through
/// memory with two addresses, as a barrier's: ranks are threads here.
std::int64_t element(Window& window, int rank, std::size_t at) {
  return must(window.atomic_add(rank, at, 0));
}

TEST_P(WindowOver, signals_and_additions_of_all_ranks_and_threads_at_once_are_all_counted) {
  constexpr int threads = 2, rounds = 30;
  with_window(3, 2, DType::int64, [](Comm& comm, Opened& window) {
    {
      std::vector<std::jthread> adders;
      for (int thread = 0; thread < threads; ++thread)
        adders.emplace_back([&] {
          for (int round = 0; round < rounds; ++round) {
            for (int rank = 0; rank < 3; ++rank) {
              ok(window->signal(rank, {Signal::Kind::add, 3}));
              must(window->atomic_add(rank, 1, rank == 0 ? -5 : 7));
            }
          }
        });
    }
    ok(comm.barrier());
    constexpr std::int64_t all = std::int64_t{3} * threads * rounds;
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(element(*window, rank, 0), 0);
      EXPECT_EQ(element(*window, rank, 1), all * (rank == 0 ? -5 : 7));
      constexpr std::uint64_t sent = std::uint64_t{3} * threads * rounds;
      EXPECT_EQ(must(window->wait_signal(rank, {Comparison::eq, sent}, 10s)), sent);
    }
    ok(comm.barrier());
  });
}

template <class T>
void add_and_look_back(Comm& comm, const Way& way) {
  Opened window(comm, way, 3, *dtype_of<T>);
  constexpr T least = std::numeric_limits<T>::min();
  if (comm.rank() == 0) {
    EXPECT_EQ(must(window->atomic_add(1, 1, -1)), 0);
    EXPECT_EQ(static_cast<T>(must(window->atomic_add(1, 1, 1))), static_cast<T>(-1));
    EXPECT_EQ(must(window->atomic_add(1, 1, static_cast<std::int64_t>(least))), 0);
    EXPECT_EQ(must(window->atomic_add(1, 1, 5)), static_cast<std::int64_t>(least));
  }
  ok(comm.barrier());
  EXPECT_EQ(element(*window, 1, 0), 0);
  EXPECT_EQ(static_cast<T>(element(*window, 1, 1)), static_cast<T>(least + 5));
  EXPECT_EQ(element(*window, 1, 2), 0);
  must(window->tensor_deregister());
}

TEST_P(WindowOver, an_addition_returns_the_value_before_in_every_type_that_has_it) {
  with_ranks(
      2,
      [](Comm& comm) {
        add_and_look_back<std::int32_t>(comm, GetParam());
        add_and_look_back<std::uint32_t>(comm, GetParam());
        add_and_look_back<std::int64_t>(comm, GetParam());
        add_and_look_back<std::uint64_t>(comm, GetParam());
      },
      Hints{{"backends", GetParam().backends}});
}

TEST_P(WindowOver, asynchronous_operations_run_in_order_and_flush_waits_for_all) {
  with_window(2, 2'000'003, DType::uint8, [](Comm& comm, Opened& window) {
    const int other = 1 - comm.rank();
    const std::vector<std::uint8_t> first(2'000'000, 1), second(2'000'000, 2);
    std::vector<std::uint8_t> got(2'000'000);
    const Work one = must(window->put(first, other, 3, {.async = true}));
    const Work two = must(window->put(second, other, 3, {.async = true}));
    const Work three = must(window->get(got, other, 3, {.async = true}));
    ok(window->signal(other, {}, {.async = true}));
    must(window->wait_signal(other));
    EXPECT_EQ(window.view<std::uint8_t>()[2], 0);
    EXPECT_EQ(window.view<std::uint8_t>()[3], 2);
    EXPECT_EQ(window.view<std::uint8_t>()[2'000'002], 2);
    must(window->flush());
    for (const Work& work : {one, two, three}) {
      EXPECT_EQ(work.status(), WorkStatus::completed);
      must(work.wait());
    }
    EXPECT_EQ(got, second);
  });
}

TEST_P(WindowOver, deregistering_returns_when_no_rank_uses_the_memory) {
  with_ranks(
      2,
      [](Comm& comm) {
        Opened window(comm, GetParam(), 1'000, DType::int32);
        const std::vector<std::int32_t> data(1'000, 5);
        if (comm.rank() == 0) {
          std::this_thread::sleep_for(30ms);  // the other one waits meanwhile; it holds without this, too
          ok(window->put(data, 1, 0, {.async = true}));
        }
        const auto keep = must(window->map_remote_tensor(comm.rank()));
        must(window->tensor_deregister());
        if (comm.rank() == 1) {
          EXPECT_EQ(static_cast<const std::int32_t*>(keep.elements.data)[999], 5);
        }
        const auto refused = window->put(std::vector<std::int32_t>(1), 0, 0);
        EXPECT_EQ(refused.code(), Code::invalid_argument);
        EXPECT_THAT(refused.error().message, HasSubstr("no memory is registered"));
      },
      Hints{{"backends", GetParam().backends}});
}

TEST_P(WindowOver, a_wait_that_is_late_names_rank_window_and_value_and_ends_nothing_else) {
  with_window(2, 10, DType::float64, [](Comm& comm, Opened& window) {
    if (comm.rank() == 0) {
      ok(window->signal(1, {Signal::Kind::set, 4}));
    } else {
      EXPECT_EQ(must(window->wait_signal(0, {Comparison::eq, 4})), 4U);
      const auto late = window->wait_signal(0, {Comparison::ge, 5}, 20ms);
      ASSERT_EQ(late.code(), Code::timed_out);
      EXPECT_THAT(late.error().message,
                  AllOf(HasSubstr("rank 1, wait_signal number"), HasSubstr("window 1"),
                        HasSubstr("the signal of rank 0 is 4, and >= 5 was awaited for 20 ms")));
    }
    ok(comm.barrier());
  });
}

TEST_P(WindowOver, an_abort_ends_a_wait_with_rank_and_reason) {
  std::atomic<bool> waiting = false;
  with_ranks(
      2,
      [&](Comm& comm) {
        Opened window(comm, GetParam(), 10, DType::float64);
        if (comm.rank() == 0) {
          while (!waiting) std::this_thread::sleep_for(1ms);
          std::this_thread::sleep_for(10ms);  // it sleeps in its wait by now; it holds without this, too
          return comm.abort("enough");
        }
        waiting = true;
        const auto ended = window->wait_signal(0);
        EXPECT_EQ(ended.code(), Code::canceled);
        EXPECT_THAT(ended.error().message, AllOf(HasSubstr("rank 0 aborted"), HasSubstr("enough")));
        EXPECT_EQ(window->put(std::vector<double>(1), 0, 0).code(), Code::canceled);
        EXPECT_EQ(window->tensor_deregister().code(), Code::canceled);
        EXPECT_THAT(window->put(std::vector<double>(1), 0, 0).error().message,
                    HasSubstr("no memory is registered"));
      },
      Hints{{"backends", GetParam().backends}});
}

TEST_P(WindowOver, a_rank_that_left_or_has_dropped_its_window_is_named) {
  with_ranks(
      2,
      [](Comm& comm) {
        std::optional<Opened> window(std::in_place, comm, GetParam(), 10, DType::int32);
        if (comm.rank() == 1) {
          window.reset();
          ok(comm.barrier());
          return;
        }
        ok(comm.barrier());
        const std::vector<std::int32_t> data(1);
        Window& mine = **window;
        const auto put = mine.put(data, 1, 0), signaled = mine.signal(1);
        const auto added = mine.atomic_add(1, 0, 1);
        for (const Error& error : {put.error(), signaled.error(), added.error()}) {
          if (error.code == Code::peer_lost) continue;  // it has left meanwhile
          EXPECT_EQ(error.code, Code::not_found) << error.message;
          EXPECT_THAT(error.message, HasSubstr("rank 1 has dropped its window"));
        }
        EXPECT_EQ(comm.barrier().code(), Code::peer_lost);
      },
      Hints{{"backends", GetParam().backends}});
}

TEST(WindowMemory, of_ranks_of_one_host_is_mapped_if_the_window_allocates_it) {
  with_ranks(3, [](Comm& comm) {
    const std::size_t count = 100 * static_cast<std::size_t>(comm.rank());
    RemoteTensor kept;
    {
      Opened window(comm, {"mapped", "shm", true}, count, DType::int32);
      for (int rank = 0; rank < 3; ++rank) {
        const WindowAttr attr = must(window->get_attr(rank));
        EXPECT_EQ(attr.access, rank == 0 ? attr.access : WindowAccess::unified);
        EXPECT_EQ(attr.count, static_cast<std::size_t>(100 * rank));
      }
      kept = must(window->map_remote_tensor(2));
      ASSERT_EQ(kept.elements.count, 200U);
      static_cast<std::int32_t*>(kept.elements.data)[comm.rank()] = comm.rank() + 1;
      ok(comm.barrier());
      if (comm.rank() == 2) {
        EXPECT_THAT(window.view<std::int32_t>().first(4), testing::ElementsAre(1, 2, 3, 0));
      }
      EXPECT_EQ(must(window->map_remote_tensor(0)).elements.count, 0U);
      must(window->tensor_deregister());
    }
    EXPECT_EQ(static_cast<const std::int32_t*>(kept.elements.data)[1], 2);  // `owner` keeps it
  });
}

TEST(WindowMemory, may_be_allocated_on_some_ranks_and_registered_on_others) {
  with_ranks(2, [](Comm& comm) {
    Opened window(comm, {"mixed", "shm", comm.rank() == 0}, 5, DType::int32);
    for (int round = 0; round < 10; ++round)
      for (const int rank : {0, 1}) must(window->atomic_add(rank, 1, 1));
    const int other = 1 - comm.rank();
    ok(window->put(std::vector<std::int32_t>{7}, other, 4));
    ok(window->signal(other));
    must(window->wait_signal(other));
    EXPECT_EQ(window.view<std::int32_t>()[4], 7);
    EXPECT_EQ(element(*window, comm.rank(), 1), 20);
    must(window->tensor_deregister());
  });
}

TEST(WindowMemory, that_was_registered_is_not_mapped) {
  with_ranks(2, [](Comm& comm) {
    Opened window(comm, {"registered", "shm", false}, 5, DType::int32);
    EXPECT_EQ(must(window->get_attr(1 - comm.rank())).access, WindowAccess::separate);
    EXPECT_EQ(must(window->get_attr(comm.rank())).access, WindowAccess::unified);
    const auto refused = window->map_remote_tensor(1 - comm.rank());
    EXPECT_EQ(refused.code(), Code::not_supported);
    EXPECT_THAT(refused.error().message, HasSubstr("has registered memory of its own; use put and get"));
    EXPECT_EQ(must(window->map_remote_tensor(comm.rank())).elements.data, window.view<std::int32_t>().data());
    must(window->tensor_deregister());
  });
}

TEST(WindowMemory, is_held_until_it_is_deregistered) {
  with_ranks(2, [](Comm& comm) {
    auto memory = std::make_shared<std::vector<float>>(10);
    const std::weak_ptr<std::vector<float>> seen = memory;
    Window window = must(comm.new_window());
    must(window.tensor_register(*memory, memory));
    memory.reset();
    EXPECT_FALSE(seen.expired());
    must(window.tensor_deregister());
    EXPECT_TRUE(seen.expired());
  });
}

TEST(WindowMemory, several_windows_of_a_communicator_and_of_a_split_are_apart) {
  with_ranks(2, [](Comm& comm) {
    auto group = must(comm.split(std::vector<int>{1, 0}, "turned"));
    std::vector<Opened> windows;
    windows.reserve(3);
    windows.emplace_back(comm, Way{"a", "shm", true}, 10, DType::int32);
    windows.emplace_back(comm, Way{"b", "shm", false}, 20, DType::float32);
    windows.emplace_back(*group, Way{"c", "shm", true}, 30, DType::int32);
    ok(windows[0]->put(std::vector<std::int32_t>{comm.rank() + 1}, 0, static_cast<std::size_t>(comm.rank())));
    ok(windows[2]->put(std::vector<std::int32_t>{comm.rank() + 1}, 0, static_cast<std::size_t>(comm.rank())));
    ok(windows[1]->signal(1 - comm.rank(), {Signal::Kind::set, 9}));
    EXPECT_EQ(must(windows[1]->wait_signal(1 - comm.rank())), 9U);
    EXPECT_EQ(windows[0]->wait_signal(1 - comm.rank(), 1ms).code(), Code::timed_out);
    ok(comm.barrier());
    EXPECT_EQ(windows[0].view<std::int32_t>()[1], comm.rank() == 0 ? 2 : 0);
    EXPECT_EQ(windows[2].view<std::int32_t>()[1], comm.rank() == 1 ? 2 : 0);
    for (Opened& window : windows) must(window->tensor_deregister());
    const Elements again = must(windows[0]->allocate(3, DType::uint64));
    EXPECT_EQ(static_cast<std::uint64_t*>(again.data)[2], 0U);
    must(windows[0]->tensor_deregister());
  });
}

TEST(WindowArguments, that_are_wrong_are_refused_with_their_values_and_end_nothing) {
  with_ranks(2, [](Comm& comm) {
    Window window = must(comm.new_window());
    const std::vector<float> one(1), three(3);
    EXPECT_THAT(window.put(one, 0, 0).error().message, HasSubstr("call tensor_register or allocate"));
    EXPECT_THAT(window.tensor_deregister().error().message, HasSubstr("no memory is registered"));
    EXPECT_THAT(window.tensor_register({nullptr, 4, DType::float32}).error().message,
                HasSubstr("4 elements at a null address"));
    must(window.allocate(10, DType::float32));
    EXPECT_THAT(window.allocate(10, DType::float32).error().message, HasSubstr("registered already"));
    const auto refused = [&](const auto& result, const char* why) {
      EXPECT_EQ(result.code(), Code::invalid_argument);
      if (!result.ok()) {
        EXPECT_THAT(result.error().message, AllOf(HasSubstr("window 1"), HasSubstr(why)));
      }
    };
    for (const bool async : {false, true}) {
      const WindowOptions options{.async = async};
      refused(window.put(one, 2, 0, options), "there is no rank 2; there are 2 ranks");
      refused(window.put(one, -1, 0, options), "there is no rank -1");
      refused(window.put(three, 1, 8, options), "3 elements from element 8 on: rank 1 has 10");
      refused(window.put(one, 1, SIZE_MAX, options), "from element 18446744073709551615 on");
      refused(window.put(std::vector<std::int32_t>(1), 1, 0, options),
              "the elements are int32, those of the window are float32");
      refused(window.put({nullptr, 1, DType::float32}, 1, 0, options), "1 elements at a null address");
      refused(window.signal(5, {}, options), "there is no rank 5");
      refused(window.signal(1, {static_cast<Signal::Kind>(2), 1}, options), "a signal of kind 2");
    }
    std::vector<float> got(11);
    refused(window.get(got, 1, 0), "11 elements from element 0 on: rank 1 has 10");
    refused(window.atomic_add(1, 0, 1), "the window is float32: atomic_add takes int32");
    refused(window.wait_signal(2), "there is no rank 2");
    refused(window.wait_signal(1, {static_cast<Comparison>(6), 1}), "comparison 6 does not exist");
    refused(window.map_remote_tensor(9), "there is no rank 9");
    refused(window.get_attr(-7), "there is no rank -7");
    ok(window.put(three, 1, 7));
    ok(window.put(std::vector<float>(), 1, 10));
    ok(comm.barrier());
    must(window.tensor_deregister());
  });
}

TEST(WindowArguments, an_element_that_is_not_there_or_not_aligned_takes_no_addition) {
  with_ranks(2, [](Comm& comm) {
    std::vector<std::byte> memory(64);
    Window window = must(comm.new_window());
    must(window.tensor_register(Elements(memory.data() + 1, 4, DType::int64)));
    const auto odd = window.atomic_add(1, 0, 1), beyond = window.atomic_add(1, 4, 1);
    EXPECT_THAT(odd.error().message, HasSubstr("do not begin at a multiple of 8 bytes"));
    EXPECT_THAT(beyond.error().message, HasSubstr("element 4: rank 1 has 4"));
    ok(window.put(std::vector<std::int64_t>{1, 2, 3}, 1, 1));
    must(window.tensor_deregister());
  });
}

TEST(WindowArguments, a_rank_that_has_no_memory_to_give_says_so_to_all) {
  with_ranks(2, [](Comm& comm) {
    Window window = must(comm.new_window());
    constexpr std::size_t petabyte = std::size_t{1} << 50;
    const auto refused = window.allocate(comm.rank() == 1 ? petabyte : 10, DType::uint8);
    EXPECT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, HasSubstr("window 1: "));
    if (comm.rank() == 0) {
      EXPECT_THAT(refused.error().message, HasSubstr("rank 1: "));
    }
    must(window.allocate(10, DType::uint8));
    must(window.tensor_deregister());
  });
}

TEST(WindowArguments, ranks_that_register_other_types_or_other_windows_are_all_told) {
  with_ranks(2, [](Comm& comm) {
    Window first = must(comm.new_window()), second = must(comm.new_window());
    const auto types = first.allocate(5, comm.rank() == 0 ? DType::int8 : DType::uint8);
    EXPECT_EQ(types.code(), Code::invalid_argument);
    EXPECT_THAT(types.error().message, HasSubstr("rank 1 registers uint8, rank 0 int8"));
    const auto order = (comm.rank() == 0 ? first : second).allocate(5, DType::int8);
    EXPECT_EQ(order.code(), Code::invalid_argument);
    EXPECT_THAT(order.error().message, HasSubstr("window number 2, rank 0 of number 1"));
    must(first.allocate(5, DType::int8));
    must(first.tensor_deregister());
  });
}

TEST(WindowHooks, see_every_operation_and_may_refuse_it) {
  for (const char* backends : {"shm", "tcp"}) {
    with_ranks(
        2,
        [](Comm& comm) {
          Opened window(comm, {"hooked", "", true}, 10, DType::int32);
          std::vector<std::string> seen;
          std::atomic<int> completed = 0;
          bool refuses = false;
          CommHooks hooks;
          hooks.before = [&](const CommCall& call) -> Result<void> {
            if (refuses) return Error{Code::canceled, "not today"};
            seen.push_back(std::string(comm_operation_name(call.operation)) + std::to_string(call.peer));
            return {};
          };
          hooks.completed = [&](const CommCallId&, const Error& error) {
            if (error.code == Code::ok) ++completed;
          };
          CommHook hook = comm.add_hooks(hooks);
          const int other = 1 - comm.rank();
          std::vector<std::int32_t> data(2, 5);
          must(must(window->put(data, other, 0, {.async = true})).wait());
          ok(window->get(data, other, 2));
          ok(window->signal(other));
          must(window->wait_signal(other));
          must(window->atomic_add(other, 3, 1));
          must(window->flush());
          const std::string to = std::to_string(other);
          EXPECT_THAT(seen, testing::ElementsAre("put" + to, "get" + to, "signal" + to, "wait_signal" + to,
                                                 "atomic_add" + to, "flush-1"));
          EXPECT_EQ(completed, 6);
          refuses = true;
          EXPECT_THAT(window->put(data, other, 8).error().message, HasSubstr("not today"));
          hook.remove();
          ok(comm.barrier());
          EXPECT_EQ(window.view<std::int32_t>()[8], 0);
          must(window->tensor_deregister());
        },
        Hints{{"backends", backends}});
  }
}

TEST(WindowEnd, a_wait_of_another_thread_ends_when_the_window_is_deregistered) {
  with_ranks(2, [](Comm& comm) {
    Opened window(comm, {"mapped", "shm", true}, 5, DType::int32);
    std::atomic<bool> waits = false;
    CommHooks hooks;
    hooks.started = [&](const CommCallId& call) {
      waits = waits || call.operation == CommOperation::wait_signal;
    };
    comm.add_hooks(hooks);
    std::jthread waiter([&] {
      const auto ended = window->wait_signal(1 - comm.rank());
      EXPECT_EQ(ended.code(), Code::invalid_argument);
      EXPECT_THAT(ended.error().message, HasSubstr("deregistered"));
    });
    while (!waits) std::this_thread::yield();
    must(window->tensor_deregister());
  });
}

TEST(WindowEnd, a_window_may_be_let_go_by_a_hook_on_its_own_thread) {
  with_ranks(
      2,
      [](Comm& comm) {
        std::optional<Window> window = must(comm.new_window());
        must(window->allocate(10, DType::float32));
        ok(comm.barrier());
        if (comm.rank() == 0) {
          std::promise<void> returned, gone;
          CommHooks hooks;
          hooks.completed = [&](const CommCallId& call, const Error&) {
            if (call.operation != CommOperation::put || !window) return;
            returned.get_future().wait();
            window.reset();
            gone.set_value();
          };
          CommHook hook = comm.add_hooks(std::move(hooks));
          const std::vector<float> data(10, 1.0F);
          WindowOptions options;
          options.async = true;
          const Work first = must(window->put(data, 1, 0, options));
          const Work second = must(window->put(data, 1, 0, options));
          returned.set_value();
          gone.get_future().wait();
          must(first.wait());
          static_cast<void>(second.wait());  // it ends, well or not
          hook.remove();
        }
        ok(comm.barrier());
      },
      Hints{{"backends", "tcp"}});
}

TEST(WindowEnd, a_window_outlives_its_communicator_and_refuses_operations) {
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    std::optional<Comm> comm(must(Comm::open(rank_options(rank, 2, name))));
    std::optional<Opened> window(std::in_place, *comm, Way{"mapped", "shm", true}, 5, DType::int32);
    must(comm->finalize());
    comm.reset();
    const auto refused = (*window)->put(std::vector<std::int32_t>(1), 1 - rank, 0);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr("has been finalized"));
    window->view<std::int32_t>()[0] = 1;
    window.reset();
  });
}

TEST(WindowEnd, a_caller_that_is_interrupted_leaves_its_wait_alone) {
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    CommOptions options = rank_options(rank, 2, name);
    std::atomic<bool> key = false;
    options.interrupted = [&] { return key.exchange(false); };
    Comm comm = must(Comm::open(options));
    Opened window(comm, {"mapped", "shm", true}, 5, DType::int32);
    if (rank == 1) {
      key = true;
      const auto ended = window->wait_signal(0);
      EXPECT_EQ(ended.code(), Code::canceled);
      EXPECT_THAT(ended.error().message, HasSubstr("its caller interrupted it"));
    }
    ok(comm.barrier());
    must(window->tensor_deregister());
  });
}

}  // namespace
}  // namespace headrace::test
