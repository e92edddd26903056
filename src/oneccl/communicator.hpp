// SPDX-License-Identifier: Apache-2.0
// One rank of a communicator of oneCCL: runs its calls on threads, and tells the host when they have ended.
#pragma once

#include "base/clock.hpp"
#include "base/comm_border.hpp"
#include "oneccl/operation.hpp"

#include <headrace/plugin/comm_v1.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace headrace::oneccl {

/// What a communicator is made of besides its setup.
struct Parts {
  Library library;
  std::string process;  ///< tells the processes of all ranks apart
};

/// A call of the library waits for other ranks without a limit, nothing ends it, and it does not find out
/// that a rank is gone. So calls run on threads of this class, on copies of the caller's elements, and a
/// thread that the library keeps when the communicator closes is left behind.
///   threads  as comm_v1.h has them
class Communicator {
 public:
  using Setup = headrace_comm_setup_v1;
  using Call = headrace_comm_call_v1;

  ///   errors  those of the library and of the host's store; invalid_argument (a hint), not_supported (two
  ///           ranks are in one process), timed_out (another rank has not come)
  static Result<std::unique_ptr<Communicator>> open(const Parts& parts, const Setup& setup);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Whether the work has ended already: never.
  Result<bool> issue(const Call& call, std::uint64_t work);
  void abort();
  /// Ranks of this one come together anew.
  Result<std::unique_ptr<Communicator>> part(const Setup& setup) const { return open(parts_, setup); }

  /// What its threads use, and keep if they are left behind.
  struct Shared;
  class Lane;

 private:
  Communicator(const Parts& parts, const Setup& setup);
  [[nodiscard]] Result<UniqueId> meet(const Deadline& deadline) const;
  /// Of rank 0: the id, once all ranks have come.
  [[nodiscard]] Result<UniqueId> make_id(const Deadline& deadline) const;
  [[nodiscard]] Result<void> connect(const UniqueId& id, const Deadline& deadline);
  /// Collectives have a lane, and so have the messages to and those from each rank.
  [[nodiscard]] Result<Lane*> lane_of(std::int32_t operation, std::int32_t peer);

  const Parts parts_;
  const comm_border::Host host_;
  const StagedCall::Place place_;
  const std::shared_ptr<Shared> shared_;
  std::mutex lanes_mutex_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::unique_ptr<Lane>> lanes_;  // by operation and peer
};

}  // namespace headrace::oneccl
