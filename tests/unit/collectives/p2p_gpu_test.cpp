// SPDX-License-Identifier: Apache-2.0
// Communicators over p2p on GPUs, ranks as threads.
#include "gpu_ranks.hpp"
#include "gpu_windows.hpp"

#include "gpu/gpus.hpp"

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace headrace::test {
namespace {

class CommOnP2pRealGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::is_in_sight()) GTEST_SKIP() << "this machine has no GPU";
  }
  static int gpu_count() {
    return static_cast<int>(must(gpu::list_devices(must(cuda::load_driver()))).size());
  }
  static void run(int size, int gpus) {
    with_real_gpus("p2p", size, gpus, [](Comm& comm, const RankGpu& gpu) {
      reduce_all_ways(comm, gpu);
      move_all_ways(comm, gpu);
      split_on_gpu(comm, gpu);
      overlap(comm, gpu);
      send_around(comm, gpu);
      capture(comm, gpu);
      split_backwards(comm, gpu);
      use_windows(comm, gpu);
      gpu.meet();
      if (comm.size() > 1)
        abort_one_rank(comm, gpu);
      else
        must(comm.finalize());
    });
    if (size > 1) with_real_gpus("p2p", size, gpus, wait_in_vain);
    if (size > 1) with_real_gpus("p2p", size, gpus, abort_while_others_wait);
  }
};

/// Rounds of 16 KiB, so that calls take several.
const std::map<std::string, std::string> short_copies{
    {"copy_bytes", "1"}, {"chunk_bytes", "1024"}, {"slots", "16"}};

void move_by_copies(int size, int gpus) {
  const auto all = [](Comm& comm, const RankGpu& gpu) {
    for (int i = 0; i < 3; ++i) move_all_ways(comm, gpu);
    gather_in_replays(comm, gpu);
    reduce_all_ways(comm, gpu);
    gpu.meet();
    abort_one_rank(comm, gpu);
  };
  with_real_gpus("p2p", size, gpus, all, short_copies);
}

/// Two messages on each way between all ranks.
class Exchange {
 public:
  Exchange(Comm& comm, const RankGpu& gpu, std::size_t count) : comm_(comm), gpu_(gpu), count_(count) {
    for (int other = 0; other < comm.size(); ++other)
      for (int i = 0; i < 2 && other != comm.rank(); ++i) {
        from_.emplace_back(gpu, filled(count, -1));
        to_.emplace_back(gpu, filled(count, -1));
      }
  }

  /// Gives all messages new elements.
  void fill(int value) {
    std::size_t at = 0;
    each([&](int other, int i) {
      const OnGpu<int>& numbers = from_[at++];
      const std::vector<int> given(count_, number(value, comm_.rank(), other, i));
      gpu_.copy(reinterpret_cast<cuda::Address>(numbers.elements().data),
                reinterpret_cast<cuda::Address>(given.data()), count_ * sizeof(int));
      gpu_.wait();
    });
  }
  [[nodiscard]] Result<Work> issue(const OpOptions& options) const {
    Batch batch = comm_.batch();
    std::size_t at = 0;
    each([&](int other, int) {
      must(batch.recv(to_[at].elements(), other));
      must(batch.send(from_[at++].elements(), other));
    });
    return batch.issue(options);
  }
  void check(int value) {
    std::size_t at = 0;
    each([&](int other, int i) {
      EXPECT_THAT(to_[at++].values(), testing::Each(number(value, other, comm_.rank(), i)))
          << "message " << i << " of " << count_ << " numbers from rank " << other;
    });
  }

 private:
  static int number(int value, int from, int to, int i) { return 1000 * value + 100 * from + 10 * to + i; }
  template <class Each>
  void each(const Each& body) const {
    for (int other = 0; other < comm_.size(); ++other)
      for (int i = 0; i < 2 && other != comm_.rank(); ++i) body(other, i);
  }

  Comm& comm_;
  const RankGpu& gpu_;
  const std::size_t count_;
  std::vector<OnGpu<int>> from_, to_;
};

/// Messages one by one, to the next rank in turn.
void pass_around(Comm& comm, const RankGpu& gpu, std::size_t count) {
  OnGpu<int> numbers(gpu, filled(count, comm.rank() == 0 ? 7 : -1));
  MessageOptions options;
  options.stream = gpu.stream();
  if (comm.rank() != 0) ok(comm.recv(numbers.elements(), comm.rank() - 1, options));
  if (comm.rank() != comm.size() - 1) ok(comm.send(numbers.elements(), comm.rank() + 1, options));
  EXPECT_THAT(numbers.values(), testing::Each(7)) << count;
}

/// Two ranks give one message different lengths.
void differ_in_length(Comm& comm, const RankGpu& gpu) {
  OnGpu<int> numbers(gpu, filled(100, comm.rank()));
  if (comm.rank() < 2) {
    MessageOptions options;
    options.stream = gpu.stream();
    const Work work = must(comm.rank() == 0 ? comm.send(numbers.elements(0, 90), 1, options)
                                            : comm.recv(numbers.elements(), 0, options));
    const auto refused = work.wait(std::chrono::seconds(30));
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, testing::HasSubstr("and another number here"));
  }
  gpu.meet();
}

void send_all_ways(int size, int gpus) {
  const auto all = [](Comm& comm, const RankGpu& gpu) {
    for (const std::size_t count : {0UL, 1UL, 1'000UL, 20'001UL, 280'000UL}) pass_around(comm, gpu, count);
    // The second kind is longer than all slots of a channel.
    for (const std::size_t count : {100UL, 560'000UL / static_cast<std::size_t>(comm.size())}) {
      Exchange exchange(comm, gpu, count);
      exchange.fill(1);
      ok(exchange.issue(gpu.on_stream()));
      exchange.check(1);
      gpu.meet();
      const Captured captured(gpu, [&](const OpOptions& options) { return exchange.issue(options); });
      gpu.meet();
      for (const int value : {2, 3}) {
        exchange.fill(value);
        captured.replay();
        exchange.check(value);
      }
      gpu.meet();
    }
    abort_one_rank(comm, gpu);
  };
  with_real_gpus("p2p", size, gpus, all);
  with_real_gpus("p2p", size, gpus, differ_in_length);
}

using CommOnP2pRealGpus_gpu1 = CommOnP2pRealGpus;

TEST_F(CommOnP2pRealGpus_gpu1, ranks_that_share_a_gpu_move_by_copies) {
  for (const int size : {2, 3, 4}) move_by_copies(size, 1);
}

TEST_F(CommOnP2pRealGpus_gpu1, ranks_that_share_a_gpu_send_messages) {
  for (const int size : {2, 3, 4}) send_all_ways(size, 1);
}

TEST_F(CommOnP2pRealGpus_gpu1, one_rank_does_all) { run(1, 1); }

TEST_F(CommOnP2pRealGpus_gpu1, ranks_that_share_a_gpu_do_all) {
  for (const int size : {2, 3, 4}) run(size, 1);
}

TEST_F(CommOnP2pRealGpus_gpu1, a_replay_beside_a_call_that_it_does_not_wait_for_is_refused_and_says_so) {
  for (const bool replay_first : {false, true})
    with_real_gpus("p2p", 2, 1,
                   [=](Comm& comm, const RankGpu& gpu) { run_beside_itself(comm, gpu, replay_first); });
}

using CommOnP2pRealGpus_gpu2 = CommOnP2pRealGpus;

TEST_F(CommOnP2pRealGpus_gpu2, ranks_on_two_gpus_move_by_copies) {
  if (gpu_count() < 2) GTEST_SKIP() << "this machine has fewer than two GPUs";
  for (const int size : {2, 4}) move_by_copies(size, 2);
}

TEST_F(CommOnP2pRealGpus_gpu2, ranks_on_two_gpus_send_messages) {
  if (gpu_count() < 2) GTEST_SKIP() << "this machine has fewer than two GPUs";
  for (const int size : {2, 4}) send_all_ways(size, 2);
}

TEST_F(CommOnP2pRealGpus_gpu2, ranks_on_two_gpus_do_all) {
  if (gpu_count() < 2) GTEST_SKIP() << "this machine has fewer than two GPUs";
  for (const int size : {2, 4}) run(size, 2);
}

}  // namespace
}  // namespace headrace::test
