// SPDX-License-Identifier: Apache-2.0
// Messages over p2p: by the CPU references of the kernels on fake GPUs. Chunks have 32 bytes, and a channel
// has 8 slots at most: a message of 100 numbers has more than all slots hold.
#include "p2p_ranks.hpp"

#include "kernels/collectives/collectives.hpp"
#include "p2p/channels.hpp"
#include "support/collective_ranks.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace headrace::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr auto long_enough = std::chrono::seconds(60);

MessageOptions message_on(const RankGpu& gpu, bool async = false) {
  MessageOptions options;
  options.stream = gpu.stream();
  options.async = async;
  return options;
}

/// Rank 0 sends to rank 1.
Result<Work> pass_on(Comm& comm, const Elements& elements, const MessageOptions& options) {
  return comm.rank() == 0 ? comm.send(elements, 1, options) : comm.recv(elements, 0, options);
}

TEST(CommOnP2pMessages, arrive_in_the_order_of_calls_beside_collectives) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    const int rank = comm.rank();
    // None, one element, less and more than a chunk, more than all slots.
    for (const std::size_t count : {0UL, 1UL, 7UL, 60UL, 900UL}) {
      std::vector<OnGpu<int>> given;
      for (int i = 0; i < 4; ++i) given.emplace_back(gpu, filled(count, rank == 0 ? i : -1));
      OnGpu<int> sum(gpu, filled(20, 1));
      std::vector<Work> works;
      for (int i = 0; i < 4; ++i) {
        const int to = 1 + i % 2;
        const Elements numbers = given[static_cast<std::size_t>(i)].elements();
        if (rank == 0) works.push_back(must(comm.send(numbers, to, message_on(gpu, i < 2))));
        if (rank == to) works.push_back(must(comm.recv(numbers, 0, message_on(gpu, i < 2))));
        works.push_back(must(comm.all_reduce(sum.elements(), ReduceOp::max, gpu.on_stream(i == 1))));
      }
      for (const Work& work : works) must(work.wait());
      for (int i = 0; i < 4; ++i)
        EXPECT_THAT(given[static_cast<std::size_t>(i)].values(),
                    testing::Each(rank == 0 || rank == 1 + i % 2 ? i : -1));
    }
    must(comm.finalize());
  });
}

TEST(CommOnP2pMessages, move_elements_of_every_type_at_any_address) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    std::mt19937 random(3);  // the same on both ranks
    for (int type = 0; type <= kernels::collectives::last_dtype; ++type)
      for (const std::size_t count : {1UL, 5UL, 83UL}) {
        const auto dtype = static_cast<DType>(type);
        const std::size_t bytes = count * element_bytes(dtype), shift = element_bytes(dtype) % 16;
        const auto sent = kernels::collectives::random_elements(random, HEADRACE_UINT8, bytes + 32);
        std::vector<std::uint8_t> got(bytes + 32, 0);
        OnGpu<std::uint8_t> memory(gpu, comm.rank() == 0 ? sent : got);
        Elements elements = memory.elements(shift);
        elements.count = count;
        elements.dtype = dtype;
        finish(pass_on(comm, elements, message_on(gpu)));
        const auto from = sent.begin() + static_cast<std::ptrdiff_t>(shift);
        std::copy_n(from, bytes, got.begin() + static_cast<std::ptrdiff_t>(shift));
        EXPECT_EQ(memory.values(), comm.rank() == 0 ? sent : got) << dtype_name(dtype) << " " << count;
      }
    must(comm.finalize());
  });
}

// --- messages that are issued together

/// Two messages from each rank to each other one, longer than all slots, receives first.
void exchange_all(Comm& comm, const RankGpu& gpu) {
  const int rank = comm.rank(), size = comm.size();
  Batch batch = comm.batch();
  std::vector<OnGpu<int>> from, to;
  for (int other = 0; other < size; ++other)
    for (int i = 0; i < 2 && other != rank; ++i) {
      to.emplace_back(gpu, filled(200, -1));
      from.emplace_back(gpu, filled(200, 100 * rank + 10 * other + i));
      must(batch.recv(to.back().elements(), other));
      must(batch.send(from.back().elements(), other));
    }
  finish(batch.issue(gpu.on_stream(true)));
  std::size_t at = 0;
  for (int other = 0; other < size; ++other)
    for (int i = 0; i < 2 && other != rank; ++i)
      EXPECT_THAT(to[at++].values(), testing::Each(100 * other + 10 * rank + i));
  must(comm.finalize());
}

TEST(CommOnP2pMessages, of_a_batch_come_in_any_order) { with_gpu_ranks(3, exchange_all); }

TEST(CommOnP2pMessages, take_turns_where_blocks_are_too_few_for_all_channels) {
  with_gpu_ranks(3, 1, exchange_all);  // a GPU has 4 multiprocessors, so a rank has one
  Hints one_block = small_boxes;
  one_block["blocks"] = "1";
  with_gpu_ranks(4, plugin_gpus, exchange_all, one_block);
}

TEST(CommOnP2pMessages, of_a_batch_may_be_more_than_go_in_a_launch) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    constexpr int count = HEADRACE_COLLECTIVES_MOST_MESSAGES;
    const int other = 1 - comm.rank();
    Batch batch = comm.batch();
    std::vector<OnGpu<int>> from, to;
    for (int i = 0; i < count; ++i) {
      from.emplace_back(gpu, filled(3, 1000 * comm.rank() + i));
      to.emplace_back(gpu, filled(3, -1));
      must(batch.send(from.back().elements(), other));
      must(batch.recv(to.back().elements(), other));
    }
    finish(batch.issue(gpu.on_stream(true)));
    for (int i = 0; i < count; ++i)
      EXPECT_THAT(to[static_cast<std::size_t>(i)].values(), testing::Each(1000 * other + i));
    must(comm.finalize());
  });
}

TEST(CommOnP2pMessages, of_a_channel_do_not_wait_for_those_of_another) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> first(gpu, filled(200, comm.rank() == 0 ? 1 : -1)),
        second(gpu, filled(200, comm.rank() == 0 ? 2 : -1)),
        third(gpu, filled(200, comm.rank() == 0 ? 3 : -1)),
        fourth(gpu, filled(200, comm.rank() == 1 ? 4 : -1));
    Batch batch = comm.batch();
    if (comm.rank() == 0) {
      must(batch.send(first.elements(), 1));
      must(batch.send(third.elements(), 2));  // it goes when rank 1 has all of its messages
      must(batch.send(second.elements(), 1));
      finish(batch.issue(gpu.on_stream()));
    } else if (comm.rank() == 1) {
      must(batch.recv(first.elements(), 0));
      must(batch.recv(second.elements(), 0));
      finish(batch.issue(gpu.on_stream()));
      finish(comm.send(fourth.elements(), 2, message_on(gpu)));
      EXPECT_THAT(first.values(), testing::Each(1));
      EXPECT_THAT(second.values(), testing::Each(2));
    } else {
      finish(comm.recv(fourth.elements(), 1, message_on(gpu)));
      finish(comm.recv(third.elements(), 0, message_on(gpu)));
      EXPECT_THAT(fourth.values(), testing::Each(4));
      EXPECT_THAT(third.values(), testing::Each(3));
    }
    must(comm.finalize());
  });
}

TEST(CommOnP2pMessages, may_be_coalesced_with_collectives) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> sum(gpu, filled(100, 1)), from(gpu, filled(100, comm.rank())), to(gpu, filled(100, -1));
    must(comm.start_coalescing());
    ok(comm.send(from.elements(), 1 - comm.rank(), message_on(gpu)));
    ok(comm.all_reduce(sum.elements(), ReduceOp::sum, gpu.on_stream()));
    ok(comm.recv(to.elements(), 1 - comm.rank(), message_on(gpu)));
    must(must(comm.end_coalescing()).wait());
    EXPECT_THAT(sum.values(), testing::Each(2));
    EXPECT_THAT(to.values(), testing::Each(1 - comm.rank()));
    must(comm.finalize());
  });
}

p2p::Message message_with(int peer, bool is_received) {
  p2p::Message message{};
  message.peer = peer;
  message.is_received = is_received;
  return message;
}

TEST(P2pChannels, messages_of_a_batch_are_one_launch_if_it_has_room) {
  p2p::Channels channels(0, 3, {});
  channels.share(32);
  EXPECT_EQ(channels.blocks(), 8U);
  const std::vector<p2p::Message> batch{message_with(1, true), message_with(2, false), message_with(1, true),
                                        message_with(1, false)};
  const auto launches = channels.launches_of(batch);
  ASSERT_EQ(launches.size(), 1U);
  const auto places = channels.places_of(launches[0]);
  ASSERT_EQ(places.channels.size(), 3U);
  EXPECT_EQ(places.messages.size(), 4U);
  std::uint32_t both = 0;
  for (const auto& channel : places.channels) both += channel.message_count == 2 ? 1 : 0;
  EXPECT_EQ(both, 1U);
}

TEST(P2pChannels, their_ends_are_boxes_for_any_number_of_ranks) {
  for (int size = 1; size <= HEADRACE_COLLECTIVES_MOST_RANKS; ++size) {
    p2p::Channels channels(0, size, {});
    EXPECT_TRUE(kernels::collectives::shape_of(channels.shape())) << size;
    channels.share(1);
    EXPECT_EQ(channels.blocks(), 1U);
  }
}

TEST(P2pChannels, ranks_whose_launches_take_one_channel_meet_in_the_same_order) {
  constexpr int size = 4;
  // The ordered pairs of all ranks, as each rank comes to them.
  std::vector<std::vector<std::pair<int, int>>> order(size);
  for (int rank = 0; rank < size; ++rank) {
    p2p::Channels channels(rank, size, {});
    channels.share(1);
    std::vector<p2p::Message> batch;
    for (int other = size; other-- > 0;)
      for (const bool is_received : {true, false})
        if (other != rank) batch.push_back(message_with(other, is_received));
    for (const auto& launch : channels.launches_of(batch)) {
      ASSERT_EQ(launch.size(), 1U);
      const auto& one = launch[0];
      order[static_cast<std::size_t>(rank)].push_back(one.is_received ? std::pair(one.peer, rank)
                                                                      : std::pair(rank, one.peer));
    }
  }
  for (const auto& of_rank : order) {
    EXPECT_EQ(of_rank.size(), 2U * (size - 1));
    EXPECT_TRUE(std::ranges::is_sorted(of_rank)) << "so no circle of ranks waits";
  }
}

TEST(P2pChannels, the_ends_of_a_rank_lie_apart_and_both_ranks_mean_the_same_ones) {
  constexpr int size = 3;
  std::set<std::uint64_t> ends;
  const auto channels_of = [](int rank) {
    p2p::Channels channels(rank, size, {});
    channels.set_end_bytes(16);
    for (int at = 0; at < size; ++at) channels.place(at, 1000U * static_cast<unsigned>(at + 1));
    return channels;
  };
  for (int from = 0; from < size; ++from)
    for (int to = 0; to < size; ++to) {
      if (to == from) continue;
      const p2p::Message sent = message_with(to, false), received = message_with(from, true);
      const auto sender = channels_of(from).places_of({&sent, 1}).channels[0];
      const auto receiver = channels_of(to).places_of({&received, 1}).channels[0];
      EXPECT_EQ(sender.own_end, receiver.peer_end);
      EXPECT_EQ(sender.peer_end, receiver.own_end);
      ends.insert({sender.own_end, receiver.own_end});
    }
  EXPECT_EQ(ends.size(), 2U * size * (size - 1));
}

// --- captures

void set(const RankGpu& gpu, const OnGpu<int>& numbers, const OnGpu<int>& given, std::size_t count) {
  const auto address = [](const OnGpu<int>& one) {
    return reinterpret_cast<cuda::Address>(one.elements().data);
  };
  gpu.copy(address(numbers), address(given), count * sizeof(int));
}

TEST(CommOnP2pMessages, of_replays_take_new_elements) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    const int other = 1 - comm.rank();
    OnGpu<int> from(gpu, filled(300, -1)), to(gpu, filled(300, -1));
    const Captured captured(gpu, [&](const OpOptions& options) {
      Batch batch = comm.batch();
      must(batch.send(from.elements(), other));
      must(batch.recv(to.elements(), other));
      return batch.issue(options);
    });
    for (const int value : {4, 9, 2}) {
      set(gpu, from, OnGpu<int>(gpu, filled(300, value + comm.rank())), 300);
      captured.replay();
      EXPECT_THAT(to.values(), testing::Each(value + other));
      send_around(comm, gpu);  // one beside no replay
    }
    must(comm.finalize());
  });
}

TEST(CommOnP2pMessages, of_a_replay_keep_their_deadline_and_the_next_call_says_for_whom_it_has_waited) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(5, 1));
    finish(pass_on(comm, numbers.elements(), message_on(gpu)));
    const auto capture_one = [&](const OpOptions& options) {
      MessageOptions mine = message_on(gpu);
      mine.timeout = options.timeout;
      return pass_on(comm, numbers.elements(), mine);
    };
    const Captured captured(gpu, capture_one, milliseconds(20));
    if (comm.rank() == 0) {
      captured.replay();
      gpu.wait();
      const Work work = must(comm.send(numbers.elements(), 1, message_on(gpu)));
      EXPECT_EQ(work.wait().code(), Code::timed_out);
      EXPECT_THAT(
          work.error().message,
          HasSubstr("a replay of a captured call has ended early: rank 1 has not come: it has begun 1 "
                    "receives from this rank, and this one is number 2"));
    }
    gpu.meet();
  });
}

// --- failures

TEST(CommOnP2pMessages, whose_lengths_differ_end_the_communicator_on_both_ranks_and_are_named) {
  // Longer than all slots, and a message that the sender sends ahead.
  for (const std::size_t sent : {90UL, 10UL})
    with_gpu_ranks(2, [sent](Comm& comm, const RankGpu& gpu) {
      OnGpu<int> numbers(gpu, filled(100, comm.rank()));
      const Elements elements = numbers.elements(0, comm.rank() == 0 ? sent : 100);
      const Work work = must(pass_on(comm, elements, message_on(gpu, true)));
      const auto refused = work.wait(long_enough);
      ASSERT_FALSE(refused.ok());
      const std::string at_sender =
          fmt::format("the message has {} bytes at rank 0, and another number", 4 * sent);
      EXPECT_THAT(refused.error().message,
                  testing::AnyOf(HasSubstr(at_sender),
                                 HasSubstr("the message has 400 bytes at rank 1, and another")));
      EXPECT_THAT(numbers.values(), testing::Each(comm.rank())) << "nothing is written";
      gpu.meet();
    });
}

TEST(CommOnP2pMessages, that_are_late_name_the_rank_that_has_not_come) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(100, 1));
    if (comm.rank() == 0) {
      MessageOptions options = message_on(gpu, true);
      options.timeout = milliseconds(50);
      const Work work = must(comm.recv(numbers.elements(), 2, options));
      EXPECT_EQ(work.wait().code(), Code::timed_out);
      EXPECT_THAT(work.error().message, HasSubstr("recv number 1"));
      EXPECT_THAT(work.error().message,
                  HasSubstr("rank 2 has not come: it has begun 0 sends to this rank, and "
                            "this one is number 1, as its GPU counts them"));
    }
    gpu.meet();
  });
}

TEST(CommOnP2pMessages, of_which_two_are_late_name_one_rank_with_its_own_numbers) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> one(gpu, filled(100, 1)), two(gpu, filled(100, 1));
    if (comm.rank() == 2) finish(comm.recv(two.elements(), 0, message_on(gpu)));
    if (comm.rank() == 0) {
      finish(comm.send(two.elements(), 2, message_on(gpu)));
      Batch batch = comm.batch();
      must(batch.recv(one.elements(), 1));
      must(batch.send(two.elements(), 2));
      OpOptions options = gpu.on_stream(true);
      options.timeout = milliseconds(50);
      const Work work = must(batch.issue(options));
      EXPECT_EQ(work.wait().code(), Code::timed_out);
      EXPECT_THAT(work.error().message,
                  testing::AnyOf(HasSubstr("rank 1 has not come: it has begun 0 sends to this rank, and this "
                                           "one is number 1,"),
                                 HasSubstr("rank 2 has not come: it has begun 1 receives from this rank, and "
                                           "this one is number 2,")));
    }
    gpu.meet();
  });
}

TEST(CommOnP2pMessages, end_when_any_rank_aborts) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    if (comm.rank() == 2) {
      gpu.meet();
      comm.abort("enough");
      return;
    }
    OnGpu<int> numbers(gpu, filled(100, 1));
    const Work work = must(comm.send(numbers.elements(), 2, message_on(gpu, true)));
    gpu.meet();
    EXPECT_EQ(work.wait(long_enough).code(), Code::canceled);
    EXPECT_THAT(work.error().message, HasSubstr("rank 2 aborted"));
    EXPECT_THAT(work.error().message, HasSubstr("enough"));
    EXPECT_EQ(comm.send(numbers.elements(), 1 - comm.rank(), message_on(gpu)).code(), Code::canceled);
  });
}

TEST(CommOnP2pMessages, to_a_rank_that_leaves_end_and_name_it) {
  with_gpu_ranks(2, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(100, 1));
    if (comm.rank() == 1) {
      gpu.meet();
      must(comm.finalize());
      return;
    }
    const Work work = must(comm.send(numbers.elements(), 1, message_on(gpu, true)));
    gpu.meet();
    EXPECT_FALSE(work.wait(long_enough).ok());
    EXPECT_THAT(work.error().message, HasSubstr("rank 1 is gone"));
  });
}

TEST(CommOnP2pMessages, go_on_between_two_ranks_when_a_third_has_left) {
  with_gpu_ranks(3, [](Comm& comm, const RankGpu& gpu) {
    OnGpu<int> numbers(gpu, filled(100, comm.rank()));
    if (comm.rank() == 2) must(comm.finalize());
    gpu.meet();
    if (comm.rank() == 2) return;
    for (int i = 0; i < 3; ++i) finish(pass_on(comm, numbers.elements(), message_on(gpu)));
    EXPECT_THAT(numbers.values(), testing::Each(0));
    must(comm.finalize());
  });
}

}  // namespace
}  // namespace headrace::test
