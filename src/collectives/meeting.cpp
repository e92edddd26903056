// SPDX-License-Identifier: Apache-2.0
#include "collectives/meeting.hpp"

#include "base/errors.hpp"
#include "base/random.hpp"
#include "wire/byte_writer.hpp"

#include <algorithm>
#include <thread>

namespace headrace::collectives {
namespace {

constexpr auto look_interval = std::chrono::milliseconds(2);

/// An entry that is not there yet is no error.
template <class T>
bool is_missing(const Result<T>& result) {
  return !result && result.code() == Code::not_found;
}

std::string encode_number(std::uint64_t number) {
  wire::ByteWriter writer;
  writer.number(number);
  return std::move(writer).take();
}

}  // namespace

Meeting::Meeting(CommStore& store, std::string name, int rank, int size, Interrupt interrupt)
    : store_(store),
      name_(std::move(name)),
      rank_(rank),
      size_(size),
      nonce_(random_u64()),
      interrupt_(interrupt) {}

Result<std::vector<std::string>> Meeting::exchange(std::string mine, Deadline deadline) {
  mine_ = std::move(mine);
  HEADRACE_TRY_VOID(leave_entry(0, false, deadline));
  return rank_ == 0 ? lead(deadline) : follow(deadline);
}

Result<std::vector<std::string>> Meeting::lead(Deadline deadline) {
  while (true) {
    HEADRACE_TRY(all, collect(deadline));
    HEADRACE_TRY_VOID(store_.set(key("all"), all.encode()));
    bool outdated = false;
    while (!outdated) {
      HEADRACE_TRY(confirmed, confirmed_by_all(all, outdated));
      if (confirmed) {
        HEADRACE_TRY_VOID(store_.set(key("go"), encode_number(all.id)));
        HEADRACE_TRY_VOID(wait_until_done(deadline));
        std::vector<std::string> bytes;
        for (Entry& entry : all.entries) bytes.push_back(std::move(entry.bytes));
        return bytes;
      }
      HEADRACE_TRY_VOID(pause(deadline));
    }
  }
}

/// A rank whose entry is gone has failed; connecting to it will say so.
Result<void> Meeting::wait_until_done(Deadline deadline) {
  for (int rank = 1; rank < size_; ++rank) {
    auto entry = entry_of(rank);
    while (entry && !entry->done) {
      HEADRACE_TRY_VOID(pause(deadline));
      entry = entry_of(rank);
    }
    if (!entry && !is_missing(entry)) return std::move(entry).error();
  }
  return {};
}

Result<Meeting::Table> Meeting::collect(Deadline deadline) {
  Table all{random_u64(), std::vector<Entry>(static_cast<std::size_t>(size_))};
  for (int rank = 0; rank < size_; ++rank) {
    auto entry = entry_of(rank);
    while (is_missing(entry)) {
      HEADRACE_TRY_VOID(pause(deadline));
      entry = entry_of(rank);
    }
    if (!entry) return std::move(entry).error();
    if (rank == rank_ && entry->nonce != nonce_) return taken_twice();
    all.entries[static_cast<std::size_t>(rank)] = std::move(*entry);
  }
  return all;
}

Result<bool> Meeting::confirmed_by_all(const Table& all, bool& outdated) {
  for (int rank = 1; rank < size_; ++rank) {
    auto entry = entry_of(rank);
    outdated = is_missing(entry);  // its publisher has died
    if (outdated) return false;
    if (!entry) return std::move(entry).error();
    outdated = entry->nonce != all.entries[static_cast<std::size_t>(rank)].nonce;
    if (outdated || entry->confirmed != all.id) return false;
  }
  HEADRACE_TRY(now, table());
  if (now.id != all.id) return taken_twice();
  return true;
}

Result<std::vector<std::string>> Meeting::follow(Deadline deadline) {
  std::uint64_t confirmed = 0;
  while (true) {
    auto all = table();
    if (!all && !is_missing(all)) return std::move(all).error();
    if (all && all->entries[static_cast<std::size_t>(rank_)].nonce == nonce_) {
      if (all->id != confirmed) HEADRACE_TRY_VOID(leave_entry(confirmed = all->id, false, deadline));
      const auto go = store_.get(key("go"));
      if (go && *go == encode_number(confirmed)) {
        HEADRACE_TRY_VOID(leave_entry(confirmed, true, deadline));
        std::vector<std::string> bytes;
        for (Entry& entry : all->entries) bytes.push_back(std::move(entry.bytes));
        return bytes;
      }
    }
    const auto mine = entry_of(rank_);
    if (is_missing(mine))  // rank 0 was started again
      HEADRACE_TRY_VOID(leave_entry(confirmed, false, deadline));
    else if (!mine)
      return mine.error();
    else if (mine->nonce != nonce_)
      return taken_twice();
    HEADRACE_TRY_VOID(pause(deadline));
  }
}

/// Waits for a place that is not there yet.
Result<void> Meeting::leave_entry(std::uint64_t confirmed, bool done, Deadline deadline) {
  const std::string entry = Entry{nonce_, confirmed, done, mine_}.encode();
  auto left = store_.set(key(std::to_string(rank_)), entry);
  while (is_missing(left)) {
    HEADRACE_TRY_VOID(pause(deadline));
    left = store_.set(key(std::to_string(rank_)), entry);
  }
  return left;
}

Result<Meeting::Entry> Meeting::entry_of(int rank) {
  HEADRACE_TRY(bytes, store_.get(key(std::to_string(rank))));
  return Entry::decode(bytes);
}

Result<Meeting::Table> Meeting::table() {
  HEADRACE_TRY(bytes, store_.get(key("all")));
  auto table = Table::decode(bytes, static_cast<std::size_t>(size_));
  if (table) return table;
  return make_error(Code::invalid_argument,
                    "the table that rank 0 has left is not of {} ranks: give all ranks the same size ({})",
                    size_, table.error().message);
}

Result<void> Meeting::pause(Deadline deadline) {
  if (interrupt_.asked()) return Interrupt::error();
  if (deadline.expired()) return late();
  std::this_thread::sleep_for(look_interval);
  return {};
}

Error Meeting::late() {
  if (const auto mine = entry_of(rank_); is_missing(mine))
    return make_error(Code::timed_out, "rank {} of {} has not reached the meeting place: {}", rank_, size_,
                      mine.error().message);
  std::string missing;
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_ && is_missing(entry_of(rank)))
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  if (missing.empty()) {
    return make_error(
        Code::timed_out,
        "rank {} of {} has met the others, but not all have answered: one of them has died, a rank was "
        "started twice, or they have been given different sizes",
        rank_, size_);
  }
  return make_error(
      Code::timed_out,
      "rank {} of {} waits for ranks that have not come: {}. Start them with the same name, size "
      "and meeting place",
      rank_, size_, missing);
}

Error Meeting::taken_twice() const {
  return make_error(
      Code::invalid_argument,
      "another caller has opened \"{}\" as rank {} of {} too: give each its own rank, or another "
      "name",
      name_, rank_, size_);
}

std::string Meeting::key(std::string_view what) const { return fmt::format("{}/{}", name_, what); }

}  // namespace headrace::collectives
