// SPDX-License-Identifier: Apache-2.0
// One registration of a window in host memory. Every call waits until it is done.
//
// Elements of ranks that are mapped here are read and written by plain copies and atomic instructions. Others
// move by requests of the agent, and their rank changes words for us (`FarWindow`).
#pragma once

#include <headrace/comm_window.hpp>

#include "collectives/far_window.hpp"
#include "collectives/window_call.hpp"
#include "collectives/window_memory.hpp"
#include "collectives/window_words.hpp"
#include "wire/comm_cards.hpp"

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

namespace headrace::collectives {

using wire::Outcome;
using wire::WindowCard;

class HostWindow {
 public:
  /// `number`: of the window in its communicator. A collective.
  static Result<std::unique_ptr<HostWindow>> open(const WindowComm& comm, WindowMemory memory,
                                                  std::uint64_t number, const TimeLimit& limit);
  ~HostWindow();
  HostWindow(const HostWindow&) = delete;
  HostWindow& operator=(const HostWindow&) = delete;

  /// Withdraws the memory once no rank uses it. A collective.
  ///   errors  timed_out before the other ranks were told: the window stays
  Result<void> close(const TimeLimit& limit);
  [[nodiscard]] bool closed() const { return closed_; }

  [[nodiscard]] const Elements& elements() const { return memory_.elements; }
  Result<void> put(const ConstElements& from, int rank, std::size_t at, const TimeLimit& limit);
  Result<void> get(const Elements& to, int rank, std::size_t at, const TimeLimit& limit);
  Result<void> signal(int rank, const Signal& signal, const TimeLimit& limit);
  Result<std::uint64_t> wait_signal(int rank, const std::optional<SignalCondition>& condition,
                                    const TimeLimit& limit);
  Result<std::int64_t> atomic_add(int rank, std::size_t at, std::int64_t value, const TimeLimit& limit);
  Result<RemoteTensor> map(int rank);
  Result<WindowAttr> attr(int rank);

  // What cannot be is refused before anything is sent.
  [[nodiscard]] Result<void> check_rank(int rank) const { return check_window_rank(rank, size()); }
  [[nodiscard]] Result<void> check_range(int rank, const ConstElements& elements, std::size_t at) const;
  /// Whether an operation with this rank is a copy, or an instruction.
  [[nodiscard]] bool is_mapped(int rank) const { return at(rank).memory != nullptr; }

 private:
  struct Peer {
    std::uint64_t count = 0, address = 0;
    std::optional<Mapping> elements_mapping, signals_mapping;
    std::byte* memory = nullptr;  // the elements here; null: not mapped
    SignalWord* words = nullptr;  // one for each rank that signals
    std::unique_ptr<FarWindow> far;
    std::uint64_t question = 0, answer = 0;  // the last one of that rank; the callback thread's
  };
  using Use = std::shared_lock<std::shared_mutex>;

  HostWindow(WindowComm comm, WindowMemory memory, std::uint64_t number);
  Result<WindowCard> make_regions();
  [[nodiscard]] Result<WindowCard> card() const;
  Result<void> meet(const WindowComm::Gather& gather, const TimeLimit& limit, Result<void>& outcome);
  Result<std::vector<WindowCard>> read_cards(const std::vector<std::string>& texts) const;
  Result<void> connect(const std::vector<WindowCard>& cards, const TimeLimit& limit);
  Result<void> connect_to(int rank, const WindowCard& card, const TimeLimit& limit);
  Result<void> map_peer(Peer& peer, const WindowCard& card, const TimeLimit& limit);
  void take_mail(std::string_view bytes);
  [[nodiscard]] std::uint64_t change(const WindowMail& question);
  Result<void> withdraw(Timeout timeout);

  [[nodiscard]] Result<Use> begin(int rank);
  [[nodiscard]] Result<void> check_mapping(const Peer& peer, int rank) const;
  [[nodiscard]] Result<void> check_atomic(int rank, std::size_t at) const;
  [[nodiscard]] Error deregistered() const;
  [[nodiscard]] std::size_t width() const { return element_bytes(memory_.elements.dtype); }
  [[nodiscard]] int my_rank() const { return comm_.members->rank(); }
  [[nodiscard]] int size() const { return comm_.members->size(); }
  [[nodiscard]] Peer& at(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Peer& at(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  const WindowComm comm_;
  const std::shared_ptr<Station> station_;
  const std::uint64_t number_, mailbox_;
  WindowMemory memory_;
  Region elements_region_, signals_region_;
  std::shared_ptr<std::byte> signals_storage_;
  std::deque<Peer> peers_;
  std::shared_mutex uses_;  // shared by every operation
  std::atomic<bool> closing_{false}, closed_{false};
};

}  // namespace headrace::collectives
