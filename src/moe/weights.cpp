// SPDX-License-Identifier: Apache-2.0
#include "moe/weights.hpp"

#include "base/errors.hpp"
#include "base/hash.hpp"
#include "base/names.hpp"
#include "moe/balance.hpp"
#include "moe/plan.hpp"
#include "moe/spread.hpp"
#include "telemetry/nvtx.hpp"

#include <algorithm>
#include <bit>
#include <thread>
#include <utility>

namespace headrace {
namespace {

constexpr auto weights_look_after = std::chrono::milliseconds(50);  // whether the caller is interrupted

/// Calls step(rank) for each rank of a mask, until one fails.
template <class Step>
Result<void> for_ranks(moe::Mask ranks, const Step& step) {
  for (; ranks != 0; ranks &= ranks - 1)
    HEADRACE_TRY_VOID(step(static_cast<std::uint32_t>(std::countr_zero(ranks))));
  return {};
}

template <class T>
std::uint64_t hash_more(std::uint64_t seed, const std::vector<T>& numbers) {
  return hash64(std::as_bytes(std::span(numbers)), seed);
}

/// Never 0.
std::uint64_t hash_of_plan(const MoEPlan& plan) {
  return hash_more(hash_more(hash_more(0, plan.experts), plan.until), plan.before) | 1;
}

std::uint32_t to_wire(std::int32_t expert) {
  return expert == moe::no_expert ? moe::no_rank : static_cast<std::uint32_t>(expert);
}

std::string tensor_text(const TensorView& tensor) {
  std::string text(dtype_name(tensor.dtype));
  text += " [places";
  for (std::size_t i = 1; i < tensor.shape.rank(); ++i) text += fmt::format(", {}", tensor.shape[i]);
  return text + "]";
}

/// The region of host memory of an agent that has these bytes.
Result<moe::WeightsLocation> find_location(const Agent& agent, const TensorView& tensor) {
  if (tensor.bytes() == 0) return moe::WeightsLocation{};
  const auto begin = reinterpret_cast<std::uint64_t>(tensor.data);
  for (const Region& region : agent.regions()) {
    const bool has_it = region.kind == MemoryKind::dram && begin >= region.address &&
                        begin - region.address <= region.length_bytes &&
                        region.length_bytes - (begin - region.address) >= tensor.bytes();
    if (!has_it) continue;
    if (!region.writable)
      return make_error(Code::invalid_argument,
                        "it is in region {}, which is read alone: register it writable", region.id.value);
    return moe::WeightsLocation{region.id.value, begin - region.address};
  }
  return make_error(Code::invalid_argument,
                    "it is not in memory that agent {} has registered: register or allocate it there",
                    name_text(agent.name()));
}

}  // namespace

MoEWeights::State::State(Agent& of, MoE& with, std::span<const std::int32_t> given, std::string named)
    : agent(of),
      moe(with),
      config(with.config()),
      name(std::move(named)),
      spread(moe::spread_of(config)),
      experts(given.begin(), given.end()),
      own_rank(static_cast<std::uint32_t>(config.rank)),
      first_place(static_cast<std::size_t>(config.first_expert(config.rank))),
      places(static_cast<std::size_t>(config.local_experts())),
      talk(of, config, with.agents(), name) {}

Result<void> MoEWeights::State::not_forked() const {
  if (!fork_guard.forked()) return {};
  return make_error(Code::invalid_argument,
                    "it was opened before this process was forked: open one of its own in the child");
}

Error MoEWeights::State::refused(std::string_view call, Error error) const {
  return std::move(error).within(
      fmt::format("rank {}, {} of weights {}", config.rank, call, name_text(name)));
}

Result<void> MoEWeights::State::locate(std::span<const TensorView> tensors) {
  HEADRACE_TRY(count, moe::count_experts(config, experts));
  expert_count = count;
  kept.assign(experts.begin() + static_cast<std::ptrdiff_t>(first_place),
              experts.begin() + static_cast<std::ptrdiff_t>(first_place + places));
  held = kept;
  if (tensors.empty()) return make_error(Code::invalid_argument, "no tensor of weights is given");
  if (tensors.size() > moe::most_weights_tensors)
    return make_error(Code::invalid_argument, "{} tensors of weights are given, expected at most {}",
                      tensors.size(), moe::most_weights_tensors);
  for (const TensorView& tensor : tensors) {
    auto location = locate_tensor(tensor);
    if (!location)
      return std::move(location).error().within(fmt::format("tensor {}", &tensor - tensors.data()));
    weights.push_back({*location, places == 0 ? 0 : tensor.bytes() / places});
    tensors_text += (tensors_text.empty() ? "" : ", ") + tensor_text(tensor);
  }
  return {};
}

Result<moe::WeightsLocation> MoEWeights::State::locate_tensor(const TensorView& tensor) const {
  const bool has_gaps = !tensor.is_contiguous();
  if (tensor.shape.empty() || tensor.shape[0] != static_cast<std::int64_t>(places) || has_gaps)
    return make_error(Code::invalid_argument,
                      "it has the shape {}{}, expected [{}, ...] without gaps: a part for each place of this "
                      "rank",
                      shape_text(tensor.shape), has_gaps ? ", with gaps" : "", places);
  if (tensor.device.kind != Device::Kind::cpu)
    return make_error(Code::not_supported, "it is on {}, expected host memory", device_text(tensor.device));
  if (std::ranges::find(tensor.shape.begin() + 1, tensor.shape.end(), 0) != tensor.shape.end())
    return make_error(Code::invalid_argument, "it has the shape {}: there is nothing to move",
                      shape_text(tensor.shape));
  return find_location(agent, tensor);
}

Result<void> MoEWeights::State::meet(Deadline deadline) {
  HEADRACE_TRY(now, ranks_now());
  members = active = now;
  moe::WeightsCard card;
  card.table = hash_more(0, experts);
  card.tensors = tensors_text;
  for (const Weights& of : weights) card.locations.push_back(of.location);
  HEADRACE_TRY_VOID(talk.meet(card, members, deadline));
  HEADRACE_TRY_VOID(for_ranks(members & ~moe::bit_of(own_rank), [&](std::uint32_t rank) -> Result<void> {
    const moe::WeightsCard& theirs = talk.card_of(rank);
    if (theirs.table != card.table)
      return make_error(Code::invalid_argument,
                        "rank {} was given other experts of places than rank {}: give all ranks the same",
                        rank, config.rank);
    if (theirs.tensors != card.tensors || theirs.locations.size() != card.locations.size())
      return make_error(Code::invalid_argument,
                        "rank {} has weights of {}, rank {} of {}: give all ranks tensors of the same types "
                        "and shapes, in the same order",
                        config.rank, card.tensors, rank, printable(theirs.tensors));
    return know_memory(rank, deadline);
  }));
  safe = experts;
  HEADRACE_TRY(made, plan_of_kept(safe, active));
  plan = std::move(made);
  return {};
}

/// The agent knows the memory of a peer from its metadata, which may be in the store alone.
Result<void> MoEWeights::State::know_memory(std::uint32_t rank, Deadline deadline) const {
  constexpr auto pause = std::chrono::milliseconds(10);
  const std::string peer = moe.agents()[rank];
  for (const moe::WeightsLocation& location : talk.card_of(rank).locations) {
    if (location.region == 0) continue;
    const std::vector<Page> first{{location.region, location.offset_bytes, 1}};
    while (true) {
      auto known = agent.prepare(peer, first);
      if (known) break;
      if (known.code() != Code::not_found) return std::move(known).error().within(talk.rank_text(rank));
      const auto found = agent.find(peer, std::chrono::nanoseconds(deadline.remaining_ns()));
      if (found.code() == Code::invalid_argument)  // no store
        return make_error(Code::not_found,
                          "the weights of {} are not known: import the metadata of its agent, made after it "
                          "has registered them, or give the agents a store",
                          talk.rank_text(rank));
      HEADRACE_TRY_VOID(talk.check_waiting(rank, "the metadata of its weights", deadline));
      std::this_thread::sleep_for(pause);
    }
  }
  return {};
}

Result<MoEPlan> MoEWeights::State::plan_of_kept(std::span<const std::int32_t> of, moe::Mask ranks) const {
  const std::vector<std::int64_t> none(static_cast<std::size_t>(config.groups()) * expert_count);
  return moe::make_plan(config, {.experts = of, .counts = none, .active = ranks, .held = {}});
}

/// errors: canceled, invalid_argument (a rank has come since)
Result<moe::Mask> MoEWeights::State::ranks_now() const {
  const moe::Mask now = moe.active();
  if ((now & moe::bit_of(own_rank)) == 0)
    return make_error(Code::canceled, "this rank was left out: all ranks call regroup to take it back");
  const moe::Mask come = members == 0 ? 0 : now & ~members;
  if (come == 0) return now;
  return make_error(Code::invalid_argument,
                    "rank {} has come since the ranks met: open new weights on all ranks after regroup",
                    std::countr_zero(come));
}

Result<void> MoEWeights::State::balance(std::span<const std::int64_t> counts, Deadline deadline) {
  if (counts.size() != expert_count)
    return make_error(Code::invalid_argument, "{} counts are given, expected one for each of {} experts",
                      counts.size(), expert_count);
  const std::int64_t most = config.max_tokens * config.top_k;
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] < 0 || counts[i] > most)
      return make_error(Code::invalid_argument, "the count of expert {} is {}, expected 0 to {}", i,
                        counts[i], most);
  HEADRACE_TRY(now, ranks_now());
  active = now;
  is_balanced = false, moved_bytes = 0;
  ++calls;
  auto done = run(counts, deadline);
  if (done) return {};
  tell_failure(done.error());
  HEADRACE_TRY(made, plan_of_kept(safe, active));
  plan = std::move(made);
  return done;
}

Result<void> MoEWeights::State::run(std::span<const std::int64_t> counts, Deadline deadline) {
  HEADRACE_TRY(gathered, gather(counts, deadline));
  adopt(gathered);
  HEADRACE_TRY(made, moe::make_plan(config, {.experts = gathered.kept,
                                             .counts = gathered.counts,
                                             .active = active,
                                             .held = gathered.held}));
  std::copy_n(gathered.kept.begin() + static_cast<std::ptrdiff_t>(first_place), places, kept.begin());
  HEADRACE_TRY_VOID(read(made, gathered, deadline));
  HEADRACE_TRY_VOID(end(hash_of_plan(made), deadline));
  plan = std::move(made), safe = std::move(gathered.kept);
  is_balanced = true;
  return {};
}

moe::WeightsCounts MoEWeights::State::own_counts(std::span<const std::int64_t> counts) const {
  moe::WeightsCounts own;
  own.call = calls, own.active = active;
  for (const std::int64_t count : counts) own.counts.push_back(static_cast<std::uint32_t>(count));
  for (const std::int32_t expert : kept) own.kept.push_back(to_wire(expert));
  for (const std::int32_t expert : held) own.held.push_back(to_wire(expert));
  return own;
}

/// Ranks leave one after another, so of two masks one is part of the other: all ranks of the smallest one
/// come to that.
Result<MoEWeights::State::Gathered> MoEWeights::State::gather(std::span<const std::int64_t> counts,
                                                              Deadline deadline) {
  std::vector<moe::WeightsCounts> all(spread.ranks);
  all[own_rank] = own_counts(counts);
  const moe::Mask others = active & ~moe::bit_of(own_rank);
  const std::string message = encode(all[own_rank]);
  HEADRACE_TRY_VOID(
      for_ranks(others, [&](std::uint32_t rank) { return talk.send(rank, message, deadline); }));
  HEADRACE_TRY_VOID(for_ranks(others, [&](std::uint32_t rank) -> Result<void> {
    if ((active & moe::bit_of(rank)) == 0) return {};
    HEADRACE_TRY(told, talk.wait_counts(rank, calls, deadline));
    active &= told.active;
    return add_counts(rank, told, all);
  }));
  return join_counts(all);
}

Result<void> MoEWeights::State::add_counts(std::uint32_t rank, const moe::WeightsCounts& told,
                                           std::vector<moe::WeightsCounts>& all) const {
  const std::size_t of_rank = spread.first_expert[rank + 1] - spread.first_expert[rank];
  const auto is_expert = [&](std::uint32_t expert) {
    return expert == moe::no_rank || expert < expert_count;
  };
  const bool is_good = told.counts.size() == expert_count && told.kept.size() == of_rank &&
                       told.held.size() == of_rank && std::ranges::all_of(told.kept, is_expert) &&
                       std::ranges::all_of(told.held, is_expert);
  if (!is_good) return make_error(Code::corrupt, "{} has sent counts that cannot be", talk.rank_text(rank));
  if ((told.active & moe::bit_of(own_rank)) == 0)
    return make_error(Code::canceled, "{} has left this rank out", talk.rank_text(rank));
  all[rank] = told;
  return {};
}

Result<MoEWeights::State::Gathered> MoEWeights::State::join_counts(
    const std::vector<moe::WeightsCounts>& all) const {
  Gathered gathered;
  gathered.counts.resize(static_cast<std::size_t>(config.groups()) * expert_count);
  gathered.kept = experts;
  gathered.held.assign(experts.size(), moe::no_expert);
  std::vector<std::uint32_t> first_of_group(static_cast<std::size_t>(config.groups()), moe::no_rank);
  HEADRACE_TRY_VOID(for_ranks(active, [&](std::uint32_t rank) -> Result<void> {
    const moe::WeightsCounts& told = all[rank];
    for (std::size_t i = 0; i < told.held.size(); ++i) {
      gathered.kept[spread.first_expert[rank] + i] = static_cast<std::int32_t>(told.kept[i]);
      gathered.held[spread.first_expert[rank] + i] = static_cast<std::int32_t>(told.held[i]);
    }
    const std::size_t group = rank / spread.group_size;
    std::uint32_t& first = first_of_group[group];
    if (first == moe::no_rank) {
      first = rank;
      std::ranges::copy(told.counts,
                        gathered.counts.begin() + static_cast<std::ptrdiff_t>(group * expert_count));
    } else if (all[first].counts != told.counts) {
      return make_error(Code::invalid_argument,
                        "ranks {} and {} hold the same tokens and were given different counts", first, rank);
    }
    return {};
  }));
  return gathered;
}

void MoEWeights::State::adopt(Gathered& gathered) const {
  std::vector<bool> is_kept(expert_count);
  const auto for_places = [&](const auto& look) {
    static_cast<void>(for_ranks(active, [&](std::uint32_t rank) -> Result<void> {
      for (std::size_t place = spread.first_expert[rank]; place < spread.first_expert[rank + 1]; ++place)
        look(gathered.kept[place], gathered.held[place]);
      return {};
    }));
  };
  for_places([&](std::int32_t keeps, std::int32_t) {
    if (keeps != moe::no_expert) is_kept[static_cast<std::size_t>(keeps)] = true;
  });
  for_places([&](std::int32_t& keeps, std::int32_t holds) {
    if (keeps != moe::no_expert || holds == moe::no_expert || is_kept[static_cast<std::size_t>(holds)])
      return;
    keeps = holds;
    is_kept[static_cast<std::size_t>(holds)] = true;
  });
}

std::uint32_t MoEWeights::State::rank_of(std::size_t place) const {
  return moe::rank_of_expert(spread.first_expert.data(), spread.ranks, static_cast<std::uint32_t>(place));
}

/// The first place that keeps each expert, of the ranks that take part.
std::vector<std::size_t> MoEWeights::State::homes(const Gathered& gathered) const {
  std::vector<std::size_t> found(expert_count);
  for (std::size_t place = experts.size(); place-- > 0;)
    if (gathered.kept[place] != moe::no_expert && (active & moe::bit_of(rank_of(place))) != 0)
      found[static_cast<std::size_t>(gathered.kept[place])] = place;
  return found;
}

Result<void> MoEWeights::State::read(const MoEPlan& made, const Gathered& gathered, Deadline deadline) {
  const std::vector<std::size_t> home = homes(gathered);
  std::vector<PagesOfRank> pages(spread.ranks);
  std::vector<std::size_t> changed;
  for (std::size_t i = 0; i < places; ++i) {
    const std::int32_t expert = made.experts[first_place + i];
    if (expert == moe::no_expert || expert == held[i]) continue;
    changed.push_back(i);
    const std::size_t from = home[static_cast<std::size_t>(expert)];
    add_pages(pages[rank_of(from)], i, from);
  }
  std::vector<RequestPart> parts;
  for (std::uint32_t rank = 0; rank < spread.ranks; ++rank) {
    if (pages[rank].local.empty()) continue;
    auto local = agent.prepare(pages[rank].local);
    if (!local) return std::move(local).error().within("weights of this rank");
    auto remote = agent.prepare(moe.agents()[rank], pages[rank].remote);
    if (!remote) return std::move(remote).error().within("weights of " + talk.rank_text(rank));
    parts.push_back({*local, *remote});
  }
  if (parts.empty()) return {};
  for (const std::size_t i : changed) held[i] = moe::no_expert;
  HEADRACE_TRY_VOID(move(parts, deadline));
  for (const std::size_t i : changed) held[i] = made.experts[first_place + i];
  return {};
}

void MoEWeights::State::add_pages(PagesOfRank& pages, std::size_t local, std::size_t from) const {
  const std::uint32_t rank = rank_of(from);
  for (std::size_t tensor = 0; tensor < weights.size(); ++tensor) {
    const std::uint64_t bytes = weights[tensor].place_bytes;
    const moe::WeightsLocation& ours = weights[tensor].location;
    const moe::WeightsLocation& theirs = talk.card_of(rank).locations[tensor];
    pages.local.push_back({ours.region, ours.offset_bytes + local * bytes, bytes});
    pages.remote.push_back(
        {theirs.region, theirs.offset_bytes + (from - spread.first_expert[rank]) * bytes, bytes});
  }
}

Result<void> MoEWeights::State::move(const std::vector<RequestPart>& parts, Deadline deadline) {
  constexpr auto pause = std::chrono::milliseconds(1);
  HEADRACE_TRY(request, agent.make_request(Op::read, parts));
  PostOptions options;
  options.timeout = std::chrono::nanoseconds(deadline.remaining_ns());
  Status status = request.post(options);
  while (status.code == Code::would_block && !deadline.expired()) {
    static_cast<void>(request.poll());
    std::this_thread::sleep_for(pause);
    status = request.post(options);
  }
  bool is_interrupted = false;
  while (request.state() == RequestState::posted || request.state() == RequestState::canceling) {
    status = request.wait(weights_look_after);
    if (!is_interrupted && config.interrupted && config.interrupted()) {
      is_interrupted = true;
      request.cancel();
    }
  }
  if (is_interrupted) return make_error(Code::canceled, "it was interrupted by its caller");
  if (request.state() == RequestState::done) {
    moved_bytes = request.bytes();
    return {};
  }
  Error error = request.error();
  if (error.code == Code::ok) error = {status.code, std::string(code_sentence(status.code)), no_page};
  return std::move(error).within("read weights");
}

Result<void> MoEWeights::State::end(std::uint64_t plan_hash, Deadline deadline) {
  const moe::Mask others = active & ~moe::bit_of(own_rank);
  const std::string message = encode(moe::WeightsEnd{.call = calls, .plan = plan_hash, .text = {}});
  HEADRACE_TRY_VOID(
      for_ranks(others, [&](std::uint32_t rank) { return talk.send(rank, message, deadline); }));
  return for_ranks(others, [&](std::uint32_t rank) -> Result<void> {
    HEADRACE_TRY(theirs, talk.wait_end(rank, calls, deadline));
    if (theirs.plan == plan_hash) return {};
    return make_error(Code::corrupt, "{} has made another plan than rank {}", talk.rank_text(rank),
                      config.rank);
  });
}

/// They need not wait for this rank. Once each: it does not wait for them either.
void MoEWeights::State::tell_failure(const Error& error) {
  const std::string message =
      encode(moe::WeightsEnd{.call = calls, .plan = 0, .code = error.code, .text = error.message});
  static_cast<void>(for_ranks(active & ~moe::bit_of(own_rank), [&](std::uint32_t rank) -> Result<void> {
    static_cast<void>(talk.send(rank, message, Deadline::after(std::chrono::nanoseconds(0))));
    return {};
  }));
}

MoEWeights::MoEWeights(std::unique_ptr<State> state) : state_(std::move(state)) {}
MoEWeights::~MoEWeights() = default;
MoEWeights::MoEWeights(MoEWeights&&) noexcept = default;
MoEWeights& MoEWeights::operator=(MoEWeights&&) noexcept = default;

Result<MoEWeights> MoEWeights::open(Agent& agent, MoE& moe, std::span<const std::int32_t> experts,
                                    std::span<const TensorView> tensors, const std::string& name,
                                    std::chrono::nanoseconds timeout) {
  const MoEConfig& config = moe.config();
  const Deadline deadline = Deadline::after(timeout);
  const auto wrong = [&](Error error) {
    return std::move(error).within(fmt::format("rank {}, open of weights {}", config.rank, name_text(name)));
  };
  const std::vector<std::string> agents = moe.agents();
  if (agents.empty())
    return wrong(
        make_error(Code::invalid_argument, "the MoE has not joined the other ranks: call join first"));
  if (agents[static_cast<std::size_t>(config.rank)] != agent.name())
    return wrong(make_error(Code::invalid_argument, "the agent is {}, expected {}, that of the MoE",
                            name_text(agent.name()),
                            name_text(agents[static_cast<std::size_t>(config.rank)])));
  if (config.device >= 0)
    return wrong(make_error(Code::not_supported,
                            "the MoE is on a GPU, and weights move in host memory alone: bring them with "
                            "Agent::read, as moe_plan says"));
  auto state = std::make_unique<State>(agent, moe, experts, name);
  if (auto located = state->locate(tensors); !located) return wrong(std::move(located).error());
  if (auto met = state->meet(deadline); !met) return wrong(std::move(met).error());
  return MoEWeights(std::move(state));
}

Result<void> MoEWeights::balance(std::span<const std::int64_t> counts, std::chrono::nanoseconds timeout) {
  if (auto here = state_->not_forked(); !here) return state_->refused("balance", std::move(here).error());
  const nvtx::CallRange range("moe", "balance");
  const Deadline deadline = Deadline::after(timeout);
  auto done = state_->balance(counts, deadline);
  if (done) return done;
  return state_->refused("balance", std::move(done).error());
}

MoEReplicas MoEWeights::replicas() const {
  MoEReplicas table = state_->plan.of_group(state_->config.rank / state_->config.group_size);
  if (!state_->is_balanced) table.choice = MoEChoice::in_turn;
  return table;
}

const MoEPlan& MoEWeights::plan() const { return state_->plan; }
std::uint64_t MoEWeights::moved_bytes() const { return state_->moved_bytes; }

}  // namespace headrace
