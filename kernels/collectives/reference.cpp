// SPDX-License-Identifier: Apache-2.0
#include "kernels/collectives/reference.hpp"

#include "kernels/collectives/channel.cuh"
#include "kernels/collectives/copies.cuh"
#include "kernels/collectives/element.cuh"
#include "kernels/collectives/splits.cuh"
#include "kernels/common/story.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace headrace::kernels::collectives {
namespace {

using reference::Memory;
using reference::Progress;

std::uint64_t acquire(std::uint64_t address) {
  return __atomic_load_n(reference::at<std::uint64_t>(address), __ATOMIC_ACQUIRE);
}
void release(std::uint64_t address, std::uint64_t value) {
  __atomic_store_n(reference::at<std::uint64_t>(address), value, __ATOMIC_RELEASE);
}

/// A packet is two words here, the data before its number.
void store_packet(std::uint64_t address, Packet packet) {
  auto* const at = reference::at<Packet>(address);
  __atomic_store_n(&at->data, packet.data, __ATOMIC_RELAXED);
  __atomic_store_n(&at->epoch, packet.epoch, __ATOMIC_RELEASE);
}
Packet load_packet(std::uint64_t address) {
  auto* const at = reference::at<Packet>(address);
  Packet packet{};
  packet.epoch = __atomic_load_n(&at->epoch, __ATOMIC_ACQUIRE);
  packet.data = __atomic_load_n(&at->data, __ATOMIC_RELAXED);
  return packet;
}

/// `bytes` bytes of a part from `at` on, less behind its end; the rest of the unit is 0.
template <class Words>
Words read(const Part& part, std::uint64_t at) {
  Words words{};
  if (at < part.bytes)
    std::memcpy(&words, reference::at<void>(part.address + at), std::min(sizeof words, part.bytes - at));
  return words;
}
template <class Words>
void write(const Part& part, std::uint64_t at, const Words& words) {
  if (at < part.bytes)
    std::memcpy(reference::at<void>(part.address + at), &words, std::min(sizeof words, part.bytes - at));
}

/// One launch: its number, its waits, and its end.
class Turn {
 public:
  Turn(const Launch& args, const Memory& memory) : args_(args), memory_(memory) {}
  virtual ~Turn() = default;

  Progress poll() {
    if (epoch_ == 0) {
      if (!is_reachable()) return Progress::fault;
      begin();
    }
    bool any = false;
    for (Story& story : stories_) any = (failed() == 0 && story.go_on()) || any;
    if (any) return Progress::stays;
    const unsigned late = rank_that_has_not_begun();
    if (failed() == 0 && late != args_.shape.ranks && !gives_up(late)) return Progress::stays;
    if (ends_operation()) header().arrived += arrivals;
    return Progress::ended;
  }

 protected:
  virtual void begin_stories(std::vector<Story>& stories) = 0;
  // Where an operation is several launches: whether this is its first one, and its last one.
  [[nodiscard]] virtual bool begins_operation() const { return true; }
  [[nodiscard]] virtual bool ends_operation() const { return true; }

  [[nodiscard]] std::uint64_t box(unsigned rank) const { return args_.boxes[rank]; }
  [[nodiscard]] std::uint64_t own_box() const { return box(args_.rank); }
  [[nodiscard]] bool is_peer(unsigned rank) const { return rank != args_.rank; }

  /// Between two looks at a word that rank `peer` is to write. True: the launch ends early.
  [[nodiscard]] bool gives_up(unsigned peer) {
    std::uint64_t reason = 0;
    if (args_.timeout_ns != 0 && Clock::now() - began_ >= std::chrono::nanoseconds(args_.timeout_ns))
      reason = HEADRACE_COLLECTIVES_TIMED_OUT;
    if (args_.abort != 0 && acquire(args_.abort) != 0) reason = HEADRACE_COLLECTIVES_ABORTED;
    if (reason != 0) report(reason, peer, acquire(begun(args_.rank, peer)));
    return reason != 0;
  }
  void report(std::uint64_t reason, unsigned peer, std::uint64_t seen) {
    failed() = 1;
    auto& status = *reference::at<headrace_collectives_status_v1>(args_.status);
    status.rank = args_.number_of(args_.rank);
    status.peer = args_.number_of(peer);
    status.epoch = epoch_;
    status.seen = seen;
    release(args_.status, args_.named(reason));
  }
  [[nodiscard]] virtual bool is_reachable() const {
    const auto reaches = [&](const Part& part) {
      return part.bytes == 0 || memory_.reachable(part.address, part.bytes);
    };
    bool good = reaches(args_.result) &&
                memory_.reachable(args_.status, sizeof(headrace_collectives_status_v1)) &&
                (args_.abort == 0 || memory_.reachable(args_.abort, sizeof(std::uint64_t)));
    for (unsigned rank = 0; rank < args_.shape.ranks; ++rank)
      good = good && memory_.reachable(box(rank), args_.shape.bytes()) && reaches(args_.sends[rank]) &&
             reaches(args_.receives[rank]);
    return good;
  }

  const Launch& args_;
  const Memory& memory_;
  std::uint64_t epoch_ = 0;

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] Header& header() const { return *reference::at<Header>(own_box()); }
  [[nodiscard]] std::uint64_t& failed() const { return reference::at<Header>(args_.failed_box)->failed; }
  [[nodiscard]] std::uint64_t begun(unsigned in_box_of, unsigned rank) const {
    return box(in_box_of) + Header::begun_at + rank * sizeof(std::uint64_t);
  }

  void begin() {
    began_ = Clock::now();
    epoch_ = header().arrived / arrivals + 1;
    if (failed() != 0) return;
    if (begins_operation() && !begin_operation()) return;
    begin_stories(stories_);
  }
  /// False: another launch of this rank runs.
  [[nodiscard]] bool begin_operation() {
    const std::uint64_t before = std::exchange(header().begun[args_.rank], epoch_);
    if (before >= epoch_) {
      report(HEADRACE_COLLECTIVES_OVERLAPS, args_.rank, before);
      return false;
    }
    for (unsigned rank = 0; rank < args_.shape.ranks; ++rank)
      if (is_peer(rank)) release(begun(rank, args_.rank), epoch_);
    return true;
  }
  /// If all have, the number of ranks.
  [[nodiscard]] unsigned rank_that_has_not_begun() const {
    for (unsigned rank = 0; rank < args_.shape.ranks; ++rank)
      if (is_peer(rank) && acquire(begun(args_.rank, rank)) < epoch_) return rank;
    return args_.shape.ranks;
  }

  Clock::time_point began_;
  std::vector<Story> stories_;
};

/// Parts that travel as packets.
class PackedTurn : public Turn {
 public:
  using Turn::Turn;

 private:
  void begin_stories(std::vector<Story>& stories) override { stories.push_back(work()); }

  Story work() {
    for (unsigned to = 0; to < args_.shape.ranks; ++to)
      if (is_peer(to)) send(place(to, args_.rank), args_.sends[to]);
    for (unsigned from = 0; from < args_.shape.ranks; ++from)
      while (is_peer(from) && !has_come(place(args_.rank, from), parts_of(from))) {
        if (gives_up(from)) co_return;
        co_yield Waits{};
      }
    reduce();
    const std::uint64_t at = args_.shares != 0 ? args_.shape.results_at() : 0;
    for (unsigned to = 0; args_.shares != 0 && to < args_.shape.ranks; ++to)
      if (is_peer(to)) send(place(to, args_.rank) + at, args_.result);
    for (unsigned from = 0; args_.shares != 0 && from < args_.shape.ranks; ++from)
      while (is_peer(from) && !has_come(place(args_.rank, from) + at, args_.receives[from].bytes)) {
        if (gives_up(from)) co_return;
        co_yield Waits{};
      }
    for (unsigned from = 0; from < args_.shape.ranks; ++from)
      if (args_.shares == 0 || is_peer(from)) keep(from, at);
  }

  void send(std::uint64_t place, const Part& part) const {
    for (std::uint64_t at = 0; at < padded(part.bytes); at += packet_bytes)
      store_packet(place + at / packet_bytes * sizeof(Packet), {read<std::uint64_t>(part, at), epoch_});
  }
  [[nodiscard]] bool has_come(std::uint64_t place, std::uint64_t bytes) const {
    for (std::uint64_t at = 0; at < padded(bytes); at += packet_bytes)
      if (load_packet(place + at / packet_bytes * sizeof(Packet)).epoch != epoch_) return false;
    return true;
  }
  void reduce() const {
    for (std::uint64_t at = 0; at < args_.result.bytes; at += unit_bytes) {
      Unit units[most_ranks];
      for (unsigned from = 0; from < args_.shape.ranks; ++from)
        units[from] = is_peer(from) ? unit(place(args_.rank, from), at) : read<Unit>(args_.own, at);
      write(args_.result, at, reduced_units(args_.reduction, args_.shape.ranks, units));
    }
  }
  /// `offset`: of its packets among those of its rank.
  void keep(unsigned from, std::uint64_t offset) const {
    for (std::uint64_t at = 0; at < args_.receives[from].bytes; at += unit_bytes)
      write(args_.receives[from], at,
            is_peer(from) ? unit(place(args_.rank, from) + offset, at) : read<Unit>(args_.own, at));
  }

  /// Parts that are reduced travel in whole units.
  [[nodiscard]] std::uint64_t padded(std::uint64_t bytes) const {
    return (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
  }
  /// Bytes that rank `from` sends in the first step.
  [[nodiscard]] std::uint64_t parts_of(unsigned from) const {
    if (args_.shares != 0) return args_.result.bytes;
    return std::max(args_.receives[from].bytes, args_.result.bytes);
  }
  /// Where the packets of a rank begin.
  [[nodiscard]] std::uint64_t place(unsigned in_box_of, unsigned from) const {
    return box(in_box_of) + args_.shape.packets_of(from) +
           (epoch_ & 1) * args_.shape.ranks * args_.shape.bytes_of_packets();
  }
  [[nodiscard]] static Unit unit(std::uint64_t place, std::uint64_t at) {
    const std::uint64_t first = place + at / packet_bytes * sizeof(Packet);
    return {{load_packet(first).data, load_packet(first + sizeof(Packet)).data}};
  }
};

/// Parts that travel in chunks: a story for each block.
template <bool Reduces>
class ChunksTurn : public Turn {
 public:
  using Turn::Turn;

 protected:
  void begin_stories(std::vector<Story>& stories) override {
    for (unsigned block = 0; block < args_.blocks; ++block) stories.push_back(work(block));
  }

  /// A block's rounds, as the kernel has them.
  Story work(unsigned block) {
    const std::uint32_t count = args_.chunks_of(block), last = count + (args_.shares != 0 ? 2 : 1);
    for (std::uint32_t round = 0; count != 0 && round < last; ++round) {
      const auto chunk = [&](unsigned back) { return Chunk::of(args_, block, count, round, back); };
      const Chunk sent = chunk(0), taken = chunk(1), kept = chunk(2);
      while (!is_free(Way::parts, sent) || !has_come(Way::parts, taken) || !is_free(Way::results, taken) ||
             !has_come(Way::results, kept)) {
        if (gives_up(late_)) co_return;
        co_yield Waits{};
      }
      send(sent);
      if (Reduces)
        reduce(taken);
      else
        keep(Way::parts, taken);
      keep(Way::results, kept);
      tell_sent(Way::parts, sent);
      tell_taken(Way::parts, taken);
      tell_sent(Way::results, taken);
      tell_taken(Way::results, kept);
    }
  }

 private:
  [[nodiscard]] std::uint64_t slot(unsigned in_box_of, Way way, unsigned from, const Chunk& chunk) const {
    return box(in_box_of) + args_.shape.chunk(way, from, chunk.slot);
  }
  [[nodiscard]] std::uint64_t& sent_word(Way way, unsigned to, const Chunk& chunk) const {
    return *reference::at<std::uint64_t>(own_box() + args_.shape.sent(way, to, chunk.slot));
  }
  [[nodiscard]] std::uint64_t key(const Chunk& chunk) const { return chunk_key(epoch_, chunk.number); }
  /// The part of which this rank gives that one a chunk, or gets one.
  [[nodiscard]] bool goes_to(Way way, unsigned to, const Chunk& chunk) const {
    if (way == Way::results && args_.shares == 0) return false;
    return is_peer(to) && chunk.bytes_of(way == Way::parts ? args_.sends[to] : args_.result) != 0;
  }
  [[nodiscard]] bool comes_from(Way way, unsigned from, const Chunk& chunk) const {
    if (way == Way::results && args_.shares == 0) return false;
    const bool is_reduced = Reduces && way == Way::parts;
    return is_peer(from) && chunk.bytes_of(is_reduced ? args_.result : args_.receives[from]) != 0;
  }

  [[nodiscard]] bool is_free(Way way, const Chunk& chunk) {
    for (unsigned to = 0; to < args_.shape.ranks; ++to) {
      late_ = to;
      const std::uint64_t taken = own_box() + args_.shape.taken(way, to, chunk.slot);
      if (goes_to(way, to, chunk) && acquire(taken) != sent_word(way, to, chunk)) return false;
    }
    return true;
  }
  [[nodiscard]] bool has_come(Way way, const Chunk& chunk) {
    for (unsigned from = 0; from < args_.shape.ranks; ++from) {
      late_ = from;
      const std::uint64_t came = own_box() + args_.shape.came(way, from, chunk.slot);
      if (comes_from(way, from, chunk) && acquire(came) != key(chunk)) return false;
    }
    return true;
  }
  void tell_sent(Way way, const Chunk& chunk) {
    for (unsigned to = 0; to < args_.shape.ranks; ++to) {
      if (!goes_to(way, to, chunk)) continue;
      sent_word(way, to, chunk) = key(chunk);
      release(box(to) + args_.shape.came(way, args_.rank, chunk.slot), key(chunk));
    }
  }
  void tell_taken(Way way, const Chunk& chunk) {
    for (unsigned from = 0; from < args_.shape.ranks; ++from)
      if (comes_from(way, from, chunk))
        release(box(from) + args_.shape.taken(way, args_.rank, chunk.slot), key(chunk));
  }

  void send(const Chunk& chunk) {
    for (unsigned to = 0; to < args_.shape.ranks; ++to)
      if (goes_to(Way::parts, to, chunk))
        copy(slot(to, Way::parts, args_.rank, chunk), args_.sends[to].address + chunk.begin,
             chunk.bytes_of(args_.sends[to]));
  }
  void reduce(const Chunk& chunk) {
    const unsigned bytes = chunk.bytes_of(args_.result);
    const Part own{args_.own.address + chunk.begin, bytes};
    for (unsigned unit = 0; unit < bytes; unit += unit_bytes) {
      Unit units[most_ranks];
      for (unsigned from = 0; from < args_.shape.ranks; ++from)
        units[from] =
            read<Unit>(is_peer(from) ? Part{slot(args_.rank, Way::parts, from, chunk), bytes} : own, unit);
      const Unit sum = reduced_units(args_.reduction, args_.shape.ranks, units);
      write(Part{args_.result.address + chunk.begin, bytes}, unit, sum);
      for (unsigned to = 0; to < args_.shape.ranks; ++to)
        if (goes_to(Way::results, to, chunk))
          write(Part{slot(to, Way::results, args_.rank, chunk), bytes}, unit, sum);
    }
  }
  /// What has come goes to `receives`; of parts, this rank's own as well.
  void keep(Way way, const Chunk& chunk) {
    for (unsigned from = 0; from < args_.shape.ranks; ++from)
      if (comes_from(way, from, chunk))
        copy(args_.receives[from].address + chunk.begin, slot(args_.rank, way, from, chunk),
             chunk.bytes_of(args_.receives[from]));
    const std::uint64_t target = args_.receives[args_.rank].address;
    if (way == Way::parts && target != args_.own.address)
      copy(target + chunk.begin, args_.own.address + chunk.begin, chunk.bytes_of(args_.own));
  }
  void copy(std::uint64_t target, std::uint64_t source, unsigned bytes) const {
    if (bytes != 0) memory_.copy(reference::at<void>(target), reference::at<const void>(source), bytes);
  }

  unsigned late_ = 0;  // the rank whose word was looked at last
};

/// Splits that lie in memory: they are read, and the parts cut, when the operation begins.
class SplitTurn : private SplitLaunch, public ChunksTurn<false> {
 public:
  SplitTurn(const SplitLaunch& args, const Memory& memory)
      : SplitLaunch(args), ChunksTurn<false>(static_cast<const SplitLaunch&>(*this).launch, memory) {}

 private:
  void begin_stories(std::vector<Story>& stories) override {
    const WrongSplit wrong = place_parts(splits, reference::at<const std::int64_t>(splits.gives),
                                         reference::at<const std::int64_t>(splits.gets), launch);
    if (wrong.reason != 0) return report(wrong.reason, wrong.rank, wrong.value);
    ChunksTurn<false>::begin_stories(stories);
  }
  [[nodiscard]] bool is_reachable() const override {
    const std::uint64_t bytes = launch.shape.ranks * sizeof(std::int64_t);
    const auto reaches = [&](const Part& part) {
      return part.bytes == 0 || memory_.reachable(part.address, part.bytes);
    };
    return ChunksTurn<false>::is_reachable() && reaches(splits.input) && reaches(splits.output) &&
           memory_.reachable(splits.gives, bytes) && memory_.reachable(splits.gets, bytes);
  }
};

/// One step between copies.
class StepTurn : public Turn {
 public:
  StepTurn(const StepLaunch& step, const Memory& memory) : Turn(step.launch, memory), step_(step) {}

 private:
  [[nodiscard]] bool begins_operation() const override { return step_.step == 0; }
  [[nodiscard]] bool ends_operation() const override { return step_.is_last(); }
  void begin_stories(std::vector<Story>& stories) override { stories.push_back(work()); }

  Story work() {
    const Chunk sent = step_.sent(), kept = step_.kept();
    for (unsigned rank = 0; rank < args_.shape.ranks; ++rank)
      if (is_peer(rank)) tell(rank, sent, kept);
    for (unsigned rank = 0; rank < args_.shape.ranks; ++rank)
      while (is_peer(rank) && !is_there(rank, sent, kept)) {
        if (gives_up(rank)) co_return;
        co_yield Waits{};
      }
  }
  void tell(unsigned rank, const Chunk& sent, const Chunk& kept) const {
    if (sent.bytes_of(args_.sends[rank]) != 0) {
      *reference::at<std::uint64_t>(own_box() + args_.shape.sent(half_of(sent), rank, 0)) = key(sent);
      release(box(rank) + args_.shape.came(half_of(sent), args_.rank, 0), key(sent));
    }
    if (kept.bytes_of(args_.receives[rank]) != 0)
      release(box(rank) + args_.shape.taken(half_of(kept), args_.rank, 0), key(kept));
  }
  [[nodiscard]] bool is_there(unsigned rank, const Chunk& sent, const Chunk& kept) const {
    const std::uint64_t came = own_box() + args_.shape.came(half_of(sent), rank, 0),
                        taken = own_box() + args_.shape.taken(half_of(kept), rank, 0);
    return (sent.bytes_of(args_.receives[rank]) == 0 || acquire(came) == key(sent)) &&
           (kept.bytes_of(args_.sends[rank]) == 0 || acquire(taken) == key(kept));
  }
  [[nodiscard]] std::uint64_t key(const Chunk& chunk) const { return chunk_key(epoch_, chunk.number); }

  const StepLaunch& step_;
};

/// Parts that go directly if all ranks can, else in chunks: a story for each block.
template <bool Reduces>
class DirectTurn : public ChunksTurn<Reduces> {
 public:
  using ChunksTurn<Reduces>::ChunksTurn;

 private:
  using Base = ChunksTurn<Reduces>;
  using Base::args_, Base::box, Base::epoch_, Base::gives_up, Base::is_peer, Base::own_box;

  void begin_stories(std::vector<Story>& stories) override {
    for (unsigned rank = 0; rank < ranks(); ++rank) {
      if (!is_peer(rank)) continue;
      const std::uint64_t at = places(rank, args_.rank);
      store_packet(at, {args_.send_at[rank], epoch_});
      store_packet(at + sizeof(Packet), {args_.receive_at[rank], epoch_});
    }
    for (unsigned block = 0; block < args_.blocks; ++block) stories.push_back(direct(block));
  }

  Story direct(unsigned block) {
    for (unsigned late = rank_that_has_not_told(); late != ranks(); late = rank_that_has_not_told()) {
      if (gives_up(late)) co_return take_places_back();
      co_yield Waits{};
    }
    if (!reaches_all()) {
      for (Story chunks = this->work(block); chunks.go_on();) co_yield Waits{};
      co_return;
    }
    move(block);
    const std::uint64_t key = chunk_key(epoch_, 0);
    for (unsigned rank = 0; rank < ranks(); ++rank)
      if (is_peer(rank)) release(box(rank) + args_.shape.came(Way::results, args_.rank, block), key);
    for (unsigned rank = 0; rank < ranks(); ++rank)
      while (is_peer(rank) && acquire(own_box() + args_.shape.came(Way::results, rank, block)) != key) {
        if (gives_up(rank)) co_return take_places_back();
        co_yield Waits{};
      }
  }

  void take_places_back() const {
    for (unsigned rank = 0; rank < ranks(); ++rank) {
      if (!is_peer(rank)) continue;
      store_packet(places(rank, args_.rank), {});
      store_packet(places(rank, args_.rank) + sizeof(Packet), {});
    }
  }
  /// If all have, the number of ranks.
  [[nodiscard]] unsigned rank_that_has_not_told() const {
    for (unsigned rank = 0; rank < ranks(); ++rank)
      if (is_peer(rank) &&
          !(has_told(places(args_.rank, rank)) && has_told(places(args_.rank, rank) + sizeof(Packet))))
        return rank;
    return ranks();
  }
  [[nodiscard]] unsigned ranks() const { return args_.shape.ranks; }
  [[nodiscard]] std::uint64_t places(unsigned in_box_of, unsigned of) const {
    return box(in_box_of) + Header::places_at + ((epoch_ & 1) * most_ranks + of) * sizeof(Places);
  }
  [[nodiscard]] bool has_told(std::uint64_t at) const { return load_packet(at).epoch == epoch_; }
  [[nodiscard]] std::uint64_t send_of(unsigned rank) const {
    if (!is_peer(rank)) return args_.send_at[rank] != 0 ? args_.own.address | 1 : 0;
    return load_packet(places(args_.rank, rank)).data;
  }
  [[nodiscard]] std::uint64_t receive_of(unsigned rank) const {
    if (!is_peer(rank)) return args_.receive_at[rank] != 0 ? args_.receives[rank].address | 1 : 0;
    return load_packet(places(args_.rank, rank) + sizeof(Packet)).data;
  }
  [[nodiscard]] bool reaches_all() const {
    for (unsigned rank = 0; rank < ranks(); ++rank)
      if (send_of(rank) == 0 || receive_of(rank) == 0) return false;
    return true;
  }
  /// The place behind an address with bit 0.
  static Part part(std::uint64_t place, std::uint64_t bytes) { return {place & ~std::uint64_t{1}, bytes}; }

  void move(unsigned block) const {
    const std::uint64_t step = std::uint64_t{args_.blocks} * unit_bytes;
    if (Reduces) {
      for (std::uint64_t at = block * unit_bytes; at < args_.result.bytes; at += step) reduce(at);
      return;
    }
    for (unsigned to = 0; to < ranks(); ++to)
      for (std::uint64_t at = block * unit_bytes; at < args_.sends[to].bytes; at += step)
        write(part(receive_of(to), args_.sends[to].bytes), at, read<Unit>(args_.sends[to], at));
  }
  void reduce(std::uint64_t at) const {
    Unit units[most_ranks];
    for (unsigned from = 0; from < ranks(); ++from)
      units[from] = read<Unit>(part(send_of(from), args_.result.bytes), at);
    const Unit sum = reduced_units(args_.reduction, ranks(), units);
    write(args_.result, at, sum);
    for (unsigned to = 0; args_.shares != 0 && to < ranks(); ++to)
      write(part(receive_of(to), args_.result.bytes), at, sum);
  }
};

/// One message: a story for each block.
class MessageTurn : public ChunksTurn<false> {
 public:
  using ChunksTurn<false>::ChunksTurn;

 private:
  void begin_stories(std::vector<Story>& stories) override {
    store_packet(length_place(box(other()), epoch_, args_.rank), {bytes_of_message(args_), epoch_});
    for (unsigned block = 0; block < args_.blocks; ++block) stories.push_back(message(block));
  }
  Story message(unsigned block) {
    for (const bool ahead : {false, true}) {
      if (ahead)
        for (Story chunks = work(block); chunks.go_on();) co_yield Waits{};
      if (ahead != sends_ahead(args_)) continue;
      while (!has_told()) {
        if (gives_up(other())) co_return;
        co_yield Waits{};
      }
      if (!is_as_long()) co_return;
    }
  }
  [[nodiscard]] bool has_told() const { return load_packet(place()).epoch == epoch_; }
  [[nodiscard]] bool is_as_long() {
    const std::uint64_t theirs = load_packet(place()).data;
    if (theirs == bytes_of_message(args_)) return true;
    report(HEADRACE_COLLECTIVES_WRONG_LENGTH, other(), theirs);
    return false;
  }
  [[nodiscard]] std::uint64_t place() const { return length_place(own_box(), epoch_, other()); }
  [[nodiscard]] unsigned other() const { return 1 - args_.rank; }
};

/// The messages of one channel, one after the other.
class ChannelTurns {
 public:
  ChannelTurns(const MessagesLaunch& args, unsigned channel, const Memory& memory)
      : args_(args), channel_(channel), memory_(memory) {}

  Progress poll() {
    while (next_ != args_.channels[channel_].message_count) {
      if (!turn_) {
        launch_ = {};
        make_launch(args_, channel_, next_, launch_);
        turn_.emplace(launch_, memory_);
      }
      if (const Progress progress = turn_->poll(); progress != Progress::ended) return progress;
      turn_.reset();
      ++next_;
    }
    return Progress::ended;
  }

 private:
  const MessagesLaunch& args_;
  const unsigned channel_;
  const Memory& memory_;
  Launch launch_{};
  std::optional<MessageTurn> turn_;
  unsigned next_ = 0;
};

/// The messages of one launch.
class Messages {
 public:
  Messages(const MessagesLaunch& args, const Memory& memory) {
    for (unsigned i = 0; i < args.channel_count; ++i)
      channels_.push_back(std::make_unique<ChannelTurns>(args, i, memory));
  }
  Progress poll() {
    Progress all = Progress::ended;
    for (const auto& channel : channels_) {
      const Progress progress = channel->poll();
      if (progress == Progress::fault) return progress;
      if (progress == Progress::stays) all = progress;
    }
    return all;
  }

 private:
  std::vector<std::unique_ptr<ChannelTurns>> channels_;
};

/// A captured launch begins anew at each replay.
template <class Kind, class Args = Launch>
reference::Launch launch(const void* argument, const Memory& memory) {
  struct State {
    const Memory memory;
    std::unique_ptr<Kind> turn;
  };
  return [args = static_cast<const Args*>(argument), state = std::make_shared<State>(State{memory, {}})] {
    if (state->turn == nullptr) state->turn = std::make_unique<Kind>(*args, state->memory);
    const Progress progress = state->turn->poll();
    if (progress != Progress::stays) state->turn.reset();
    return progress;
  };
}

constexpr reference::Kernel references[] = {
    {"headrace_exchange_packed", sizeof(Launch), launch<PackedTurn>},
    {"headrace_sum_packed_float32", sizeof(Launch), launch<PackedTurn>},
    {"headrace_sum_packed_bfloat16", sizeof(Launch), launch<PackedTurn>},
    {"headrace_reduce_packed_any", sizeof(Launch), launch<PackedTurn>},
    {"headrace_all_reduce_packed_float32", sizeof(Launch), launch<PackedTurn>},
    {"headrace_all_reduce_packed_bfloat16", sizeof(Launch), launch<PackedTurn>},
    {"headrace_all_reduce_packed_any", sizeof(Launch), launch<PackedTurn>},
    {"headrace_sum_dense_float32", sizeof(Launch), launch<PackedTurn>},
    {"headrace_sum_dense_bfloat16", sizeof(Launch), launch<PackedTurn>},
    {"headrace_all_reduce_dense_float32", sizeof(Launch), launch<PackedTurn>},
    {"headrace_all_reduce_dense_bfloat16", sizeof(Launch), launch<PackedTurn>},
    {"headrace_exchange_chunks", sizeof(Launch), launch<ChunksTurn<false>>},
    {"headrace_exchange_split", sizeof(SplitLaunch), launch<SplitTurn, SplitLaunch>},
    {"headrace_exchange_step", sizeof(StepLaunch), launch<StepTurn, StepLaunch>},
    {"headrace_exchange_messages", sizeof(MessagesLaunch), launch<Messages, MessagesLaunch>},
    {"headrace_exchange_direct", sizeof(Launch), launch<DirectTurn<false>>},
    {"headrace_sum_direct_float32", sizeof(Launch), launch<DirectTurn<true>>},
    {"headrace_sum_direct_bfloat16", sizeof(Launch), launch<DirectTurn<true>>},
    {"headrace_reduce_direct_any", sizeof(Launch), launch<DirectTurn<true>>},
    {"headrace_sum_chunks_float32", sizeof(Launch), launch<ChunksTurn<true>>},
    {"headrace_sum_chunks_bfloat16", sizeof(Launch), launch<ChunksTurn<true>>},
    {"headrace_reduce_chunks_any", sizeof(Launch), launch<ChunksTurn<true>>},
};

}  // namespace

constinit const reference::Family reference_family{HEADRACE_COLLECTIVES_FAMILY, references};

}  // namespace headrace::kernels::collectives
