// SPDX-License-Identifier: Apache-2.0
// Communicators over p2p on GPUs, ranks as threads.
#include "gpu_ranks.hpp"
#include "gpu_windows.hpp"

#include "gpu/gpus.hpp"

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

using CommOnP2pRealGpus_gpu1 = CommOnP2pRealGpus;

TEST_F(CommOnP2pRealGpus_gpu1, ranks_that_share_a_gpu_move_by_copies) {
  for (const int size : {2, 3, 4}) move_by_copies(size, 1);
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

TEST_F(CommOnP2pRealGpus_gpu2, ranks_on_two_gpus_do_all) {
  if (gpu_count() < 2) GTEST_SKIP() << "this machine has fewer than two GPUs";
  for (const int size : {2, 4}) run(size, 2);
}

}  // namespace
}  // namespace headrace::test
