// SPDX-License-Identifier: Apache-2.0
#include "fabric/carrier.hpp"

#include <algorithm>

namespace headrace::fabric {
namespace {

constexpr std::uint64_t rest_without_posts_ns = 50'000'000;
constexpr std::size_t most_regions = 256;  // of a peer, that no post uses

Error canceled(std::string why) { return Error{Code::canceled, std::move(why), no_page}; }

}  // namespace

Result<std::unique_ptr<Carrier>> Carrier::open(std::vector<std::unique_ptr<rail::Provider>> providers,
                                               Setup setup) {
  std::vector<rail::Provider*> plain;
  for (const auto& provider : providers) plain.push_back(provider.get());
  std::unique_ptr<Carrier> made(new Carrier(std::move(setup), std::move(plain)));
  HEADRACE_TRY(engine,
               rail::Engine::open(std::move(providers), *made, *made->setup_.clock, made->setup_.links));
  made->engine_ = std::move(engine);
  made->nics_ = made->engine_->address();
  return made;
}

// ------------------------------------------------------------------ memory

Result<rail::LocalRegion> Carrier::register_memory(const rail::Memory& memory) {
  const std::lock_guard lock(engine_mutex_);
  if (engine_ == nullptr) return make_error(Code::invalid_argument, "the fabric is closed: open another");
  return engine_->register_memory(memory);
}

void Carrier::deregister(const rail::LocalRegion& region) {
  const std::lock_guard lock(engine_mutex_);
  if (engine_ != nullptr) engine_->deregister(region);
}

void Carrier::quiet(const std::shared_ptr<Memory>& memory, std::function<void()> quiet) {
  std::set<Work*> users;
  for (const auto& [request, part] : parts_)
    if (part->setup.here == memory) users.insert(part->work.get());
  waiting_for_memory_.emplace_back(memory, std::move(quiet));
  for (Work* const work : users) cancel(*work, canceled("its memory was deregistered"));
  settle();
  tell_if_quiet(memory);
}

void Carrier::tell_if_quiet(const std::shared_ptr<Memory>& memory) {
  if (memory->parts > 0) return;
  std::erase_if(waiting_for_memory_, [&](const auto& each) {
    if (each.first != memory) return false;
    each.second();
    return true;
  });
}

void Carrier::when_closed_by_peers(const std::shared_ptr<Memory>& memory, std::function<void()> closed) {
  open_at_peers_.emplace_back(memory, std::move(closed));
}

bool Carrier::is_open_at_peers(const Memory& memory) const {
  for (std::size_t nic = 0; nic < providers_.size(); ++nic)
    if (memory.region.keys[nic] != rail::no_key && providers_[nic]->is_open_at_peers(memory.region.ids[nic]))
      return true;
  return false;
}

void Carrier::look_at_open_memory() {
  std::erase_if(open_at_peers_, [this](const auto& each) {
    if (is_open_at_peers(*each.first)) return false;
    each.second();
    return true;
  });
}

// ------------------------------------------------------------------ posts

void Carrier::post(const std::shared_ptr<Work>& work) {
  works_.emplace(work.get(), work);
  if (work->setup.deadline_ns != UINT64_MAX) deadlines_.emplace(work->setup.deadline_ns, work.get());
  const auto parts = work->run.parts;
  for (const auto& part : parts) {
    if (part->setup.here != nullptr) ++part->setup.here->parts;
    parts_.emplace(&part->request(), part);
    if (auto begun = begin(part); !begun)
      ended_.push_back({part, {begun.code()}, std::move(begun.error().message)});
  }
  settle();
  finish_if_over(*work);  // a barrier without peers
}

Result<void> Carrier::begin(const std::shared_ptr<Part>& part) {
  if (part->work->run.cause) return *part->work->run.cause;
  if (part->setup.here != nullptr && part->setup.here->gone) return canceled("its memory was deregistered");
  if (part->setup.kind != Part::Kind::receive) {
    HEADRACE_TRY(peer, peer_at(part->setup.owner));
    part->link = peer->link;
    if (part->setup.there != nullptr) {
      HEADRACE_TRY(region, region_of(*peer, *part->setup.there));
      part->aim(*region);
    }
  }
  if (part->setup.kind == Part::Kind::send) {
    send(part);
    return {};
  }
  const Status started = start(*part);
  if (started.ok()) return {};
  const auto lost = lost_.find(part->link);
  if (lost != lost_.end()) return make_error(started.code, "{}", lost->second);
  return make_error(started.code, "{}", code_sentence(started.code));
}

Status Carrier::start(Part& part) {
  if (part.setup.kind == Part::Kind::move) return part.link->post(part.request(), part.setup.plan);
  const rail::LocalRegion* region = &part.setup.here->region;
  std::uint64_t offset = part.setup.here_rows.base;
  if (part.setup.staged != nullptr) {
    region = &part.setup.staged->region;
    offset = 0;
  }
  return engine_->post_receive({region, offset, part.setup.page_bytes, part.token(), nullptr, false});
}

/// Asks that it ends.
void Carrier::stop(Part& part) {
  if (part.setup.kind == Part::Kind::receive) return engine_->cancel_receive(part.token());
  if (part.link == nullptr) return;
  const std::uint64_t now = setup_.clock->now_ns();
  if (part.setup.kind == Part::Kind::move) return part.link->cancel(part.request(), now);
  if (!stop_waiting(part)) part.link->cancel_send(part.token(), now);
}

Result<Carrier::Peer*> Carrier::peer_at(const NicList& owner) {
  Peer& peer = peers_[owner];
  if (peer.link != nullptr) return &peer;
  auto link = engine_->connect(owner);
  if (!link) {
    peers_.erase(owner);
    return std::move(link).error();
  }
  peer.link = *link;
  links_.insert(*link);
  return &peer;
}

Result<KnownRegion*> Carrier::region_of(Peer& peer, const DescriptorParts& there) {
  if (const auto known = peer.regions.find(there.keys); known != peer.regions.end())
    return known->second.get();
  HEADRACE_TRY(loaded, rail::Engine::load(there.keys));
  if (peer.regions.size() >= most_regions) drop_unused_regions(peer);
  auto made = std::make_unique<KnownRegion>();
  static_cast<rail::RemoteRegion&>(*made) = std::move(loaded);
  return peer.regions.emplace(there.keys, std::move(made)).first->second.get();
}

/// Peers may register memory anew for each post.
void Carrier::drop_unused_regions(Peer& peer) {
  std::erase_if(peer.regions, [&](const auto& each) {
    if (each.second->parts > 0) return false;
    peer.link->unload(*each.second);
    return true;
  });
}

void Carrier::peers_have_told(Work& work) {
  work.run.waits_for_peers = false;
  finish_if_over(work);
}

void Carrier::cancel(Work& work, const Error& cause) {
  if (!works_.contains(&work) || work.run.cause) return;
  stop(work, cause);
  work.canceling();
  const auto parts = work.run.parts;
  for (const auto& part : parts) stop(*part);
  settle();
  finish_if_over(work);
}

/// What ends without success from now on ends for this cause.
void Carrier::stop(Work& work, const Error& cause) {
  if (!work.run.cause) work.run.cause = cause;
  if (std::exchange(work.run.waits_for_peers, false) && !work.run.failed)
    work.run.failed = Error(cause).within(work.setup.what);
}

/// How many were over. What the cancels have to say leaves with the next poll.
std::size_t Carrier::look_at_deadlines() {
  const std::uint64_t now = setup_.clock->now_ns();
  std::size_t over = 0;
  for (; !deadlines_.empty() && deadlines_.begin()->first <= now; ++over) {
    Work& work = *deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    cancel(work, make_error(Code::timed_out, "its time was over"));
  }
  return over;
}

// ------------------------------------------------------------------ links

void Carrier::connect(const NicList& owner) {
  static_cast<void>(peer_at(owner));  // a post to it says why not
  settle();
}

void Carrier::forget(const NicList& owner) {
  const auto at = peers_.find(owner);
  if (at == peers_.end()) return;
  rail::Link* const link = at->second.link;
  for (const auto& [request, part] : parts_)
    if (part->link == link) part->cause = canceled("its peer was forgotten");
  leaving_.push_back(std::move(at->second));
  peers_.erase(at);  // a later post makes a new link
  link->close("the peer was forgotten here", setup_.clock->now_ns());
  settle();
}

// ------------------------------------------------------------------ what the engine tells

void Carrier::ended(rail::Link& /*link*/, rail::Request& request, Status status) {
  const auto at = parts_.find(&request);
  if (at != parts_.end()) ended_.push_back({at->second, status, std::string(request.reason())});
}

void Carrier::counted(rail::Link& /*link*/, const rail::CountedAt& counted) {
  setup_.expectations->arrived({counted.immediate, counted.scope}, counted.amount);
}

std::shared_ptr<Part> Carrier::part_of(std::uint64_t token) const {
  const auto at = parts_.find(reinterpret_cast<const rail::Request*>(static_cast<std::uintptr_t>(token)));
  return at == parts_.end() ? nullptr : at->second;
}

void Carrier::sent(rail::Link& /*link*/, std::uint64_t token, Status status, const std::string& why) {
  if (auto part = part_of(token)) ended_.push_back({std::move(part), status, why});
}

void Carrier::received(rail::Link* /*link*/, std::uint64_t token, std::uint64_t bytes, Status status) {
  auto part = part_of(token);
  if (part == nullptr) return;
  if (status.ok()) part->work->received(bytes);
  ended_.push_back({std::move(part), status, {}});
}

void Carrier::lost(rail::Link& link, const std::string& why) { lost_[&link] = why; }

/// Does what the engine's calls have told.
void Carrier::settle() {
  while (!ended_.empty() || !lost_.empty()) {
    const auto ended = std::exchange(ended_, {});
    for (const Ended& each : ended) part_ended(each);
    if (ended_.empty() && !lost_.empty()) forget_lost_links();
  }
}

// ------------------------------------------------------------------ ends

void Carrier::part_ended(const Ended& ended) {
  if (begin_copy_into_gpu(ended)) return;
  const std::shared_ptr<Part>& part = ended.part;
  if (parts_.erase(&part->request()) == 0) return;
  const std::shared_ptr<Work> work = std::exchange(part->work, nullptr);
  std::erase(work->run.parts, part);
  if (part->aimed != nullptr) --part->aimed->parts;
  if (!ended.status.ok() && !work->run.failed) {
    const auto lost = lost_.find(part->link);
    std::string why = ended.why;
    if (why.empty()) why = lost != lost_.end() ? lost->second : std::string(code_sentence(ended.status.code));
    Error error{ended.status.code, std::move(why), ended.status.page};
    if (work->run.cause) error = *work->run.cause;
    if (part->cause) error = *part->cause;
    const std::string peer = part->setup.owner.empty() ? "from any peer" : "to " + name_of(part->setup.owner);
    work->run.failed = std::move(error).within(fmt::format("{} {}", work->setup.what, peer));
  }
  if (part->setup.staged != nullptr && !part->setup.staged->goes_out())
    deregister(part->setup.staged->region);
  give_staged_memory_back(*part);
  finish_if_over(*work);
  if (part->setup.here == nullptr) return;
  --part->setup.here->parts;
  tell_if_quiet(part->setup.here);
}

void Carrier::finish_if_over(Work& work) {
  const auto at = works_.find(&work);
  if (at == works_.end() || !work.run.parts.empty()) return;
  if (work.run.waits_for_peers && !work.run.failed) return;
  const std::shared_ptr<Work> kept = std::move(at->second);
  works_.erase(at);
  deadlines_.erase({work.setup.deadline_ns, &work});
  if (work.run.when_over) std::exchange(work.run.when_over, nullptr)();
  Error error{Code::ok, {}, no_page};
  if (work.run.failed) error = std::move(*work.run.failed);
  ++(error.code == Code::ok ? setup_.tally->done : setup_.tally->failed);
  work.end(std::move(error));
}

/// A later post makes a new link.
void Carrier::forget_lost_links() {
  const auto lost = std::exchange(lost_, {});
  for (const auto& [link, why] : lost) end_line(*link, why);
  std::erase_if(peers_, [&](const auto& peer) { return lost.contains(peer.second.link); });
  std::erase_if(leaving_, [&](const Peer& peer) { return lost.contains(peer.link); });
  for (const auto& [link, why] : lost) {
    links_.erase(link);
    engine_->forget(*link);
  }
}

// ------------------------------------------------------------------ progress

std::size_t Carrier::poll() {
  const std::size_t events = engine_->poll();
  settle();
  if (!open_at_peers_.empty()) look_at_open_memory();
  const std::size_t copies = look_at_copies();
  return events + copies + look_at_deadlines();
}

bool Carrier::arm() {
  return copies_.empty() && std::all_of(providers_.begin(), providers_.end(), [](rail::Provider* each) {
           return each->descriptor() < 0 || each->arm();
         });
}

std::vector<int> Carrier::descriptors() const {
  std::vector<int> all;
  for (const rail::Provider* const each : providers_) all.push_back(each->descriptor());
  return all;
}

std::uint64_t Carrier::next_look_ns() const {
  const std::uint64_t now = setup_.clock->now_ns();
  std::uint64_t next = UINT64_MAX;
  if (!links_.empty()) {
    // An engine that rests for half of `silent_after` takes itself for one that was stopped.
    const auto longest = static_cast<std::uint64_t>(setup_.links.silent_after.count()) / 4;
    next = std::min(engine_->next_ns(), now + longest);
    if (parts_.empty()) next = std::max(next, now + std::min(rest_without_posts_ns, longest));
  }
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  return next;
}

std::vector<rail::Health> Carrier::health() const {
  std::vector<rail::Health> all;
  for (const rail::Provider* const each : providers_) all.push_back(each->health());
  return all;
}

std::size_t Carrier::held() const {
  std::size_t regions = 0;
  for (const auto& [owner, peer] : peers_) regions += peer.regions.size();
  return works_.size() + parts_.size() + links_.size() + leaving_.size() + regions;
}

// ------------------------------------------------------------------ the end

void Carrier::begin_close() {
  const auto works = works_;
  for (const auto& [plain, work] : works) cancel(*work, canceled("the fabric was closed"));
}

bool Carrier::is_quiet() const {
  return works_.empty() &&
         std::none_of(links_.begin(), links_.end(), [](const rail::Link* link) { return link->sends(); });
}

void Carrier::close() {
  {
    const std::lock_guard lock(engine_mutex_);
    if (engine_ == nullptr) return;
    engine_.reset();  // with it all NICs
  }
  links_.clear();
  lost_.clear();
  lines_.clear();
  for (const auto& part : copies_) part->setup.staged->wait();
  copies_.clear();
  const Error cause = canceled("the fabric was closed");
  const auto works = works_;
  for (const auto& [plain, work] : works) stop(*work, cause);
  for (const auto& [request, part] : parts_) ended_.push_back({part, {Code::canceled}, {}});
  settle();
  for (const auto& [plain, work] : works) finish_if_over(*work);
  peers_.clear();
  leaving_.clear();
  for (const auto& [memory, quiet] : waiting_for_memory_) quiet();
  waiting_for_memory_.clear();
  for (const auto& [memory, closed] : open_at_peers_) closed();
  open_at_peers_.clear();
}

}  // namespace headrace::fabric
