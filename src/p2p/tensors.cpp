// SPDX-License-Identifier: Apache-2.0
#include "p2p/tensors.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <tuple>

namespace headrace::p2p {
namespace {

using namespace std::chrono_literals;

constexpr auto between_sights = 10ms;
constexpr auto between_tries = 1ms;  // where a rank takes no message yet
constexpr auto longest_undo = 2s;    // until others have dropped a tensor that could not be registered

template <class T>
Result<std::string> encoded(const Result<T>& made) {
  if (!made) return made.error();
  return made->encode();
}

}  // namespace

Result<std::uint64_t> Tensors::add(Neighbours* neighbours, std::uint64_t address, std::uint64_t bytes,
                                   const Deadline& deadline) {
  HEADRACE_TRY(tensor, share(neighbours, address, bytes, deadline));
  memories_.push_back(tensor.memory);
  tensors_.push_back(std::move(tensor));
  return tensors_.back().number;
}

Result<void> Tensors::remove(Neighbours* neighbours, std::uint64_t number, const Deadline& deadline) {
  const auto at = std::ranges::find(tensors_, number, &Shared::number);
  if (at == tensors_.end()) return make_error(Code::not_found, "no tensor has number {}", number);
  memories_.erase(memories_.begin() + (at - tensors_.begin()));
  Shared tensor = std::move(*at);
  tensors_.erase(at);
  Result<std::string> mine = std::string();
  if (auto withdrawn = withdraw(neighbours, std::move(tensor), deadline); !withdrawn)
    mine = std::move(withdrawn).error();
  // A rank that goes on may run kernels that wait for the others, and drivers do not unmap beside them.
  if (auto all = exchange(neighbours, mine, deadline); !all) return std::move(all).error();
  return {};
}

Result<Shared> Tensors::share(Neighbours* neighbours, std::uint64_t address, std::uint64_t bytes,
                              const Deadline& deadline) {
  Shared tensor;
  tensor.number = ++count_;
  tensor.memory.address = address;
  tensor.memory.bytes = bytes;
  tensor.places.resize(static_cast<std::size_t>(size_));
  tensor.places[static_cast<std::size_t>(rank_)] = bytes != 0 ? address : 0;
  forget_before(tensor.number);
  if (neighbours == nullptr) return tensor;
  if (auto shared = share_with_all(*neighbours, tensor, deadline); !shared) {
    static_cast<void>(withdraw(neighbours, std::move(tensor), Deadline::after(longest_undo)));
    return std::move(shared).error();
  }
  return tensor;
}

Result<void> Tensors::withdraw(Neighbours* neighbours, Shared shared, const Deadline& deadline) {
  shared.mappings.clear();
  if (neighbours == nullptr || !shared.region) return {};
  return neighbours->withdraw(*shared.region, deadline);
}

Result<void> Tensors::share_with_all(Neighbours& neighbours, Shared& tensor, const Deadline& deadline) {
  const auto card = offer(neighbours, tensor);
  HEADRACE_TRY(cards,
               exchange(neighbours, Saying::Kind::tensor_offered, tensor.number, encoded(card), deadline));
  const auto mine = map_all(neighbours, tensor, cards, deadline);
  HEADRACE_TRY(places,
               exchange(neighbours, Saying::Kind::tensor_mapped, tensor.number, encoded(mine), deadline));
  for (int rank = 0; rank < size_; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    HEADRACE_TRY(seen, wire::TensorPlaces::decode(places[at], static_cast<std::size_t>(size_)));
    const std::uint64_t place = seen.places[static_cast<std::size_t>(rank_)];
    tensor.memory.at[at] = rank == rank_ ? tensor.memory.address : place;
    if (rank != rank_) tensor.places[at] = mine->places[at];
  }
  return {};
}

Result<wire::TensorCard> Tensors::offer(Neighbours& neighbours, Shared& tensor) const {
  const auto& [address, bytes, at] = tensor.memory;
  if (bytes == 0) return wire::TensorCard{};
  HEADRACE_TRY(offered, neighbours.offer_tensor(tensor.number, address, bytes, device_));
  tensor.region = offered.region;
  return wire::TensorCard{bytes, std::move(offered.metadata)};
}

Result<wire::TensorPlaces> Tensors::map_all(Neighbours& neighbours, Shared& tensor, const Texts& cards,
                                            const Deadline& deadline) const {
  wire::TensorPlaces places;
  for (int rank = 0; rank < size_; ++rank) {
    places.places.push_back(0);
    HEADRACE_TRY(card, wire::TensorCard::decode(cards[static_cast<std::size_t>(rank)]));
    if (rank == rank_ || card.bytes == 0) continue;
    auto mapping = neighbours.map_tensor(rank, tensor.number, card, device_, deadline);
    if (!mapping)
      return std::move(mapping).error().within(
          fmt::format("GPU {} cannot map the tensor of rank {}", device_, rank));
    places.places.back() = reinterpret_cast<std::uint64_t>(mapping->bytes().data());
    tensor.mappings.push_back(*std::move(mapping));
  }
  return places;
}

// --- what ranks say to one another

Result<std::vector<std::string>> Tensors::exchange(Neighbours* neighbours, const Result<std::string>& mine,
                                                   const Deadline& deadline) {
  const std::uint64_t number = ++count_;
  forget_before(number);
  if (neighbours != nullptr) return exchange(*neighbours, Saying::Kind::agreed, number, mine, deadline);
  if (!mine) return mine.error();
  return Texts{*mine};
}

Result<Tensors::Texts> Tensors::exchange(Neighbours& neighbours, Saying::Kind kind, std::uint64_t number,
                                         const Result<std::string>& mine, const Deadline& deadline) {
  Result<void> outcome;
  if (!mine) outcome = mine.error();
  const Saying saying{kind, number, wire::Outcome::encode(outcome) + (mine ? *mine : std::string())};
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_) HEADRACE_TRY_VOID(tell(neighbours, rank, saying, deadline));
  if (!mine) return mine.error();
  Texts texts;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) {
      texts.push_back(*mine);
      continue;
    }
    HEADRACE_TRY(bytes, said_by(rank, kind, number, deadline));
    HEADRACE_TRY(brought, wire::Outcome::decode(bytes));
    if (!brought.result) return std::move(brought.result).error().within(fmt::format("rank {}", rank));
    texts.emplace_back(brought.rest);
  }
  return texts;
}

Result<void> Tensors::tell(Neighbours& neighbours, int rank, const Saying& saying,
                           const Deadline& deadline) const {
  while (true) {
    Result<void> told = neighbours.say_to(rank, saying);
    if (told) return {};
    if (told.code() != Code::would_block)
      return make_error(Code::peer_lost, "rank {} is gone: {}", rank, told.error().message);
    if (deadline.expired()) return make_error(Code::timed_out, "rank {} takes no messages", rank);
    if (auto ended = looks_.ended()) return *ended;
    std::this_thread::sleep_for(between_tries);
  }
}

Result<std::string> Tensors::said_by(int rank, Saying::Kind kind, std::uint64_t number,
                                     const Deadline& deadline) {
  Deadline last_words = Deadline::never();
  std::unique_lock lock(mutex_);
  while (true) {
    if (auto said = said_.extract({rank, kind, number})) return std::move(said.mapped());
    if (deadline.expired())
      return make_error(Code::timed_out, "rank {} has not come: all ranks register tensors together", rank);
    lock.unlock();
    if (auto ended = looks_.ended()) return *ended;
    if (auto silent = why_silent(rank, kind, number, last_words)) return *silent;
    lock.lock();
    heard_.wait_for(lock, between_sights, [&] { return said_.contains({rank, kind, number}); });
  }
}

std::optional<Error> Tensors::why_silent(int first, Saying::Kind kind, std::uint64_t number,
                                         Deadline& last_words) {
  for (int rank = first; rank < size_; ++rank) {
    if (rank == rank_) continue;
    auto lost = looks_.lost(rank);
    if (!lost || has_said(rank, kind, number)) continue;  // one that has said it may leave
    if (last_words.is_never()) last_words = Deadline::after(longest_last_words);
    if (last_words.expired()) return lost;
  }
  return std::nullopt;
}

bool Tensors::has_said(int rank, Saying::Kind kind, std::uint64_t number) {
  const std::scoped_lock lock(mutex_);
  return said_.contains({rank, kind, number});
}

/// What was said of tensors that could not be registered.
void Tensors::forget_before(std::uint64_t number) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(said_, [&](const auto& said) { return std::get<std::uint64_t>(said.first) < number; });
}

void Tensors::hear(int rank, Saying saying) {
  const std::scoped_lock lock(mutex_);
  constexpr std::size_t most = 1024;  // a rank is a collective ahead of another one at most
  if (said_.size() >= most) return;
  said_.insert_or_assign({rank, saying.kind, saying.number}, std::move(saying.text));
  heard_.notify_all();
}

}  // namespace headrace::p2p
