// SPDX-License-Identifier: Apache-2.0
// One of the two processes of a benchmark: an agent and a buffer that the other side's agent can reach.
#pragma once

#include <headrace/agent.hpp>

#include "cli/bench_memory.hpp"
#include "cli/peer_process.hpp"

#include <map>
#include <string>
#include <vector>

namespace headrace::cli {

struct BenchSetup {
  std::vector<std::string> backends;           ///< only these; empty: all
  std::map<std::string, std::string> options;  ///< of the agent
  std::uint64_t buffer_bytes = 0;              ///< multiple of 8
  MemoryKind kind = MemoryKind::dram;
  bool allocated = false;  ///< dram from `allocate`; else memory of our own that is registered
  int device = 0;          ///< vram: of this GPU

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
  /// What is in the buffer now; good until the next call of either.
  Result<std::span<const std::byte>> contents();

 private:
  BenchSide(Agent agent, Region region, std::unique_ptr<BenchMemory> memory)
      : memory_(std::move(memory)), agent_(std::move(agent)), region_(std::move(region)) {}

  std::unique_ptr<BenchMemory> memory_;  ///< if it was not allocated; goes after the agent
  Agent agent_;
  Region region_;
};

}  // namespace headrace::cli
