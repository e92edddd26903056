// SPDX-License-Identifier: Apache-2.0
#include "choice/communicator.hpp"

#include "choice/call_size.hpp"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>

namespace headrace::choice {
namespace {

using Json = nlohmann::json;

constexpr const char* table_hint = "table";
constexpr const char* priority_hint = "is_high_priority_stream";

std::span<const headrace_setting_v1> hints_of(const headrace_comm_setup_v1& setup) {
  return {setup.hints, setup.hint_count};
}

std::string hint_of(const headrace_comm_setup_v1& setup, std::string_view name) {
  for (const auto& hint : hints_of(setup))
    if (hint.name == name) return hint.value;
  return {};
}

/// The candidates read it too, and refuse what is no boolean.
gpu::Priority priority_of(const headrace_comm_setup_v1& setup) {
  const std::string wish = hint_of(setup, priority_hint);
  const std::set<std::string> yes{"1", "true", "yes", "on"};
  return yes.contains(wish) ? gpu::Priority::high : gpu::Priority::normal;
}

Result<void> check_setup(const headrace_comm_setup_v1& setup, const std::vector<Candidate>& candidates) {
  std::vector<std::string_view> names{table_hint};
  for (const Candidate& candidate : candidates)
    names.insert(names.end(), candidate.hints.begin(), candidate.hints.end());
  return check_known(hints_of(setup), std::move(names), "the communicator");
}

/// A table of choices: whence it is, and its text.
struct TableText {
  std::string from, text;
};

std::string card_text(const std::string& gpu, const std::string& uuid,
                      const std::optional<TableText>& table) {
  Json card{{"gpu", gpu}, {"uuid", uuid}};
  if (table) {
    card["from"] = table->from;
    card["table"] = table->text;
  }
  return card.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Part::Make by_open() {
  return [](const headrace_comm_backend_v1& table, const headrace_comm_setup_v1& setup, void** comm,
            headrace_text_v1* why) { return table.open(table.context, &setup, comm, why); };
}

}  // namespace

// --- opening

Communicator::Communicator(Parts parts, const Setup& setup, gpu::Stream stream)
    : parts_(std::move(parts)),
      host_(setup.host),
      host_table_(setup.host),
      rank_(setup.rank),
      size_(setup.size),
      table_hint_(hint_of(setup, table_hint)),
      stream_(std::move(stream)),
      joins_(parts_.device, gpu::StreamWorks::Order::of_all) {}

Communicator::~Communicator() {
  while (!open_.empty()) open_.pop_back();
}

Result<std::unique_ptr<Communicator>> Communicator::make(const Parts& parts, const Setup& setup) {
  HEADRACE_TRY(stream, gpu::Stream::make(parts.device, priority_of(setup)));
  return std::unique_ptr<Communicator>(new Communicator(parts, setup, std::move(stream)));
}

Result<std::unique_ptr<Communicator>> Communicator::open(const Parts& parts, const Setup& setup) {
  return connected(parts, setup, nullptr, [](std::size_t) { return by_open(); });
}

Result<std::unique_ptr<Communicator>> Communicator::connected(const Parts& parts, const Setup& setup,
                                                              const CommTuning* inherited,
                                                              const Make& make_part) {
  HEADRACE_TRY_VOID(check_setup(setup, parts.candidates));
  HEADRACE_TRY(made, make(parts, setup));
  Agreement agreement(made->host_, setup.rank, setup.size,
                      comm_border::deadline_of(setup.meeting_timeout_ns));
  const auto connected = made->connect(setup, inherited, make_part, agreement);
  agreement.end();
  if (!connected) return connected.error();
  return made;
}

Result<void> Communicator::connect(const Setup& setup, const CommTuning* inherited, const Make& make,
                                   Agreement& agreement) {
  HEADRACE_TRY(cards, agreement.exchange("ranks", card(setup, inherited)));
  HEADRACE_TRY(topology, learn(cards));
  std::string refusals;
  for (std::size_t i = 0; i < parts_.candidates.size(); ++i) {
    const Candidate& candidate = parts_.candidates[i];
    auto part = std::make_unique<Part>(candidate, host_table_, i, works_);
    const auto opened = part->open(setup, agreement, make(i));
    if (agreement.broken()) return *agreement.broken();
    if (opened) {
      open_.push_back(std::move(part));
      continue;
    }
    // Nobody shall find out later that what was asked for holds nowhere.
    if (opened.code() == Code::invalid_argument && !known_of(hints_of(setup), candidate.hints).empty())
      return Error(opened.error()).within(candidate.name);
    refusals += fmt::format("{}{}: {}", refusals.empty() ? "" : "; ", candidate.name, opened.error().message);
  }
  if (open_.empty())
    return make_error(Code::not_supported, "none of its backends opens on all ranks. {}", refusals);
  tell_what_is_open(refusals);
  choices_ = Choices(tuning_, topology, open_names());
  return {};
}

Result<std::unique_ptr<Communicator>> Communicator::connected_without_store(const Parts& parts,
                                                                            const Setup& setup,
                                                                            std::vector<std::string> cards,
                                                                            const Make& make_part) {
  HEADRACE_TRY_VOID(check_setup(setup, parts.candidates));
  HEADRACE_TRY(made, make(parts, setup));
  made->cards_ = std::move(cards);
  HEADRACE_TRY(topology, made->learn(made->cards_));
  for (std::size_t i = 0; i < parts.candidates.size(); ++i) {
    const Part::Make begin = make_part(i);
    if (!begin) continue;
    auto part = std::make_unique<Part>(parts.candidates[i], made->host_table_, i, made->works_);
    HEADRACE_TRY_VOID(part->open_without_store(setup, begin));
    made->open_.push_back(std::move(part));
  }
  if (made->open_.empty())
    return make_error(Code::not_supported,
                      "none of the backends of auto reconfigures and is open on all of these ranks");
  made->tell_what_is_open({});
  made->choices_ = Choices(made->tuning_, topology, made->open_names());
  return made;
}

Result<std::string> Communicator::card(const Setup& setup, const CommTuning* inherited) const {
  const std::string gpu = parts_.device->info().name, uuid = parts_.device->info().uuid;
  if (rank_ != 0) return card_text(gpu, uuid, std::nullopt);
  if (inherited != nullptr) return card_text(gpu, uuid, TableText{inherited->from, tuning_text(*inherited)});
  HEADRACE_TRY(tuning, parts_.read_tuning(hint_of(setup, table_hint)));
  return card_text(gpu, uuid, TableText{tuning.from, tuning_text(tuning)});
}

/// All ranks get the same cards, and so they learn the same.
Result<Topology> Communicator::learn(const std::vector<std::string>& cards) {
  Topology topology{{}, size_, false};
  std::set<std::string> gpus;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const Json card = Json::parse(cards[rank], nullptr, false);
    const auto text = [&card](const char* key) {
      return card.is_object() && card.contains(key) && card[key].is_string() ? card[key].get<std::string>()
                                                                             : std::string();
    };
    gpus.insert(text("uuid"));
    if (rank != 0) continue;
    topology.gpu = text("gpu");
    HEADRACE_TRY(tuning, parse_tuning(text("table"), text("from")));
    tuning_ = std::move(tuning);
  }
  topology.sharing = gpus.size() < cards.size();
  return topology;
}

void Communicator::tell_what_is_open(const std::string& refusals) const {
  if (host_table_->log_enabled(host_table_->context, HEADRACE_LOG_INFO) == 0) return;
  const std::string text =
      fmt::format("rank {} of {}: open {}, table {}{}{}", rank_, size_, fmt::join(open_names(), " and "),
                  tuning_.from, refusals.empty() ? "" : "; not open ", refusals);
  host_table_->log(host_table_->context, HEADRACE_LOG_INFO, text.data(), text.size());
}

std::vector<std::string> Communicator::open_names() const {
  std::vector<std::string> names;
  for (const auto& part : open_) names.push_back(part->name());
  return names;
}

Part* Communicator::part_of(std::size_t candidate) const {
  const auto at = std::ranges::find(open_, candidate, [](const auto& part) { return part->index(); });
  return at == open_.end() ? nullptr : at->get();
}

// --- calls

Result<bool> Communicator::issue(const Call& call, std::uint64_t work) {
  HEADRACE_TRY_VOID(check_hints(call));
  std::unique_lock<std::mutex> order;
  if (!group_) order = std::unique_lock(order_);
  const gpu::ContextGuard current(*parts_.device);
  HEADRACE_TRY(place, place_of(call));
  std::vector<std::string> refusals;
  for (Part* const part : order_for(call)) {
    auto given = give(*part, call, place, work);
    if (given || given.code() != Code::not_supported) return given;
    refusals.push_back(given.error().message);
  }
  return make_error(Code::not_supported, "{}", fmt::join(refusals, "; "));
}

Result<void> Communicator::check_hints(const Call& call) const {
  if (call.hint_count == 0) return {};
  std::vector<std::string_view> names;
  for (const Candidate& candidate : parts_.candidates)
    names.insert(names.end(), candidate.call_hints.begin(), candidate.call_hints.end());
  return check_known({call.hints, call.hint_count}, std::move(names), "a call");
}

Result<Communicator::Place> Communicator::place_of(const Call& call) {
  const cuda::DriverTable& driver = parts_.device->driver();
  const auto caller = static_cast<cuda::Stream>(call.stream);
  cuda::CaptureStatus capture{};
  if (caller != nullptr)
    HEADRACE_CUDA_TRY(driver, driver.stream_is_capturing(caller, &capture), "look at the stream of a call");
  // A captured call is part of its stream: no stream outside of a capture is waited for, or joins later.
  if (capture != cuda::CaptureStatus::none) return Place{caller, true};
  if (call.async == 0) return Place{caller, false};
  HEADRACE_TRY_VOID(joins_.follow(stream_.handle(), caller));
  return Place{stream_.handle(), false};
}

/// It is the same on all ranks: it depends on the table, on what is open and on what all ranks know of a
/// call. Messages all go one way: a rank does not know whether the other one has issued a message alone or in
/// a group.
std::vector<Part*> Communicator::order_for(const Call& call) const {
  Part* first = nullptr;
  if (group_) {
    first = group_->part;  // calls of a group do not wait for one another there
  } else if (is_message(static_cast<CommOperation>(call.operation))) {
    first = part_of_messages();
  } else {
    CallSize size = size_of(call, size_);
    size.registered = !registered_.empty();
    if (const auto choice = choices_.pick(size)) first = open_[*choice].get();
  }
  std::vector<Part*> order;
  if (first != nullptr) order.push_back(first);
  for (const auto& part : open_)
    if (part.get() != first) order.push_back(part.get());
  return order;
}

/// NCCL, if it is open.
Part* Communicator::part_of_messages() const {
  const auto at = std::ranges::find_if(open_.rbegin(), open_.rend(),
                                       [](const auto& part) { return part->table().group_start != nullptr; });
  return at == open_.rend() ? nullptr : at->get();
}

Result<bool> Communicator::give(Part& part, const Call& call, const Place& place, std::uint64_t work) {
  const bool grouped = group_ && group_->part == &part;
  if (!place.captured && !grouped) HEADRACE_TRY_VOID(follow_last(place.stream));
  Call passed = call;
  passed.stream = place.stream;
  if (!place.captured) passed.async = 0;  // what is asynchronous is on the communicator's stream already
  const auto hints = known_of({call.hints, call.hint_count}, parts_.candidates[part.index()].call_hints);
  passed.hints = hints.data();
  passed.hint_count = static_cast<std::uint32_t>(hints.size());
  HEADRACE_TRY(ended, part.issue(passed, work));
  if (place.captured) return ended;
  const Last last{&part, work, place.stream};
  if (grouped)
    group_->taken.push_back(last);
  else
    last_ = last;
  return ended;
}

Result<void> Communicator::follow_last(void* stream) const {
  if (!last_ || last_->stream == stream) return {};
  return last_->part->follow(last_->work, stream);
}

void Communicator::group_start() {
  std::unique_lock order(order_);
  Part* const part = part_of_messages();
  if (part != nullptr) part->table().group_start(part->handle());
  group_.emplace(Group{std::move(order), part});
}

Result<void> Communicator::group_end() {
  Group group = std::move(*group_);
  group_.reset();
  if (group.part == nullptr) return {};
  const gpu::ContextGuard current(*parts_.device);
  Result<void> followed;
  for (const Last& taken : group.taken)
    if (auto one = follow_last(taken.stream); !one) followed = std::move(one);
  HEADRACE_TRY_VOID(group.part->group_end());
  if (!group.taken.empty()) last_ = group.taken.back();
  return followed;
}

Result<void> Communicator::wait_on(std::uint64_t work, void* stream) {
  const auto at = works_.backend_of(work);
  Part* const part = at ? part_of(*at) : nullptr;
  return part == nullptr ? Result<void>() : part->wait_on(work, stream);
}

// --- memory that calls use again and again

Result<std::uint64_t> Communicator::tensor_register(const headrace_comm_elements_v1& tensor,
                                                    const Deadline& deadline) {
  Registration registration;
  for (const auto& part : open_) {
    if (!part->registers()) continue;
    auto number = part->tensor_register(tensor, deadline);
    if (number) {
      registration.push_back({part.get(), *number});
      continue;
    }
    // It has failed on all ranks, and so all take back what they have.
    if (const auto taken = take_back(registration, deadline); !taken)
      number.error().message += fmt::format("; to take it back failed, too: {}", taken.error().message);
    return std::move(number).error();
  }
  registered_[++last_registration_] = std::move(registration);
  return last_registration_;
}

Result<void> Communicator::take_back(Registration& registration, const Deadline& deadline) {
  while (!registration.empty()) {
    const Registered last = registration.back();
    HEADRACE_TRY_VOID(last.part->tensor_deregister(last.number, deadline));
    registration.pop_back();
  }
  return {};
}

Result<void> Communicator::tensor_deregister(std::uint64_t registration, const Deadline& deadline) {
  const auto at = registered_.find(registration);
  if (at == registered_.end())
    return make_error(Code::invalid_argument, "there is no registration {}", registration);
  HEADRACE_TRY_VOID(take_back(at->second, deadline));
  registered_.erase(at);
  return {};
}

Result<void> Communicator::suspend(const Deadline& deadline) {
  for (const auto& part : open_) {
    if (!part->sleeps()) continue;
    if (auto slept = part->suspend(deadline); !slept) {
      static_cast<void>(resume(deadline));  // the first error is what the caller hears
      return slept;
    }
    asleep_.push_back(part.get());
  }
  if (!asleep_.empty()) return {};
  return make_error(Code::not_supported, "none of its open backends ({}) has suspend",
                    fmt::join(open_names(), ", "));
}

Result<void> Communicator::resume(const Deadline& deadline) {
  while (!asleep_.empty()) {
    HEADRACE_TRY_VOID(asleep_.back()->resume(deadline));
    asleep_.pop_back();
  }
  return {};
}

Result<Part*> Communicator::with_windows() const {
  const auto at = std::ranges::find_if(open_, [](const auto& part) { return part->has_windows(); });
  if (at != open_.end()) return at->get();
  return make_error(
      Code::not_supported,
      "none of its open backends has windows: use backend p2p, which tells why it does not open");
}

// --- ends

bool Communicator::progress() {
  bool moved = false;
  for (const auto& part : open_) moved = part->progress() || moved;
  return moved;
}

void Communicator::abort(std::string_view reason) {
  for (const auto& part : open_) part->abort(reason);
}

std::string Communicator::waits_for(std::uint64_t work) {
  const auto at = works_.backend_of(work);
  Part* const part = at ? part_of(*at) : nullptr;
  return part == nullptr ? std::string() : part->waits_for(work);
}

// --- other ranks

Result<void> Communicator::check_table(const Setup& setup) const {
  const std::string wish = hint_of(setup, table_hint);
  if (wish == table_hint_) return {};
  return make_error(Code::invalid_argument,
                    "hint table is {}, and it is fixed when the first communicator opens: leave it out",
                    wish);
}

Result<std::unique_ptr<Communicator>> Communicator::split(std::span<const int> ranks, const Setup* setup) {
  if (setup == nullptr) {
    for (const auto& part : open_) HEADRACE_TRY_VOID(part->stand_aside());
    return std::unique_ptr<Communicator>();
  }
  HEADRACE_TRY_VOID(check_table(*setup));
  // A candidate that is not open here may be there: p2p on one host of several. That takes a store.
  const Make make = [&](std::size_t candidate) -> Part::Make {
    Part* const part = part_of(candidate);
    if (part == nullptr || part->table().split == nullptr) return cards_.empty() ? by_open() : nullptr;
    return [part, ranks](const auto& table, const Setup& of_part, void** comm, headrace_text_v1* why) {
      return table.split(part->handle(), ranks.data(), ranks.size(), &of_part, comm, why);
    };
  };
  if (!cards_.empty()) return connected_without_store(parts_, *setup, cards_of(ranks), make);
  return connected(parts_, *setup, &tuning_, make);
}

std::vector<std::string> Communicator::cards_of(std::span<const int> ranks) const {
  std::vector<std::string> cards;
  for (const int rank : ranks) cards.push_back(cards_[static_cast<std::size_t>(rank)]);
  return cards;
}

Result<std::unique_ptr<Communicator>> Communicator::shrink(std::span<const int> excluded,
                                                           const Setup& setup) {
  HEADRACE_TRY_VOID(check_table(setup));
  const Make make = [&](std::size_t candidate) -> Part::Make {
    Part* const part = part_of(candidate);
    if (part == nullptr || part->table().shrink == nullptr) return cards_.empty() ? by_open() : nullptr;
    return [part, excluded](const auto& table, const Setup& of_part, void** comm, headrace_text_v1* why) {
      return table.shrink(part->handle(), excluded.data(), excluded.size(), &of_part, comm, why);
    };
  };
  if (cards_.empty()) return connected(parts_, setup, &tuning_, make);
  std::vector<int> left;
  for (int rank = 0; rank < size_; ++rank)
    if (std::ranges::find(excluded, rank) == excluded.end()) left.push_back(rank);
  return connected_without_store(parts_, setup, cards_of(left), make);
}

// --- ranks that the caller brings together

Result<RankHandle> Communicator::handle() {
  RankHandle mine{
      parts_.device->info().name, parts_.device->info().uuid, tuning_.from, tuning_text(tuning_), {}};
  for (const auto& part : open_) {
    if (!part->reconfigures()) continue;
    HEADRACE_TRY(handle, part->init_handle());
    mine.backends[part->name()] = std::move(handle);
  }
  if (!mine.backends.empty()) return mine;
  return make_error(Code::not_supported, "none of its open backends ({}) has reconfigure",
                    fmt::join(open_names(), ", "));
}

Result<std::unique_ptr<Communicator>> Communicator::reconfigure(const std::string& uuid,
                                                                std::span<const RankHandle> ranks,
                                                                const Setup& setup) {
  HEADRACE_TRY_VOID(check_table(setup));
  // The table is that of rank 0, and all know it, whichever of them is rank 0 of a split.
  std::vector<std::string> cards;
  for (const RankHandle& rank : ranks)
    cards.push_back(card_text(rank.gpu, rank.uuid, TableText{ranks.front().from, ranks.front().table}));
  std::vector<headrace_bytes_v1> handles;
  return connected_without_store(parts_, setup, std::move(cards), [&](std::size_t candidate) -> Part::Make {
    Part* const part = part_of(candidate);
    const std::string& name = parts_.candidates[candidate].name;
    const bool all =
        std::ranges::all_of(ranks, [&](const auto& rank) { return rank.backends.contains(name); });
    if (part == nullptr || !part->reconfigures() || !all) return nullptr;
    return [&, part](const auto& table, const Setup& made, void** comm, headrace_text_v1* why) {
      handles.clear();
      for (const RankHandle& rank : ranks) {
        const std::string& handle = rank.backends.at(name);
        handles.push_back({handle.data(), handle.size()});
      }
      return table.reconfigure(part->handle(), uuid.c_str(), handles.data(), &made, comm, why);
    };
  });
}

}  // namespace headrace::choice
