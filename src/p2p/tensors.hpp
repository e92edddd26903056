// SPDX-License-Identifier: Apache-2.0
// The registered tensors of a communicator: memory of this rank that the GPUs of all ranks map, and where
// each sees it.
#pragma once

#include "base/clock.hpp"
#include "p2p/neighbours.hpp"

#include <headrace/plugin/kernels/collectives_v1.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace headrace::p2p {

/// Memory of this rank that all ranks map, and that of the others.
struct Shared {
  std::uint64_t number = 0;  ///< the same on all ranks; 0: nothing is shared
  std::optional<RegionId> region = {};
  std::vector<Mapping> mappings = {};
  headrace_collectives_memory_v1 memory = {};  ///< this rank's
  std::vector<std::uint64_t> places = {};      ///< where this GPU sees that of each rank; 0: it has none
};

///   threads  hear: any; all else: one at a time
class Tensors {
 public:
  struct Looks {
    std::function<std::optional<Error>()> ended;    ///< why this communicator has ended, if it has
    std::function<std::optional<Error>(int)> lost;  ///< why a rank says no more, if it does not
  };

  Tensors(int rank, int size, int device, Looks looks)
      : rank_(rank), size_(size), device_(device), looks_(std::move(looks)) {}

  /// A tensor of each rank. All ranks call it. Returns its number.
  ///   neighbours  null: one rank
  ///   errors      those of Agent::register_memory and Agent::map, also of another rank; timed_out
  [[nodiscard]] Result<std::uint64_t> add(Neighbours* neighbours, std::uint64_t address, std::uint64_t bytes,
                                          const Deadline& deadline);
  /// Takes it back. All ranks call it. No kernel uses it.
  ///   errors  not_found; timed_out: it is half taken back, so no call may follow
  [[nodiscard]] Result<void> remove(Neighbours* neighbours, std::uint64_t number, const Deadline& deadline);
  /// As add, of memory that no collective uses.
  [[nodiscard]] Result<Shared> share(Neighbours* neighbours, std::uint64_t address, std::uint64_t bytes,
                                     const Deadline& deadline);
  /// As remove. Nothing of this rank uses it, nor that of the others.
  [[nodiscard]] Result<void> withdraw(Neighbours* neighbours, Shared shared, const Deadline& deadline);
  /// Every rank gets the texts of all, or an error of one.
  [[nodiscard]] Result<std::vector<std::string>> exchange(Neighbours* neighbours,
                                                          const Result<std::string>& mine,
                                                          const Deadline& deadline);
  /// As kernels take them: as many on all ranks.
  [[nodiscard]] std::span<const headrace_collectives_memory_v1> memories() const { return memories_; }

  /// What another rank says of a tensor, on the callback thread.
  void hear(int rank, Saying saying);

 private:
  using Texts = std::vector<std::string>;
  [[nodiscard]] Result<wire::TensorCard> offer(Neighbours& neighbours, Shared& tensor) const;
  [[nodiscard]] Result<wire::TensorPlaces> map_all(Neighbours& neighbours, Shared& tensor, const Texts& cards,
                                                   const Deadline& deadline) const;
  [[nodiscard]] Result<void> share_with_all(Neighbours& neighbours, Shared& tensor, const Deadline& deadline);
  [[nodiscard]] Result<Texts> exchange(Neighbours& neighbours, Saying::Kind kind, std::uint64_t number,
                                       const Result<std::string>& mine, const Deadline& deadline);
  [[nodiscard]] Result<void> tell(Neighbours& neighbours, int rank, const Saying& saying,
                                  const Deadline& deadline) const;
  [[nodiscard]] Result<std::string> said_by(int rank, Saying::Kind kind, std::uint64_t number,
                                            const Deadline& deadline);
  /// Why a rank from `first` on will not say it: it is gone, and its last words have had their time.
  [[nodiscard]] std::optional<Error> why_silent(int first, Saying::Kind kind, std::uint64_t number,
                                                Deadline& last_words);
  [[nodiscard]] bool has_said(int rank, Saying::Kind kind, std::uint64_t number);

  void forget_before(std::uint64_t number);

  const int rank_, size_, device_;
  const Looks looks_;
  std::uint64_t count_ = 0;  // of registrations that were begun
  std::vector<Shared> tensors_;
  std::vector<headrace_collectives_memory_v1> memories_;  // of each of them

  std::mutex mutex_;
  std::condition_variable heard_;
  std::map<std::tuple<int, Saying::Kind, std::uint64_t>, std::string> said_;  // by rank and number
};

}  // namespace headrace::p2p
