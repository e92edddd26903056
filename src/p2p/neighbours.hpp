// SPDX-License-Identifier: Apache-2.0
// The other ranks of a communicator: their boxes as this rank's GPU maps them, and what they say.
#pragma once

#include "base/clock.hpp"
#include "gpu/shareable_memory.hpp"
#include "wire/comm_cards.hpp"

#include <headrace/agent.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::p2p {

/// From the loss of a rank until what it has said must be here.
inline constexpr auto longest_last_words = std::chrono::milliseconds(100);

using wire::Saying;

/// Over an agent of its own, which maps the boxes.
///   threads  any, but for open, offer and map, which come first
class Neighbours {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Neighbours>> open(const AgentOptions& options,
                                                                std::string_view name, int rank, int size);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  /// Offers this rank's box. Returns the metadata with which others map it.
  ///   errors  those of Agent::register_memory
  [[nodiscard]] Result<std::string> offer(const gpu::ShareableMemory& box, int device);
  /// Maps the box of another rank for a GPU.
  ///   errors  corrupt (the metadata, or a box that is too short), those of Agent::map
  [[nodiscard]] Result<void> map(int rank, std::string_view metadata, std::size_t box_bytes, int device,
                                 const Deadline& deadline);
  /// The address of a box that has been mapped.
  [[nodiscard]] std::uint64_t box_of(int rank) const;
  struct Offer {
    RegionId region;
    std::string metadata;  ///< with which others map it
  };
  /// Offers a tensor of this rank.
  ///   errors  those of Agent::register_memory
  [[nodiscard]] Result<Offer> offer_tensor(std::uint64_t number, std::uint64_t address, std::uint64_t bytes,
                                           int device);
  /// Maps the tensor of another rank for a GPU. Threads: one at a time, also with `withdraw`.
  ///   errors  as map
  [[nodiscard]] Result<Mapping> map_tensor(int rank, std::uint64_t number, const wire::TensorCard& card,
                                           int device, const Deadline& deadline);
  /// Takes an offered tensor back, when all ranks have dropped their mappings.
  ///   errors  those of Agent::deregister
  [[nodiscard]] Result<void> withdraw(RegionId region, const Deadline& deadline);
  /// Whether a rank has died, or has left.
  [[nodiscard]] bool is_gone(int rank) const;

  /// Says it to all ranks. Waits for none.
  void say(const Saying& saying);
  /// Says it to a rank.
  ///   errors  those of Agent::notify
  [[nodiscard]] Result<void> say_to(int rank, const Saying& saying);
  /// Passes on what others say, on the agent's callback thread, until this object ends.
  void listen(std::function<void(int rank, const Saying& saying)> heard);

 private:
  struct Neighbour {
    std::string agent;
    std::optional<Mapping> box;
  };
  Neighbours(Agent agent, int size) : all_(static_cast<std::size_t>(size)), agent_(std::move(agent)) {}

  std::vector<Neighbour> all_;  // by rank
  Agent agent_;                 // its callback thread ends before the names go
};

}  // namespace headrace::p2p
