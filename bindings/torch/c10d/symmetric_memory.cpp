// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/c10d/symmetric_memory.hpp"

#include "bindings/torch/c10d/errors.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

namespace headrace::torch_group {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t most_metadata_bytes = 1 << 20;  // of one region and how to reach its agent

/// What a rank tells the others of its memory.
struct Card {
  std::uint64_t buffer_bytes, pad_bytes, region, metadata_bytes;
};

/// Whether a rank has mapped the others, and why not.
struct Outcome {
  std::int32_t code;
  std::array<char, 508> text;
};

template <class T>
std::vector<T> of_all_ranks(Comm& comm, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(comm.size()));
  const Elements bytes(all.data(), all.size() * sizeof(T), DType::uint8);
  take(comm.all_gather_single(bytes, ConstElements(&mine, sizeof(T), DType::uint8)));
  return all;
}

std::vector<std::string> texts_of_all_ranks(Comm& comm, const std::string& mine,
                                            const std::vector<Card>& cards) {
  std::vector<std::string> all;
  std::vector<Elements> bytes;
  for (const Card& card : cards) all.emplace_back(card.metadata_bytes, '\0');
  for (std::string& text : all) bytes.emplace_back(text.data(), text.size(), DType::uint8);
  take(comm.all_gather_v(bytes, ConstElements(mine.data(), mine.size(), DType::uint8)));
  return all;
}

/// Every rank finds the same.
void check_cards(const std::vector<Card>& cards) {
  const auto refuse = [](const std::string& text) {
    throw CommError(Error{Code::invalid_argument, "rendezvous: " + text});
  };
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const Card &card = cards[rank], &first = cards[0];
    if (card.buffer_bytes != first.buffer_bytes)
      refuse(c10::str("rank ", rank, " gives memory of ", card.buffer_bytes, " bytes, rank 0 of ",
                      first.buffer_bytes, ": all ranks give tensors of the same size"));
    if (card.pad_bytes != first.pad_bytes)
      refuse(c10::str("rank ", rank, " has signal pads of ", card.pad_bytes, " bytes, rank 0 of ",
                      first.pad_bytes, ": call set_signal_pad_size alike on all ranks"));
    if (card.metadata_bytes > most_metadata_bytes)
      refuse(c10::str("rank ", rank, " announces ", card.metadata_bytes, " bytes of metadata, of ",
                      most_metadata_bytes, " at most"));
  }
}

Outcome outcome_of(const std::optional<Error>& error) {
  Outcome outcome{};
  if (!error) return outcome;
  outcome.code = static_cast<std::int32_t>(error->code);
  error->message.copy(outcome.text.data(), outcome.text.size() - 1);
  return outcome;
}

/// The first rank that failed ends it on all.
void check_outcomes(const std::vector<Outcome>& outcomes, int my_rank, const std::optional<Error>& mine) {
  if (mine) throw CommError(*mine);
  for (int rank = 0; rank < static_cast<int>(outcomes.size()); ++rank) {
    Outcome outcome = outcomes[static_cast<std::size_t>(rank)];
    if (rank == my_rank || outcome.code == static_cast<std::int32_t>(Code::ok)) continue;
    outcome.text.back() = '\0';
    throw CommError(
        Error{static_cast<Code>(outcome.code), c10::str("rank ", rank, ": ", outcome.text.data())});
  }
}

template <class T>
T take_mapped(int rank, Result<T> mapped) {
  if (mapped) return std::move(mapped).value();
  throw CommError(std::move(mapped).error().within(
      c10::str("the memory of rank ", rank,
               " cannot be mapped, and symmetric tensors are for ranks of one host that map each other's")));
}

std::optional<milliseconds> limit_of(std::size_t timeout_ms) {
  if (timeout_ms == 0) return std::nullopt;
  return milliseconds(static_cast<std::int64_t>(std::min<std::size_t>(timeout_ms, 1ULL << 40)));
}

}  // namespace

// ------------------------------------------------------------------ the rendezvous

c10::intrusive_ptr<SymmetricMemory> SymmetricMemory::meet(std::shared_ptr<Comm> comm, Agent& agent,
                                                          const Region& own) {
  ExportOptions options;
  options.regions = {own.id};
  const std::string metadata = take(agent.export_metadata(options));
  const std::size_t pad_bytes = c10d::symmetric_memory::get_signal_pad_size();
  const auto cards = of_all_ranks(*comm, Card{own.length_bytes, pad_bytes, own.id.value, metadata.size()});
  check_cards(cards);
  const auto texts = texts_of_all_ranks(*comm, metadata, cards);
  Window window = take(comm->new_window());
  take(window.allocate(pad_bytes / sizeof(std::uint32_t), DType::uint32));
  auto memory = c10::intrusive_ptr<SymmetricMemory>::unsafe_steal_from_new(
      new SymmetricMemory(std::move(comm), std::move(window), own));
  std::vector<RegionId> regions;
  for (const Card& card : cards) regions.push_back(RegionId{static_cast<std::uint32_t>(card.region)});
  std::optional<Error> failed;
  try {
    memory->map(agent, texts, regions);
  } catch (const CommError& error) {
    failed = error.error();
  }
  check_outcomes(of_all_ranks(*memory->comm_, outcome_of(failed)), memory->rank_, failed);
  return memory;
}

SymmetricMemory::SymmetricMemory(std::shared_ptr<Comm> comm, Window window, const Region& own)
    : comm_(std::move(comm)),
      rank_(comm_->rank()),
      size_(comm_->size()),
      ranks_(comm_->ranks()),
      buffer_bytes_(own.length_bytes),
      pad_bytes_(take(window.tensor()).bytes()),
      window_(std::move(window)),
      buffers_(static_cast<std::size_t>(size_)) {
  buffers_[static_cast<std::size_t>(rank_)] = reinterpret_cast<void*>(own.address);
}

void SymmetricMemory::map(Agent& agent, const std::vector<std::string>& metadata,
                          const std::vector<RegionId>& regions) {
  for (int rank = 0; rank < size_; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (rank != rank_) map_buffer(agent, rank, metadata[index], regions[index]);
    mapped_pads_.push_back(take_mapped(rank, window_.map_remote_tensor(rank)));
    pads_.push_back(mapped_pads_.back().elements.data);
  }
}

void SymmetricMemory::map_buffer(Agent& agent, int rank, const std::string& metadata, RegionId region) {
  const ImportReport peer = take(agent.import_metadata(metadata));
  Mapping mapping = take_mapped(rank, agent.map(peer.peer, region));
  buffers_[static_cast<std::size_t>(rank)] = mapping.bytes().data();
  mappings_.push_back(std::move(mapping));
}

// ------------------------------------------------------------------ signals

void SymmetricMemory::put_signal(int dst_rank, int channel, size_t timeout_ms) {
  const WithoutGil without;
  const Wait wait{"put_signal", dst_rank, channel, limit_of(timeout_ms), Clock::now()};
  check(wait);
  put(wait);
}

void SymmetricMemory::wait_signal(int src_rank, int channel, size_t timeout_ms) {
  const WithoutGil without;
  const Wait wait{"wait_signal", src_rank, channel, limit_of(timeout_ms), Clock::now()};
  check(wait);
  take_signal(wait);
}

void SymmetricMemory::barrier(int channel, size_t timeout_ms) {
  const WithoutGil without;
  Wait wait{"barrier", rank_, channel, limit_of(timeout_ms), Clock::now()};
  check(wait);
  for (wait.peer = 0; wait.peer < size_; ++wait.peer)
    if (wait.peer != rank_) put(wait);
  for (wait.peer = 0; wait.peer < size_; ++wait.peer)
    if (wait.peer != rank_) take_signal(wait);
}

void SymmetricMemory::put(const Wait& wait) {
  turn(word(wait.peer, wait.channel, rank_), 0, 1, wait, "has not waited for the signal before");
  take(window_.signal(wait.peer));
}

void SymmetricMemory::take_signal(const Wait& wait) {
  turn(word(rank_, wait.channel, wait.peer), 1, 0, wait, "has sent no signal");
  // The peer may have left since it sent the signal: then nothing of it waits for this.
  static_cast<void>(window_.signal(wait.peer));
}

void SymmetricMemory::turn(std::uint32_t& word, std::uint32_t from, std::uint32_t to, const Wait& wait,
                           const char* late) {
  const std::atomic_ref<std::uint32_t> shared(word);
  // Read before the word: what changes it later changes the count, too.
  std::uint64_t announced = take(window_.wait_signal(wait.peer, {Comparison::ge, 0}));
  while (true) {
    std::uint32_t seen = from;
    // Release: what this rank wrote before. Acquire: what the other rank wrote before its change.
    if (shared.compare_exchange_strong(seen, to, std::memory_order_acq_rel)) return;
    auto next = window_.wait_signal(wait.peer, {Comparison::ne, announced}, time_left(wait));
    if (!next && next.code() == Code::timed_out) throw CommError(late_error(wait, late));
    announced = take(std::move(next));
  }
}

Error SymmetricMemory::late_error(const Wait& wait, const char* late) const {
  const Timeout timeout = wait.timeout ? Timeout(*wait.timeout) : comm_->options().timeout;
  const auto ms = std::chrono::duration_cast<milliseconds>(timeout.value_or(std::chrono::nanoseconds(0)));
  return described(wait, Code::timed_out,
                   c10::str("rank ", wait.peer, " ", late, " within ", ms.count(), " ms"));
}

Timeout SymmetricMemory::time_left(const Wait& wait) const {
  if (!wait.timeout) return {};
  const auto left = wait.since + *wait.timeout - Clock::now();
  return std::max<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(0));
}

void SymmetricMemory::check(const Wait& wait) const {
  const auto refuse = [&](const std::string& text) {
    throw CommError(described(wait, Code::invalid_argument, text));
  };
  if (wait.peer < 0 || wait.peer >= size_)
    refuse(c10::str("there is no rank ", wait.peer, "; there are ", size_, " ranks, from 0"));
  const auto channels = pad_bytes_ / sizeof(std::uint32_t) / static_cast<std::size_t>(size_);
  if (wait.channel < 0 || static_cast<std::size_t>(wait.channel) >= channels)
    refuse(c10::str("there is no channel ", wait.channel, "; signal pads of ", pad_bytes_, " bytes have ",
                    channels, " for ", size_, " ranks, from 0: call set_signal_pad_size before rendezvous"));
}

Error SymmetricMemory::described(const Wait& wait, Code code, const std::string& text) const {
  return Error{code, c10::str("rank ", rank_, ", ", wait.operation, " on channel ", wait.channel,
                              " of symmetric memory of \"", comm_->name(), "\": ", text)};
}

std::uint32_t& SymmetricMemory::word(int owner, int channel, int rank) const {
  auto* const words = static_cast<std::uint32_t*>(pads_[static_cast<std::size_t>(owner)]);
  return words[channel * size_ + rank];
}

}  // namespace headrace::torch_group
