// SPDX-License-Identifier: Apache-2.0
// The last calls of a rank's communicators, and how far each has come.
#pragma once

#include <headrace/comm.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headrace::collectives {

/// A communicator as a ring knows it. `ranks` are those of the one that was opened first.
struct RecordedComm {
  int id = 0;
  std::string name;  ///< with a number behind it if an earlier one had the same name and ranks
  std::vector<int> ranks;
  int rank = 0;  ///< the index of this rank in `ranks`
  // Numbers of collectives; 0: none yet.
  std::uint64_t last_scheduled = 0, last_started = 0, last_completed = 0;
  std::string why_ended;  ///< empty: it goes on, or was closed
};

/// What a call reads, or writes: the elements of all its lists together.
struct RecordedElements {
  std::uint64_t count = 0;
  DType dtype = DType::float32;
};

struct CallRecord {
  enum class State { scheduled, started, completed };

  std::uint64_t id = 0;  ///< of the ring, from 0
  std::shared_ptr<const RecordedComm> comm;
  CommOperation operation = CommOperation::barrier;
  std::uint64_t number = 0;  ///< as in CommCall
  /// Of messages: among those from the same rank to the same rank, so that both have the same. 0: not known.
  std::uint64_t pair_number = 0;
  int peer = -1;
  std::uint32_t tag = 0;
  std::optional<RecordedElements> input, output;  ///< nullopt: it has none on this rank
  Timeout timeout = {};
  std::uint64_t created_ns = 0, started_ns = 0, completed_ns = 0;  ///< of the wall clock; 0: not yet
  State state = State::scheduled;  ///< a call that failed stays in the state that it had
  bool ended = false;
  std::string error;
};

/// Each function copies a few words under a lock.
///   threads  any
class CallRing {
 public:
  explicit CallRing(std::size_t entries);

  class Recorded;
  /// Recording begins with what it returns, which the hooks of the communicator keep.
  std::shared_ptr<Recorded> add(const Comm& comm);
  void scheduled(const std::shared_ptr<Recorded>& comm, const CommCall& call);
  void started(Recorded& comm, const CommCallId& call);
  void completed(Recorded& comm, const CommCallId& call, const Error& error);
  /// The sender of a receive from any_source.
  void received(Recorded& comm, std::uint64_t number, int source);

  void ended(Recorded& comm, const Error& cause);

  struct Snapshot {
    std::vector<RecordedComm> comms;  ///< those that are open, and those of `calls`
    std::vector<CallRecord> calls;    ///< the oldest first
  };
  [[nodiscard]] Snapshot snapshot() const;
  /// Of this process in the communicator that was opened first; nullopt: none was added.
  [[nodiscard]] std::optional<int> rank() const;

 private:
  [[nodiscard]] CallRecord* find(Recorded& comm, const CommCallId& call);  // null: it was replaced
  CallRecord& next_record();

  const std::size_t entries_;
  mutable std::mutex mutex_;
  std::vector<CallRecord> records_;  // record i is at i % entries_
  std::uint64_t count_ = 0;
  std::vector<std::weak_ptr<Recorded>> comms_;
  std::map<std::pair<std::string, std::vector<int>>, int> names_;  // how often each was added
  int last_id_ = -1;
  std::optional<int> rank_;
};

/// A communicator of a ring. The ring's lock guards it.
class CallRing::Recorded : public RecordedComm {
 private:
  friend CallRing;
  /// Counts a message from or to another rank.
  std::uint64_t count_message(bool is_send, int peer);

  std::unordered_map<std::uint64_t, std::uint64_t> under_way_;  // record by key_of
  std::vector<std::uint64_t> messages_;  // to each rank, then from each; empty before the first
};

}  // namespace headrace::collectives
