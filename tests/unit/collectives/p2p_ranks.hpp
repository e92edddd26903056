// SPDX-License-Identifier: Apache-2.0
// Ranks over p2p on the fake GPUs of the plugin, as threads.
#pragma once

#include "fake_p2p.hpp"
#include "gpu_ranks.hpp"

#include "support/plugin_gpu.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <map>
#include <string>

namespace headrace::test {

using Hints = std::map<std::string, std::string>;
/// Packets up to 64 bytes, chunks of 32 bytes: calls with few elements go all ways.
inline const Hints small_boxes{{"packet_bytes", "64"}, {"chunk_bytes", "32"}, {"slots", "8"}};

/// All parts that are only moved go by copies, in rounds of 256 bytes.
inline const Hints small_copies = [] {
  Hints hints = small_boxes;
  hints["copy_bytes"] = "1";
  return hints;
}();

inline CommOptions p2p_options(int rank, int size, const std::string& name, int gpus = plugin_gpus) {
  CommOptions options = rank_options(rank, size, name);
  options.backend = fake_p2p();
  options.device = "cuda:" + std::to_string(rank % gpus);
  options.hints = small_boxes;
  return options;
}

/// Ranks on GPUs, which they share if there are more ranks than GPUs.
inline void with_gpu_ranks(int size, int gpus, const std::function<void(Comm&, const RankGpu&)>& body,
                           const Hints& hints = small_boxes) {
  const std::string name = unique_comm_name();
  std::barrier<> ranks(size);
  on_threads(size, [&](int rank) {
    const RankGpu gpu(*plugin_gpu().driver, rank % gpus, ranks);
    CommOptions options = p2p_options(rank, size, name, gpus);
    options.hints = hints;
    Comm comm = must(Comm::open(options));
    body(comm, gpu);
  });
}
inline void with_gpu_ranks(int size, const std::function<void(Comm&, const RankGpu&)>& body) {
  with_gpu_ranks(size, plugin_gpus, body);
}

inline void finish(const Result<Work>& result) {
  ok(result);
  if (result.ok()) must(result->wait());
}

}  // namespace headrace::test
