// SPDX-License-Identifier: Apache-2.0
#include "p2p/meeting.hpp"

#include "wire/comm_cards.hpp"

#include <chrono>
#include <thread>
#include <utility>

namespace headrace::p2p {
namespace {

constexpr auto longest_stay = std::chrono::seconds(5);
constexpr const char* all_have_ended = "all_have_ended";
constexpr const char* yes = "yes";

std::string key_of(const std::string& step, int rank) { return fmt::format("{}/{}", step, rank); }

}  // namespace

Result<std::vector<std::string>> Meeting::exchange(const std::string& step,
                                                   const Result<std::string>& mine) const {
  if (size_ > 1) {
    Result<void> outcome;
    if (!mine) outcome = mine.error();
    HEADRACE_TRY_VOID(
        host_.set(key_of(step, rank_), wire::Outcome::encode(outcome) + (mine ? *mine : std::string())));
  }
  if (!mine) return mine.error();
  std::vector<std::string> all;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) {
      all.push_back(*mine);
      continue;
    }
    HEADRACE_TRY(brought, brought_by(rank, step));
    all.push_back(std::move(brought));
  }
  return all;
}

Result<std::string> Meeting::brought_by(int rank, const std::string& step) const {
  HEADRACE_TRY(bytes,
               host_.wait_for(key_of(step, rank), deadline_, fmt::format("rank {} has not come", rank)));
  HEADRACE_TRY(brought, wire::Outcome::decode(bytes));
  if (!brought.result) return std::move(brought.result).error().within(fmt::format("rank {}", rank));
  return std::string(brought.rest);
}

void Meeting::end() const {
  const Deadline limit = Deadline::earliest(deadline_, Deadline::after(longest_stay));
  if (size_ == 1) return;
  if (rank_ == 0) return end_all(limit);
  static_cast<void>(host_.set(key_of("end", rank_), yes));
  static_cast<void>(host_.wait_for(all_have_ended, limit, ""));
  static_cast<void>(host_.set(key_of("gone", rank_), yes));
}

/// On rank 0: tells the others when all have ended, and stays until they know.
void Meeting::end_all(const Deadline& limit) const {
  for (int rank = 1; rank < size_; ++rank) static_cast<void>(host_.wait_for(key_of("end", rank), limit, ""));
  static_cast<void>(host_.set(all_have_ended, yes));
  for (int rank = 1; rank < size_; ++rank)
    // One whose keys are gone has left, and so has known.
    while (!limit.expired() && !host_.get(key_of("gone", rank)) && host_.get(key_of("end", rank)))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace headrace::p2p
