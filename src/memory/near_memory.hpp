// SPDX-License-Identifier: Apache-2.0
// Threads that copy, next to the memory that they write.
//
// On a machine with several NUMA nodes a thread that writes another node's memory sends every line over the
// link between the sockets, and has fetched it over that link first unless its stores go past the caches; a
// line that is only read crosses once. So the target decides. A node has only so many CPUs: threads beyond
// them stay where the scheduler has them.
#pragma once

#include "topology/topology.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace headrace {

/// What is asked and told about the calling thread; tests give another.
struct ThreadSystem {
  /// The node of the page at an address; none if that is not known, as of a page that nobody has touched.
  std::function<std::optional<unsigned>(const void* address)> node_of;
  /// The CPUs that the thread may run on; empty if that cannot be read.
  std::function<std::vector<unsigned>()> affinity;
  /// Whether the thread runs on these from now on.
  std::function<bool(std::span<const unsigned> cpus)> set_affinity;
};

/// The nodes of a machine as places for copying threads. Any thread; outlives the threads it has placed.
class CopyPlaces {
 public:
  CopyPlaces(const Topology& topology, ThreadSystem system);
  /// Of this machine; null if it has one node, or will not say: then nothing is to be placed.
  [[nodiscard]] static std::unique_ptr<CopyPlaces> read();

 private:
  friend class NearMemory;
  struct Node {
    unsigned id = 0;
    std::vector<unsigned> cpus;           // that this process may use
    std::atomic<std::size_t> threads{0};  // placed there now
  };

  [[nodiscard]] Node* find(unsigned node);

  std::vector<std::unique_ptr<Node>> nodes_;
  ThreadSystem system_;
};

/// The calling thread while it copies. What it was allowed before it is allowed again afterwards.
class NearMemory {
 public:
  explicit NearMemory(CopyPlaces* places) : places_(places) {}  ///< null: stays where it is
  ~NearMemory();
  NearMemory(const NearMemory&) = delete;
  NearMemory& operator=(const NearMemory&) = delete;

  /// It is about to write there.
  void write_to(const void* address);

 private:
  void leave();

  CopyPlaces* const places_;
  CopyPlaces::Node* at_ = nullptr;
  std::vector<unsigned> before_;  // once it was moved
};

}  // namespace headrace
