// SPDX-License-Identifier: Apache-2.0
// What client and server of `headrace bench fabric` both have: a fabric, and memory of each of its groups.
#pragma once

#include <headrace/fabric.hpp>

#include "cli/bench/bench_memory.hpp"
#include "cli/bench/page_pattern.hpp"
#include "cli/bench/peer_process.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace headrace::cli {

/// The command line.
struct FabricSideOptions {
  std::string gpus = "-";  ///< "0,1": a group for each; "-": one group, of host memory
  unsigned nics_per_group = 0;
  std::vector<std::string> nics;  ///< "eth0,eth1" for each group; empty: those near it
  bool spin = false;
  std::map<std::string, std::string> options = {};  ///< of FabricOptions
};

/// Pages that move from one side to the other: from[i] to to[i] of choose_pages.
struct FabricPattern {
  std::uint64_t page_bytes = 0, count = 0;
  std::uint64_t pages_seed = 0, source_seed = 0, target_seed = 0;

  /// Pages of the memory, among which some are not part of the pattern.
  [[nodiscard]] std::uint64_t slots() const { return count + count / 8 + 1; }
  [[nodiscard]] std::uint64_t memory_bytes() const { return slots() * page_bytes; }
  [[nodiscard]] PagePairs pairs(std::size_t group) const {
    return choose_pages(slots(), count, true, pages_seed + group * 2);
  }
  [[nodiscard]] Json json() const;
  static FabricPattern from_json(const Json& json);
};

class FabricSide {
 public:
  ///   errors  invalid_argument (the GPUs or NICs of the command line), those of Fabric::open
  [[nodiscard]] static Result<FabricSide> open(const FabricSideOptions& options);

  [[nodiscard]] Fabric& fabric() { return *fabric_; }
  [[nodiscard]] const std::vector<FabricGroup>& groups() const { return groups_; }
  [[nodiscard]] bool spins() const { return spins_; }

  /// Memory for each group, instead of that of the last call.
  ///   errors  exhausted, not_supported (a network card that does not reach this memory)
  [[nodiscard]] Result<void> allocate(std::uint64_t bytes);
  /// Deregisters the memory.
  void release();
  [[nodiscard]] const FabricMemory& memory(std::size_t group) const { return registered_[group]; }
  /// See fill_pattern; each group gets other bytes.
  [[nodiscard]] Result<void> fill(std::uint64_t seed);
  /// Describes the first wrong page of the target that this side is; empty: there is none.
  [[nodiscard]] Result<std::string> wrong(const FabricPattern& pattern);

 private:
  FabricSide(Fabric fabric, std::vector<FabricGroup> groups, bool spins)
      : fabric_(std::make_unique<Fabric>(std::move(fabric))), groups_(std::move(groups)), spins_(spins) {}

  std::vector<std::unique_ptr<BenchMemory>> memories_;  // they outlive the fabric
  std::unique_ptr<Fabric> fabric_;
  std::vector<FabricGroup> groups_;
  std::vector<FabricMemory> registered_;
  bool spins_;
};

/// "GPU 0: eth0 (tcp, 100 Gbit/s), eth1 not used: its link is down".
[[nodiscard]] std::string group_text(const FabricGroup& group);

}  // namespace headrace::cli
