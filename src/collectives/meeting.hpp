// SPDX-License-Identifier: Apache-2.0
// How the ranks of a new communicator find each other: each leaves an entry in a store, and all get all
// entries.
#pragma once

#include "base/clock.hpp"
#include "base/interrupt.hpp"
#include "wire/comm_cards.hpp"

#include <headrace/comm.hpp>

#include <memory>
#include <string>
#include <vector>

namespace headrace::collectives {

/// Opens the store of CommOptions::meeting. Rank 0 serves a "tcp://" one while the object lives.
///   errors  invalid_argument (no address, or none of the forms), and those of the store
[[nodiscard]] Result<std::shared_ptr<CommStore>> open_meeting_place(const CommOptions& options);

/// Whether ranks of another host cannot come to the place.
[[nodiscard]] bool meets_on_this_host(const CommOptions& options);

/// One rank at the meeting. Entries of an earlier run that died are never taken for those of this one: each
/// rank has a nonce, rank 0 makes the table of all, and a table holds once every rank has found its own nonce
/// in it. Rank 0 returns last: its entries may go with it.
class Meeting {
 public:
  Meeting(CommStore& store, std::string name, int rank, int size, Interrupt interrupt = {});

  /// Leaves `mine` and returns the entries of all ranks, in their order.
  ///   errors  timed_out (the ranks that have not come), invalid_argument (another caller has this rank),
  ///           corrupt, and those of the store
  [[nodiscard]] Result<std::vector<std::string>> exchange(std::string mine, Deadline deadline);

 private:
  using Entry = wire::MeetingEntry;
  using Table = wire::MeetingTable;
  [[nodiscard]] Result<std::vector<std::string>> lead(Deadline deadline);
  [[nodiscard]] Result<std::vector<std::string>> follow(Deadline deadline);
  [[nodiscard]] Result<Table> collect(Deadline deadline);
  [[nodiscard]] Result<bool> confirmed_by_all(const Table& table, bool& outdated);
  [[nodiscard]] Result<void> wait_until_done(Deadline deadline);
  [[nodiscard]] Result<void> leave_entry(std::uint64_t confirmed, bool done, Deadline deadline);
  [[nodiscard]] Result<Entry> entry_of(int rank);
  [[nodiscard]] Result<Table> table();
  /// Waits before the next look into the store.
  [[nodiscard]] Result<void> pause(Deadline deadline);
  [[nodiscard]] Error late();
  [[nodiscard]] Error taken_twice() const;
  [[nodiscard]] std::string key(std::string_view what) const;

  CommStore& store_;
  const std::string name_;
  const int rank_, size_;
  const std::uint64_t nonce_;
  Interrupt interrupt_;
  std::string mine_;
};

}  // namespace headrace::collectives
