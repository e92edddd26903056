// SPDX-License-Identifier: Apache-2.0
// One of the two processes of a benchmark: an agent and a buffer that the other side's agent can reach.
#pragma once

#include <headrace/agent.hpp>

#include "cli/peer_process.hpp"

#include <map>
#include <string>
#include <vector>

namespace headrace::cli {

/// Alike on both sides.
struct BenchSetup {
  std::vector<std::string> backends;           ///< only these; empty: all
  std::map<std::string, std::string> options;  ///< of the agent
  std::uint64_t buffer_bytes = 0;              ///< multiple of 8
  bool allocated = false;  ///< memory from `allocate`; else anonymous memory that is registered

  [[nodiscard]] Json json() const;
  static BenchSetup from_json(const Json& json);
};

class BenchSide {
 public:
  static Result<BenchSide> open(const std::string& name, const BenchSetup& setup);
  ~BenchSide();
  BenchSide(BenchSide&& other) noexcept;
  BenchSide& operator=(BenchSide&&) = delete;

  [[nodiscard]] Agent& agent() { return agent_; }
  [[nodiscard]] const Region& region() const { return region_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return region_.bytes(); }

 private:
  BenchSide(Agent agent, Region region, void* mapped)
      : agent_(std::move(agent)), region_(std::move(region)), mapped_(mapped) {}

  Agent agent_;
  Region region_;
  void* mapped_ = nullptr;  ///< our own anonymous memory, if it was not allocated
};

}  // namespace headrace::cli
