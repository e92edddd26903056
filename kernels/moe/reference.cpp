// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe/reference.hpp"

#include "kernels/common/story.hpp"
#include "kernels/moe/launch.cuh"
#include "moe/balance.hpp"
#include "moe/cast.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace headrace::kernels::moe {
namespace {

using headrace::moe::block_elements;
using headrace::moe::BlockScale;
using reference::at;
using reference::Memory;
using reference::Progress;

std::uint64_t acquire(std::uint64_t address) {
  return __atomic_load_n(at<std::uint64_t>(address), __ATOMIC_ACQUIRE);
}
void release(std::uint64_t address, std::uint64_t value) {
  __atomic_store_n(at<std::uint64_t>(address), value, __ATOMIC_RELEASE);
}
std::uint64_t bit_of(unsigned rank) { return std::uint64_t{1} << rank; }

/// As float8_e4m3fn in blocks, whose scales have the form of a cast.
void store_as_blocks(std::span<const float> values, std::uint64_t row, std::uint64_t scales,
                     std::uint32_t cast) {
  for (std::uint64_t begin = 0, block = 0; begin < values.size(); begin += block_elements, ++block) {
    const auto its = values.subspan(begin, std::min<std::uint64_t>(block_elements, values.size() - begin));
    float largest = 0;
    for (const float value : its) largest = std::fabs(value) > largest ? std::fabs(value) : largest;
    BlockScale scale = headrace::moe::block_scale(largest);
    if (cast == HEADRACE_MOE_CAST_UE8M0) {
      at<std::uint8_t>(scales)[block] = headrace::moe::ue8m0_of(scale.scale);
      scale = headrace::moe::scale_of_ue8m0(at<std::uint8_t>(scales)[block]);
    } else {
      at<float>(scales)[block] = scale.scale;
    }
    for (std::uint64_t i = 0; i < its.size(); ++i)
      at<std::uint8_t>(row)[begin + i] = headrace::moe::float8_of(its[i] * scale.inverse);
  }
}

struct Awaited {
  unsigned peer;
  std::uint32_t what;
  std::uint64_t address;
  std::uint64_t expected;
};

/// The tokens of a launch, which may be fewer than its host says.
std::uint64_t given_tokens(std::uint64_t tokens, std::uint64_t tokens_at) {
  if (tokens_at == 0) return tokens;
  return std::min(tokens, static_cast<std::uint64_t>(std::max(0, *at<const std::int32_t>(tokens_at))));
}
/// An expert as a token names it.
std::int64_t number_at(std::uint64_t experts, std::uint32_t bytes, std::uint64_t entry) {
  return bytes == 8 ? at<const std::int64_t>(experts)[entry] : at<const std::int32_t>(experts)[entry];
}

/// One launch: its numbers, its waits, the ranks that it leaves out, its end.
class Turn {
 public:
  Turn(const Common& args, Operation operation, const Memory& memory)
      : args_(args), operation_(operation), memory_(memory) {}
  virtual ~Turn() = default;

  Progress poll() {
    if (!story_) {
      if (!is_reachable()) return Progress::fault;
      begin();
      story_.emplace(run());
    }
    if (state().over == 0 || is_running_) {
      is_running_ = true;
      if (story_->go_on()) return Progress::stays;
    } else {
      report({peer_of_over(state().over), 0, 0, 0}, reason_of_over(state().over), 0);
    }
    end();
    return Progress::ended;
  }

 protected:
  enum class Seen : std::uint8_t { waits, came, lost };
  /// A wait for one word.
  class Wait {
   public:
    Wait(Turn& turn, const Awaited& awaited) : turn_(turn), awaited_(awaited) {}
    [[nodiscard]] bool goes_on() {
      if (seen_ == Seen::waits) seen_ = turn_.look(awaited_, began_);
      return seen_ == Seen::waits;
    }
    [[nodiscard]] bool came() const { return seen_ == Seen::came; }

   private:
    Turn& turn_;
    const Awaited awaited_;
    const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
    Seen seen_ = Seen::waits;
  };

  virtual Story run() = 0;
  virtual void end() {
    const std::size_t taken =
        operation_ == op_dispatch ? offsetof(PeerWords, dispatch_taken) : offsetof(PeerWords, combine_taken);
    for (unsigned rank = 0; rank < ranks(); ++rank)
      if (receives() && state().over == 0 && is_active(rank) && (state().gone_now & bit_of(rank)) == 0)
        release(of(rank, args_.window.words_at(args_.rank)) + taken, receive_number_);
    state().gone |= state().gone_now;
    state().gone_now = 0;
    state().reported = 0;
    if (sends()) state().sent[operation_] = send_number_;
    if (receives()) state().received[operation_] = receive_number_;
  }
  [[nodiscard]] virtual bool is_reachable() const {
    bool good = memory_.reachable(args_.state, args_.state_bytes()) &&
                memory_.reachable(args_.routing, args_.routing_bytes()) &&
                memory_.reachable(args_.status, sizeof(headrace_moe_status_v1)) &&
                (args_.abort == 0 || memory_.reachable(args_.abort, sizeof(std::uint64_t))) &&
                (args_.active == 0 || memory_.reachable(args_.active, sizeof(std::uint64_t)));
    for (unsigned rank = 0; rank < ranks(); ++rank)
      good = good && memory_.reachable(args_.windows[rank], args_.window.bytes());
    return good;
  }

  [[nodiscard]] unsigned ranks() const { return args_.window.ranks; }
  [[nodiscard]] bool sends() const { return (args_.halves & HEADRACE_MOE_SEND) != 0; }
  [[nodiscard]] bool receives() const { return (args_.halves & HEADRACE_MOE_RECEIVE) != 0; }
  [[nodiscard]] bool is_active(unsigned rank) const { return (active_ & bit_of(rank)) != 0; }
  [[nodiscard]] State& state() const { return *at<State>(args_.state); }
  [[nodiscard]] RoutingHead& routing() const { return *at<RoutingHead>(args_.routing); }
  [[nodiscard]] std::uint64_t own(std::uint64_t offset) const { return args_.own_window() + offset; }
  [[nodiscard]] std::uint64_t of(unsigned rank, std::uint64_t offset) const {
    return args_.windows[rank] + offset;
  }
  [[nodiscard]] Awaited room_of(unsigned rank) const {
    const std::size_t taken =
        operation_ == op_dispatch ? offsetof(PeerWords, dispatch_taken) : offsetof(PeerWords, combine_taken);
    return {rank, HEADRACE_MOE_ROOM, own(args_.window.words_at(rank)) + taken, send_number_};
  }

  void leave_out(const Awaited& awaited, std::uint64_t reason, std::uint64_t seen) {
    if ((state().gone_now & bit_of(awaited.peer)) != 0) return;
    state().gone_now |= bit_of(awaited.peer);
    report(awaited, reason, seen);
    if (awaited.peer != args_.rank)
      release(of(awaited.peer, args_.window.words_at(args_.rank)) + offsetof(PeerWords, left_out), 1);
  }
  void report(const Awaited& awaited, std::uint64_t reason, std::uint64_t seen) {
    if (std::exchange(state().reported, 1) != 0 || acquire(args_.status) != 0) return;
    auto& status = *at<headrace_moe_status_v1>(args_.status);
    const bool is_room = awaited.what == HEADRACE_MOE_ROOM;
    status.waiter = args_.rank;
    status.peer = awaited.peer;
    status.operation = operation_;
    status.awaited = awaited.what;
    const bool is_entry = reason == HEADRACE_MOE_WRONG_EXPERT || reason == HEADRACE_MOE_WRONG_PLACE;
    status.number = is_room || is_entry ? send_number_ : receive_number_;
    status.expected = is_room ? send_number_ - headrace::moe::halves : awaited.expected;
    status.seen = seen;
    release(args_.status, reason);
  }

  const Common& args_;
  const Operation operation_;
  const Memory& memory_;
  std::uint64_t active_ = 0, send_number_ = 0, receive_number_ = 0;

 private:
  void begin() {
    const std::uint64_t all = ranks() == most_ranks ? ~std::uint64_t{0} : bit_of(ranks()) - 1;
    const std::uint64_t given = args_.active == 0 ? all : acquire(args_.active) & all;
    active_ = (given & ~state().gone) | bit_of(args_.rank);
    send_number_ = state().sent[operation_] + 1;
    receive_number_ = state().received[operation_] + 1;
  }
  [[nodiscard]] static bool is_there(const Awaited& awaited, std::uint64_t seen) {
    if (awaited.what == HEADRACE_MOE_ROOM) return headrace::moe::may_write(seen, awaited.expected);
    return headrace::moe::has_come(seen, awaited.expected) ||
           (awaited.what == HEADRACE_MOE_SUMS && headrace::moe::is_missing(seen, awaited.expected));
  }
  Seen look(const Awaited& awaited, std::chrono::steady_clock::time_point began) {
    const std::uint64_t seen = acquire(awaited.address);
    if (is_there(awaited, seen)) return Seen::came;
    if (state().over != 0 || (state().gone_now & bit_of(awaited.peer)) != 0) return Seen::lost;
    std::uint64_t reason = 0;
    const auto waited = std::chrono::steady_clock::now() - began;
    if (args_.timeout_ns != 0 && waited >= std::chrono::nanoseconds(args_.timeout_ns))
      reason = HEADRACE_MOE_TIMED_OUT;
    if (acquire(own(args_.window.words_at(awaited.peer)) + offsetof(PeerWords, left_out)) != 0)
      reason = HEADRACE_MOE_LEFT_OUT;
    if (args_.abort != 0 && acquire(args_.abort) != 0) reason = HEADRACE_MOE_ABORTED;
    if (reason == 0) return Seen::waits;
    leave_out(awaited, reason, seen);
    if (reason != HEADRACE_MOE_TIMED_OUT) state().over = over_word(reason, awaited.peer);
    return Seen::lost;
  }

  std::optional<Story> story_;
  bool is_running_ = false;
};

class DispatchTurn final : public Turn {
 public:
  DispatchTurn(const DispatchLaunch& args, const Memory& memory)
      : Turn(args.common, op_dispatch, memory), launch_(args) {}

 private:
  Story run() override {
    if (sends()) {
      rooms_ = 0;
      for (unsigned rank = 0; rank < ranks(); ++rank) {
        if (!is_active(rank)) continue;
        Wait room(*this, room_of(rank));
        while (room.goes_on()) co_yield Waits{};
        if (room.came()) rooms_ |= bit_of(rank);
      }
      route();
      send_cards();
      send_records();
    }
    if (!receives()) co_return;
    for (unsigned source = 0; source < ranks(); ++source) {
      if (!is_active(source)) continue;
      Wait card(*this, {source, HEADRACE_MOE_COUNTS, card_at(source), receive_number_});
      while (card.goes_on()) co_yield Waits{};
      if (card.came()) take_card(source);
    }
    lay_out();
    for (unsigned source = 0; source < ranks(); ++source)
      for (std::uint32_t slot = 0; slot < routing().records[source]; ++slot) {
        Wait chunk(*this, {source, HEADRACE_MOE_ROWS,
                           own(args_.window.chunk_flag_at(receive_number_, source, chunk_of(slot))),
                           receive_number_});
        while (chunk.goes_on()) co_yield Waits{};
        *at<std::uint32_t>(args_.placed_count_at(source, slot)) = 0;
        if (chunk.came()) take_record(source, slot);
      }
    zero_padding();
  }

  [[nodiscard]] bool is_reachable() const override {
    const auto reaches = [&](std::uint64_t address, std::uint64_t bytes) {
      return address == 0 || bytes == 0 || memory_.reachable(address, bytes);
    };
    const auto& record = args_.window.record;
    const std::uint64_t entries = launch_.tokens * args_.top_k(), rows = args_.all_rows();
    return Turn::is_reachable() && (launch_.tokens_at == 0 || memory_.reachable(launch_.tokens_at, 4)) &&
           reaches(launch_.rows, span(launch_.tokens, launch_.row_stride,
                                      record.row_bytes * (launch_.cast == 0 ? 1 : 2))) &&
           (!sends() || reaches_all(launch_.columns, launch_.tokens)) &&
           reaches(launch_.experts, entries * launch_.experts_bytes) &&
           reaches(launch_.weights, entries * 4) && reaches(launch_.out_rows, rows * record.row_bytes) &&
           (!receives() || reaches_all(launch_.out_columns, rows));
  }
  [[nodiscard]] bool reaches_all(const Columns& columns, std::uint64_t rows) const {
    const auto reaches_row = [&](const Column& column, std::uint64_t row) {
      const std::int64_t last = (std::int64_t{column.units} - 1) * column.unit_stride;
      return memory_.reachable(
          column.row_at(row) + static_cast<std::uint64_t>(std::min(last, std::int64_t{0})),
          static_cast<std::uint64_t>(std::abs(last)) + column.unit_bytes);
    };
    return rows == 0 || std::all_of(columns.of, columns.of + columns.count, [&](const Column& column) {
             return reaches_row(column, 0) && reaches_row(column, rows - 1);
           });
  }
  static std::uint64_t span(std::uint64_t rows, std::uint64_t stride, std::uint64_t bytes) {
    return rows == 0 ? 0 : (rows - 1) * stride + bytes;
  }

  // --- source
  [[nodiscard]] std::int64_t given_expert(std::uint64_t entry) const {
    if (launch_.experts == 0) return *at<const std::int32_t>(args_.experts_at() + entry * 4);
    return number_at(launch_.experts, launch_.experts_bytes, entry);
  }
  void read_experts() {
    std::uint64_t tokens = given_tokens(launch_.tokens, launch_.tokens_at);
    if (launch_.experts == 0) tokens = std::min(tokens, routing().tokens);
    routing().tokens = tokens;
    for (std::uint64_t entry = 0; entry < tokens * args_.top_k(); ++entry) {
      const std::int64_t given = given_expert(entry);
      const bool is_expert = given >= 0 && given < args_.experts;
      if (!is_expert && given != -1)
        report({args_.rank, 0, 0, entry}, HEADRACE_MOE_WRONG_EXPERT, static_cast<std::uint64_t>(given));
      *at<std::int32_t>(args_.experts_at() + entry * 4) = is_expert ? static_cast<std::int32_t>(given) : -1;
      if (launch_.experts == 0 && launch_.weights == 0) continue;
      *at<float>(args_.weights_at() + entry * 4) =
          launch_.weights == 0 ? 1 : at<const float>(launch_.weights)[entry];
    }
  }
  /// -1: it goes nowhere.
  [[nodiscard]] std::int32_t expert_of(std::uint64_t entry) const {
    const std::int32_t expert = *at<const std::int32_t>(args_.experts_at() + entry * 4);
    return expert >= 0 && is_active(args_.rank_of(static_cast<std::uint32_t>(expert))) ? expert : -1;
  }
  void route() {
    read_experts();
    counts_.assign(args_.experts, 0);
    for (std::uint32_t member = 0; member < args_.group_size(); ++member) route_of(member);
  }
  /// Orders are those of the tokens that this rank sends, slots those of all.
  void route_of(std::uint32_t member) {
    const bool is_own = member == args_.member(args_.rank);
    const auto range = headrace::moe::tokens_of_member(routing().tokens, args_.group_size(), member);
    std::vector<std::uint32_t> records(ranks());
    const RouteLists lists = args_.lists();
    for (std::uint64_t token = range.begin; token < range.end; ++token) {
      std::uint64_t its_ranks = 0;
      for (std::uint64_t entry = token * args_.top_k(); entry < (token + 1) * args_.top_k(); ++entry) {
        const std::int32_t expert = expert_of(entry);
        if (expert < 0) continue;
        its_ranks |= bit_of(args_.rank_of(static_cast<std::uint32_t>(expert)));
        if (is_own)
          *at<std::uint32_t>(lists.orders + entry * 4) = counts_[static_cast<std::size_t>(expert)]++;
      }
      *at<std::uint64_t>(lists.ranks + token * 8) = its_ranks;
      std::uint64_t slot_at = lists.slots + token * args_.visits * 4;
      for (std::uint64_t rest = its_ranks; rest != 0; rest &= rest - 1, slot_at += 4)
        *at<std::uint32_t>(slot_at) = records[static_cast<std::size_t>(std::countr_zero(rest))]++;
    }
    if (is_own) records_ = std::move(records);
  }
  void send_cards() const {
    const std::uint64_t card = args_.window.card_at(send_number_, args_.rank);
    for (unsigned rank = 0; rank < ranks(); ++rank) {
      if ((rooms_ & bit_of(rank)) == 0) continue;
      *at<std::uint64_t>(of(rank, card + offsetof(CardHead, records))) = records_[rank];
      std::copy_n(counts_.begin() + args_.first_expert[rank], args_.experts_of(rank),
                  at<std::uint32_t>(of(rank, args_.window.counts_at(send_number_, args_.rank))));
      release(of(rank, card + offsetof(CardHead, epoch)), send_number_);
    }
  }
  void send_records() const {
    const RouteLists lists = args_.lists();
    const auto range =
        headrace::moe::tokens_of_member(routing().tokens, args_.group_size(), args_.member(args_.rank));
    for (std::uint64_t token = range.begin; token < range.end; ++token) {
      std::uint64_t slot_at = lists.slots + token * args_.visits * 4;
      for (std::uint64_t rest = *at<std::uint64_t>(lists.ranks + token * 8); rest != 0;
           rest &= rest - 1, slot_at += 4) {
        const auto rank = static_cast<unsigned>(std::countr_zero(rest));
        if ((rooms_ & bit_of(rank)) != 0) send_record(token, rank, *at<std::uint32_t>(slot_at));
      }
    }
  }
  void send_record(std::uint64_t token, unsigned rank, std::uint32_t slot) const {
    const auto& layout = args_.window.record;
    const std::uint64_t record = of(rank, args_.window.slot_at(send_number_, args_.rank, slot));
    RecordHead head{static_cast<std::uint32_t>(token), 0, {}};
    for (std::uint64_t entry = token * args_.top_k(); entry < (token + 1) * args_.top_k(); ++entry) {
      const std::int32_t expert = expert_of(entry);
      if (expert < 0 || args_.rank_of(static_cast<std::uint32_t>(expert)) != rank) continue;
      at<Entry>(record + layout.entries_at())[head.entries++] = {
          static_cast<std::uint32_t>(expert) - args_.first_expert[rank],
          *at<std::uint32_t>(args_.lists().orders + entry * 4), *at<float>(args_.weights_at() + entry * 4)};
    }
    *at<RecordHead>(record) = head;
    const std::uint64_t row = launch_.rows + token * launch_.row_stride;
    launch_.cast == 0 ? copy(record + layout.row_at(), row, layout.row_bytes) : cast(record, row);
    each_unit(launch_.columns, token, record,
              [&](std::uint64_t in_record, std::uint64_t unit, std::uint32_t bytes) {
                copy(in_record, unit, bytes);
              });
    if (slot + 1 == records_[rank] || (slot + 1) % chunk_slots == 0)
      release(of(rank, args_.window.chunk_flag_at(send_number_, args_.rank, chunk_of(slot))), send_number_);
  }
  /// A row of bfloat16 becomes float8 and scales.
  void cast(std::uint64_t record, std::uint64_t row) const {
    const auto& layout = args_.window.record;
    std::vector<float> values(layout.row_bytes);
    for (std::uint64_t i = 0; i < values.size(); ++i)
      values[i] = std::bit_cast<float>(std::uint32_t{at<const std::uint16_t>(row)[i]} << 16);
    std::memset(at<void>(record + layout.scales_at()), 0, layout.scale_bytes);
    store_as_blocks(values, record + layout.row_at(), record + layout.scales_at(), launch_.cast);
  }
  void copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) const {
    if (bytes != 0) memory_.copy(at<void>(to), at<const void>(from), bytes);
  }

  /// Calls each(its place in the record, its place in a row of the caller, bytes) for all units beside a row.
  template <class Each>
  static void each_unit(const Columns& columns, std::uint64_t row, std::uint64_t record, const Each& each) {
    for (const Column& column : std::span(columns.of, columns.count))
      for (std::uint64_t i = 0; i < column.units; ++i)
        each(record + column.record_at + i * column.unit_bytes,
             column.row_at(row) + i * static_cast<std::uint64_t>(column.unit_stride), column.unit_bytes);
  }

  // --- target
  [[nodiscard]] std::uint64_t card_at(unsigned source) const {
    return own(args_.window.card_at(receive_number_, source));
  }
  [[nodiscard]] std::uint32_t count(unsigned source, std::uint32_t expert) const {
    return taken_[source] != 0
               ? at<const std::uint32_t>(own(args_.window.counts_at(receive_number_, source)))[expert]
               : 0;
  }
  void take_card(unsigned source) {
    taken_.resize(ranks());
    const std::uint64_t records = *at<std::uint64_t>(card_at(source) + offsetof(CardHead, records));
    const Awaited counts{source, HEADRACE_MOE_COUNTS, 0, args_.window.slots + std::uint64_t{1}};
    if (records > args_.window.slots) return leave_out(counts, HEADRACE_MOE_CORRUPT, records);
    taken_[source] = static_cast<std::uint32_t>(records);
    std::uint64_t sum = 0;
    for (std::uint32_t expert = 0; expert < args_.own_experts; ++expert) sum += count(source, expert);
    const std::uint64_t most = records * args_.top_k();
    if (sum <= most) return;
    taken_[source] = 0;
    leave_out({source, HEADRACE_MOE_COUNTS, 0, most + 1}, HEADRACE_MOE_CORRUPT, sum);
  }
  /// Computes the first row of each source and expert, and writes counts and prefix sums for the caller.
  void lay_out() {
    taken_.resize(ranks());
    std::copy(taken_.begin(), taken_.end(), routing().records);
    const bool by_rank = args_.layout == HEADRACE_MOE_BY_RANK;
    std::uint64_t first = 0, most = 0;
    for (unsigned source = 0; source < ranks() && by_rank; ++source) {
      first_of_source_.push_back(first);
      tell_first(source, first);
      first += taken_[source];
    }
    places_.assign(std::size_t{ranks()} * args_.own_experts, 0);
    ends_.assign(args_.own_experts, 0);
    for (std::uint32_t expert = 0; expert < args_.own_experts; ++expert) {
      if (!by_rank) tell_first(expert, first);
      std::uint64_t row = first;
      for (unsigned source = 0; source < ranks(); ++source) {
        places_[source * std::size_t{args_.own_experts} + expert] = row;
        row += count(source, expert);
      }
      ends_[expert] = row;
      most = std::max(most, row - first);
      if (launch_.out_counts != 0)
        at<std::int32_t>(launch_.out_counts)[expert] = static_cast<std::int32_t>(row - first);
      if (args_.layout == HEADRACE_MOE_BATCHED) first += args_.output_rows;
      if (args_.layout == HEADRACE_MOE_BY_EXPERT)
        first = headrace::moe::next_expert_at(first, row - first, args_.row_alignment);
    }
    end_ = first;
    tell_first(by_rank ? ranks() : args_.own_experts, first);
    const std::uint64_t needed = args_.layout == HEADRACE_MOE_BATCHED ? most : first;
    if (needed > args_.output_rows)
      report({args_.rank, 0, 0, args_.output_rows}, HEADRACE_MOE_EXHAUSTED, needed);
  }
  void tell_first(std::uint64_t of, std::uint64_t row) const {
    if (launch_.out_first_rows != 0)
      at<std::int64_t>(launch_.out_first_rows)[of] = static_cast<std::int64_t>(row);
  }
  void take_record(unsigned source, std::uint32_t slot) {
    const std::uint64_t record = own(args_.window.slot_at(receive_number_, source, slot));
    const std::uint32_t entries = at<const RecordHead>(record)->entries;
    const auto* const entry = at<const Entry>(record + args_.window.record.entries_at());
    const std::uint64_t most_order = std::uint64_t{args_.window.slots} * args_.top_k();
    const bool is_sound =
        entries != 0 && entries <= args_.top_k() && std::all_of(entry, entry + entries, [&](const Entry& it) {
          return it.expert < args_.own_experts && it.order < most_order;
        });
    if (!is_sound)
      return leave_out({source, HEADRACE_MOE_ROWS, 0, std::uint64_t{args_.top_k()} + 1}, HEADRACE_MOE_CORRUPT,
                       entries);
    if (args_.layout == HEADRACE_MOE_BY_RANK) return place_record(source, slot, record, entries, entry);
    for (std::uint32_t i = 0; i < entries; ++i) {
      const std::uint64_t row =
          places_[source * std::size_t{args_.own_experts} + entry[i].expert] + entry[i].order;
      place(source, slot, record, row < args_.end_of_expert(entry[i].expert) ? row : no_row, entry[i].weight);
    }
  }
  void place_record(unsigned source, std::uint32_t slot, std::uint64_t record, std::uint32_t entries,
                    const Entry* entry) const {
    const std::uint64_t row = first_of_source_[source] + slot;
    place(source, slot, record, row < args_.output_rows ? row : no_row, 1);
    for (std::uint32_t k = 0; k < args_.top_k() && row < args_.output_rows; ++k) {
      const std::uint64_t at_entry = (row * args_.top_k() + k) * 4;
      if (launch_.out_experts != 0)
        *at<std::int32_t>(launch_.out_experts + at_entry) =
            k < entries ? static_cast<std::int32_t>(entry[k].expert) : -1;
      if (launch_.out_weights != 0)
        *at<float>(launch_.out_weights + at_entry) = k < entries ? entry[k].weight : 0;
    }
  }
  void place(unsigned source, std::uint32_t slot, std::uint64_t record, std::uint64_t row,
             float weight) const {
    auto& count = *at<std::uint32_t>(args_.placed_count_at(source, slot));
    at<Placed>(args_.placed_at(source, slot))[count++] = {static_cast<std::uint32_t>(row), weight};
    if (row == no_row) return;
    const auto& layout = args_.window.record;
    copy(launch_.out_rows + row * layout.row_bytes, record + layout.row_at(), layout.row_bytes);
    each_unit(launch_.out_columns, row, record,
              [&](std::uint64_t in_record, std::uint64_t unit, std::uint32_t bytes) {
                copy(unit, in_record, bytes);
              });
  }
  void zero_padding() const {
    if (args_.zero_padding == 0 || args_.layout != HEADRACE_MOE_BY_EXPERT) return;
    const auto& layout = args_.window.record;
    for (std::uint32_t expert = 0; expert < args_.own_experts; ++expert) {
      const std::uint64_t next = expert + 1 < args_.own_experts ? places_[expert + 1] : end_;
      for (std::uint64_t row = ends_[expert]; row < std::min(next, args_.output_rows); ++row) {
        std::memset(at<void>(launch_.out_rows + row * layout.row_bytes), 0, layout.row_bytes);
        each_unit(launch_.out_columns, row, 0, [&](std::uint64_t, std::uint64_t unit, std::uint32_t bytes) {
          std::memset(at<void>(unit), 0, bytes);
        });
      }
    }
  }

  const DispatchLaunch& launch_;
  std::uint64_t rooms_ = 0;
  std::vector<std::uint32_t> counts_, records_;  ///< of this source, for each expert, and for each rank
  std::vector<std::uint32_t> taken_;             ///< records of each source for this rank
  std::vector<std::uint64_t> first_of_source_, places_, ends_;
  std::uint64_t end_ = 0;
};

// ------------------------------------------------------------------ replicas

/// Places for the entries of a dispatch, one after another.
class ChooseTurn final : public Turn {
 public:
  ChooseTurn(const ChooseLaunch& args, const Memory& memory)
      : Turn(args.common, op_dispatch, memory), launch_(args), table_(args.replicas) {}

 private:
  Story run() override {
    orders_.assign(table_.experts, 0);
    loads_.assign(ranks(), 0);
    if (table_.loads != 0) std::copy_n(at<const std::int64_t>(table_.loads), ranks(), loads_.begin());
    const std::uint64_t entries = given_tokens(launch_.tokens, launch_.tokens_at) * args_.top_k();
    for (std::uint64_t entry = 0; entry < entries; ++entry)
      *at<std::int32_t>(args_.chosen_at() + entry * 4) = place_of(entry);
    co_return;
  }
  void end() override {}  // the dispatch behind it ends both
  [[nodiscard]] bool is_reachable() const override {
    return Turn::is_reachable() && memory_.reachable(table_.first, (table_.experts + std::uint64_t{1}) * 4) &&
           (launch_.tokens == 0 ||
            memory_.reachable(launch_.experts, launch_.tokens * args_.top_k() * launch_.experts_bytes));
  }

  /// -1: nowhere.
  [[nodiscard]] std::int32_t place_of(std::uint64_t entry) {
    const std::int64_t expert = number_at(launch_.experts, launch_.experts_bytes, entry);
    if (expert == -1) return -1;
    if (expert < 0 || expert >= table_.experts) return refuse(entry, HEADRACE_MOE_WRONG_EXPERT, expert);
    const auto* const first = at<const std::int32_t>(table_.first) + expert;
    const std::int64_t count = std::int64_t{first[1]} - first[0];
    if (first[0] < 0 || count < 1 || count > args_.experts)
      return refuse(entry, HEADRACE_MOE_WRONG_PLACE, expert);
    const std::span places(at<const std::int32_t>(table_.places) + first[0], static_cast<std::size_t>(count));
    const std::int32_t place = choose(static_cast<std::uint32_t>(expert), first[0], places);
    return is_place(place) ? place : refuse(entry, HEADRACE_MOE_WRONG_PLACE, expert);
  }
  std::int32_t refuse(std::uint64_t entry, std::uint64_t reason, std::int64_t expert) {
    report({args_.rank, 0, 0, entry}, reason, static_cast<std::uint64_t>(expert));
    return -1;
  }
  [[nodiscard]] std::int32_t choose(std::uint32_t expert, std::int32_t first,
                                    std::span<const std::int32_t> places) {
    if (table_.choice == HEADRACE_MOE_LEAST_LOADED) return least_loaded(places);
    const std::uint64_t order = orders_[expert]++;
    const auto count = static_cast<std::uint32_t>(places.size());
    std::uint32_t replica = headrace::moe::replica_in_turn(args_.rank / args_.group_size(), order, count);
    if (table_.choice == HEADRACE_MOE_BY_SHARE) {
      const std::uint64_t before = table_.before == 0 ? 0 : at<const std::uint64_t>(table_.before)[expert];
      replica = headrace::moe::replica_by_share(at<const std::int64_t>(table_.until) + first, count,
                                                before + order);
    }
    for (std::uint32_t i = 0; i < count && !takes_part(places[replica]); ++i) replica = (replica + 1) % count;
    return places[replica];
  }
  /// The first one of those that take part, else the first.
  [[nodiscard]] std::int32_t least_loaded(std::span<const std::int32_t> places) {
    std::int32_t best = -1;
    for (const std::int32_t place : places)
      if (takes_part(place) && (best == -1 || loads_[rank_of(place)] < loads_[rank_of(best)])) best = place;
    if (best == -1) best = places.front();
    if (is_place(best)) ++loads_[rank_of(best)];
    return best;
  }
  [[nodiscard]] bool is_place(std::int32_t place) const {
    return place >= 0 && static_cast<std::uint32_t>(place) < args_.experts;
  }
  [[nodiscard]] std::uint32_t rank_of(std::int32_t place) const {
    return args_.rank_of(static_cast<std::uint32_t>(place));
  }
  [[nodiscard]] bool takes_part(std::int32_t place) const {
    return is_place(place) && is_active(rank_of(place));
  }

  const ChooseLaunch& launch_;
  const headrace_moe_replicas_v1& table_;
  std::vector<std::uint64_t> orders_;  ///< entries of each expert so far
  std::vector<std::int64_t> loads_;
};

// ------------------------------------------------------------------ sums

/// A float of 16 bits, of so many bits of mantissa.
template <int Mantissa>
float wide(std::uint16_t stored) {
  constexpr int bias = (1 << (14 - Mantissa)) - 1;
  const std::uint32_t sign = std::uint32_t{stored} >> 15 << 31, magnitude = stored & 0x7fffu;
  const std::uint32_t shifted = magnitude << (23 - Mantissa);
  const float scale = std::bit_cast<float>(static_cast<std::uint32_t>(254 - bias) << 23);
  std::uint32_t bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted) * scale);
  if (magnitude >> Mantissa == (1u << (15 - Mantissa)) - 1) bits = shifted | 0x7f800000u;
  return std::bit_cast<float>(bits | sign);
}
/// Rounds to nearest, ties to even.
std::uint16_t bfloat_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
std::uint16_t half_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x47800000) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // not normal: the addition rounds
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000));
  }
  return static_cast<std::uint16_t>(sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13));
}

float element_of(std::int32_t dtype, std::uint64_t row, std::uint64_t i) {
  if (dtype == HEADRACE_FLOAT32) return at<const float>(row)[i];
  const std::uint16_t stored = at<const std::uint16_t>(row)[i];
  return dtype == HEADRACE_FLOAT16 ? wide<10>(stored) : std::bit_cast<float>(std::uint32_t{stored} << 16);
}
void store_element(std::int32_t dtype, std::uint64_t row, std::uint64_t i, float value) {
  if (dtype == HEADRACE_FLOAT32)
    at<float>(row)[i] = value;
  else
    at<std::uint16_t>(row)[i] = dtype == HEADRACE_FLOAT16 ? half_of(value) : bfloat_of(value);
}

struct Term {
  std::uint64_t row;
  float weight;
  bool is_blocks = false;  ///< it travelled as float8
};

class CombineTurn final : public Turn {
 public:
  CombineTurn(const CombineLaunch& args, const Memory& memory)
      : Turn(args.common, op_combine, memory), launch_(args) {}

 private:
  Story run() override {
    for (unsigned rank = 0; sends() && rank < ranks(); ++rank) {
      if (!is_active(rank)) continue;
      Wait room(*this, room_of(rank));
      while (room.goes_on()) co_yield Waits{};
      if (room.came()) rooms_ |= bit_of(rank);
    }
    for (unsigned source = 0; sends() && source < ranks(); ++source)
      (rooms_ & bit_of(source)) != 0 ? send_partials(source) : send_missing(source);
    const RouteLists lists = args_.lists();
    for (std::uint64_t token = 0; receives() && token < routing().tokens; ++token) {
      std::vector<Term> terms;
      std::uint64_t slot_at = lists.slots + token * args_.visits * 4;
      for (std::uint64_t rest = *at<std::uint64_t>(lists.ranks + token * 8); rest != 0;
           rest &= rest - 1, slot_at += 4) {
        const auto rank = static_cast<unsigned>(std::countr_zero(rest));
        if (!is_active(rank)) continue;
        const std::uint64_t slot =
            args_.window.group_slot(member_of_token(token), *at<std::uint32_t>(slot_at));
        const std::uint64_t flag = own(args_.window.partial_flag_at(receive_number_, rank, chunk_of(slot)));
        Wait partial(*this, {rank, HEADRACE_MOE_SUMS, flag, receive_number_});
        while (partial.goes_on()) co_yield Waits{};
        if (partial.came() && headrace::moe::has_come(acquire(flag), receive_number_))
          terms.push_back(
              {own(args_.window.partial_at(receive_number_, rank, slot)), 1, launch_.float8 != 0});
      }
      sum_token(token, terms);
    }
  }
  [[nodiscard]] bool is_reachable() const override {
    return Turn::is_reachable() &&
           (launch_.results == 0 || launch_.in_window != 0 || args_.all_rows() == 0 ||
            memory_.reachable(launch_.results,
                              (args_.all_rows() - 1) * launch_.result_stride + launch_.row_bytes));
  }
  void send_partials(unsigned source) const {
    const std::uint32_t records = routing().records[source];
    for (std::uint32_t slot = 0; slot < records; ++slot) {
      std::vector<Term> terms;
      const auto* const placed = at<const Placed>(args_.placed_at(source, slot));
      for (std::uint32_t i = 0; i < *at<std::uint32_t>(args_.placed_count_at(source, slot)); ++i)
        if (placed[i].row != no_row)
          terms.push_back({launch_.results + placed[i].row * launch_.result_stride,
                           launch_.weighted != 0 ? placed[i].weight : 1});
      const std::uint64_t group_slot = args_.window.group_slot(args_.member(source), slot);
      const std::vector<float> sums =
          launch_.in_window == 0 || terms.empty() ? sum(terms) : in_window(source, group_slot);
      const bool ends = slot + 1 == records || (slot + 1) % chunk_slots == 0;
      each_member(source, [&](unsigned member) {
        send_partial(sums, of(member, args_.window.partial_at(send_number_, args_.rank, group_slot)));
        if (ends) tell_chunk(member, chunk_of(group_slot), send_number_);
      });
    }
  }
  /// What an expert has written.
  [[nodiscard]] std::vector<float> in_window(unsigned source, std::uint64_t group_slot) const {
    return sum({{of(source, args_.window.partial_at(send_number_, args_.rank, group_slot)), 1}});
  }
  /// The other members of its group do not wait for partials of records that never came.
  void send_missing(unsigned source) const {
    const std::uint64_t first = chunk_of(args_.window.group_slot(args_.member(source), 0));
    each_member(source, [&](unsigned member) {
      for (std::uint64_t chunk = 0; chunk < headrace::moe::chunks_of(args_.window.slots); ++chunk)
        tell_chunk(member, first + chunk, send_number_ | headrace::moe::missing_bit);
    });
  }
  void tell_chunk(unsigned rank, std::uint64_t chunk, std::uint64_t value) const {
    release(of(rank, args_.window.partial_flag_at(send_number_, args_.rank, chunk)), value);
  }
  /// Calls each(rank) for the members of a rank's group that are there.
  template <class Each>
  void each_member(unsigned rank, const Each& each) const {
    const unsigned first = rank - args_.member(rank);
    for (unsigned member = first; member < first + args_.group_size(); ++member)
      if ((rooms_ & bit_of(member)) != 0) each(member);
  }
  [[nodiscard]] std::uint32_t member_of_token(std::uint64_t token) const {
    return headrace::moe::member_of_token(routing().tokens, args_.group_size(), token);
  }
  void send_partial(const std::vector<float>& sums, std::uint64_t to) const {
    launch_.float8 == 0 ? store(sums, to)
                        : store_as_blocks(sums, to, scales_of(to), HEADRACE_MOE_CAST_FLOAT32);
  }
  void sum_token(std::uint64_t token, std::vector<Term>& terms) const {
    const std::uint64_t to = launch_.sums + token * launch_.sum_stride;
    for (const std::uint64_t bias : launch_.biases)
      if (bias != 0) terms.push_back({bias + token * launch_.row_bytes, 1});
    if (launch_.accumulate != 0) terms.push_back({to, 1});
    store(sum(terms), to);
  }
  void store(const std::vector<float>& sums, std::uint64_t to) const {
    for (std::uint64_t i = 0; i < sums.size(); ++i) store_element(launch_.dtype, to, i, sums[i]);
  }
  /// It begins with its first term; each product is rounded, and each sum.
  [[nodiscard]] std::vector<float> sum(const std::vector<Term>& terms) const {
    std::vector<float> sums(elements());
    for (std::uint64_t i = 0; i < sums.size(); ++i)
      for (std::size_t t = 0; t < terms.size(); ++t) {
        const volatile float product = terms[t].weight * element(terms[t], i);
        sums[i] = t == 0 ? product : sums[i] + product;
      }
    return sums;
  }
  [[nodiscard]] std::uint64_t elements() const {
    return launch_.row_bytes / (launch_.dtype == HEADRACE_FLOAT32 ? 4 : 2);
  }
  [[nodiscard]] float element(const Term& term, std::uint64_t i) const {
    if (!term.is_blocks) return element_of(launch_.dtype, term.row, i);
    return headrace::moe::float_of_float8(at<const std::uint8_t>(term.row)[i]) *
           at<const float>(scales_of(term.row))[i / block_elements];
  }
  [[nodiscard]] std::uint64_t scales_of(std::uint64_t partial) const {
    return partial + headrace::moe::round_up(elements(), 16);
  }

  const CombineLaunch& launch_;
  std::uint64_t rooms_ = 0;
};

/// Where results go in windows, before a combine.
class WindowRowsTurn final : public Turn {
 public:
  WindowRowsTurn(const WindowRowsLaunch& args, const Memory& memory)
      : Turn(args.common, op_combine, memory), launch_(args) {}

 private:
  Story run() override {
    std::uint64_t first = 0;
    for (unsigned source = 0; source < ranks(); ++source) {
      const std::uint64_t records = routing().records[source];
      auto& rows = at<headrace_moe_window_rows_v1>(launch_.of_ranks)[source];
      rows = {};
      const std::uint64_t left = first < args_.output_rows ? args_.output_rows - first : 0;
      first += records;
      if (!is_active(source)) continue;
      Wait room(*this, room_of(source));
      while (room.goes_on()) co_yield Waits{};
      if (!room.came()) continue;
      const std::uint64_t slot = args_.window.group_slot(args_.member(source), 0);
      rows = {of(source, args_.window.partial_at(send_number_, args_.rank, slot)),
              static_cast<std::int64_t>(std::min(records, left))};
    }
  }
  [[nodiscard]] bool is_reachable() const override {
    return Turn::is_reachable() &&
           memory_.reachable(launch_.of_ranks, ranks() * sizeof(headrace_moe_window_rows_v1));
  }

  const WindowRowsLaunch& launch_;
};

/// A captured launch begins anew at each replay.
template <class Kind, class Args>
reference::Launch launch(const void* argument, const Memory& memory) {
  struct Running {
    const Memory memory;
    std::unique_ptr<Turn> turn;
  };
  return
      [args = static_cast<const Args*>(argument), running = std::make_shared<Running>(Running{memory, {}})] {
        if (running->turn == nullptr) running->turn = std::make_unique<Kind>(*args, running->memory);
        const Progress progress = running->turn->poll();
        if (progress != Progress::stays) running->turn.reset();
        return progress;
      };
}

constexpr reference::Kernel references[] = {
    {"headrace_moe_dispatch", sizeof(DispatchLaunch), launch<DispatchTurn, DispatchLaunch>},
    {"headrace_moe_combine", sizeof(CombineLaunch), launch<CombineTurn, CombineLaunch>},
    {"headrace_moe_combine_float8", sizeof(CombineLaunch), launch<CombineTurn, CombineLaunch>},
    {"headrace_moe_choose", sizeof(ChooseLaunch), launch<ChooseTurn, ChooseLaunch>},
    {"headrace_moe_window_rows", sizeof(WindowRowsLaunch), launch<WindowRowsTurn, WindowRowsLaunch>},
};

}  // namespace

constinit const reference::Family reference_family{HEADRACE_MOE_FAMILY, references};

}  // namespace headrace::kernels::moe
