// SPDX-License-Identifier: Apache-2.0
// The agent of one of the two processes of a benchmark, and a buffer that the other process's agent can
// reach.
#pragma once

#include <headrace/agent.hpp>

#include "cli/bench/bench_memory.hpp"
#include "cli/bench/peer_process.hpp"

#include <map>
#include <string>
#include <vector>

namespace headrace::cli {

struct BenchSetup {
  std::vector<std::string> backends;           ///< only these may be used; empty: all
  std::map<std::string, std::string> options;  ///< of the agent
  std::uint64_t buffer_bytes = 0;              ///< multiple of 8
  MemoryKind kind = MemoryKind::dram;
  bool allocated = false;  ///< dram comes from `allocate`; else memory of this process is registered
  int device = 0;          ///< vram: the GPU

  [[nodiscard]] Json json() const;
  static BenchSetup from_json(const Json& json);
};

class BenchSide {
 public:
  static Result<BenchSide> open(const std::string& name, const BenchSetup& setup);
  [[nodiscard]] Agent& agent() { return agent_; }
  [[nodiscard]] const Region& region() const { return region_; }
  /// See fill_pattern.
  Result<void> fill(std::uint64_t seed);
  /// The bytes that the buffer holds now; valid until the next call of `fill` or `contents`.
  Result<std::span<const std::byte>> contents();

 private:
  BenchSide(Agent agent, Region region, std::unique_ptr<BenchMemory> memory)
      : memory_(std::move(memory)), agent_(std::move(agent)), region_(std::move(region)) {}

  std::unique_ptr<BenchMemory> memory_;  ///< null if allocated; outlives the agent, which has it registered
  Agent agent_;
  Region region_;
};

}  // namespace headrace::cli
