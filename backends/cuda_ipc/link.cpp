// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/link.hpp"

#include "backends/cuda_ipc/request.hpp"
#include "base/hash.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <thread>

namespace headrace::cuda_ipc {
namespace {

constexpr auto link_poll_interval = std::chrono::microseconds(20);

/// What may wait for a peer that reads nothing: one of each for a request.
enum class Named : std::uint64_t { move = 1, go = 2 };
host_link::MessageName name_of(Named what, std::uint32_t number) {
  return static_cast<std::uint64_t>(what) << 32U | number;
}

}  // namespace

// ------------------------------------------------------------------ the peer's regions

std::shared_ptr<PeerRegion> Link::region(std::uint32_t id) {
  const std::scoped_lock lock(regions_mutex_);
  std::weak_ptr<PeerRegion>& known = regions_[id];
  std::shared_ptr<PeerRegion> region = known.lock();
  if (region == nullptr) {
    // The entry goes with the last handle; no thread holds the last one and this lock at once.
    const auto forget = [link = weak_from_this(), id](PeerRegion* gone) {
      delete gone;
      if (const auto self = link.lock()) {
        Link& own = static_cast<Link&>(*self);
        const std::scoped_lock own_lock(own.regions_mutex_);
        const auto entry = own.regions_.find(id);
        if (entry != own.regions_.end() && entry->second.expired()) own.regions_.erase(entry);
      }
    };
    region = std::shared_ptr<PeerRegion>(new PeerRegion(id), forget);
    known = region;
  }
  return region;
}

std::shared_ptr<PeerRegion> Link::known_region(std::uint32_t id) {
  const std::scoped_lock lock(regions_mutex_);
  const auto known = regions_.find(id);
  return known == regions_.end() ? nullptr : known->second.lock();
}

PeerRegion::Found Link::reach(PeerRegion& region, int device) {
  PeerRegion::Found found = region.find(device);
  if (found.reach != PeerRegion::Reach::unasked) return found;
  found.reach = PeerRegion::Reach::asked;
  const Want want{region.id(), static_cast<std::uint32_t>(device)};
  const std::lock_guard lock(control_mutex());
  // What is said before the greeting would not be understood.
  if (is_introduced())
    send(encode(want));
  else
    unsent_.push_back(want);
  return found;
}

/// Before the greeting nothing has been answered, and what the peer has asked for by then will be refused.
void Link::tell_gone(std::uint32_t region_id) {
  const std::lock_guard lock(control_mutex());
  if (is_introduced() && wanted_.erase(region_id) > 0) send(encode(Gone{region_id}));
}

std::uint32_t Link::tell_move(UniqueFd file, std::uint32_t end_word) {
  const std::uint32_t number = next_move_.fetch_add(1);
  auto kept = std::make_shared<const UniqueFd>(std::move(file));
  const std::lock_guard lock(control_mutex());
  const int descriptor = kept->get();
  send(encode(Move{number, end_word}), {descriptor}, {std::move(kept)}, name_of(Named::move, number));
  return number;
}

EndWordsView::Word Link::take_end_word() {
  const std::scoped_lock lock(words_mutex_);
  return end_words_ != nullptr ? end_words_->take() : EndWordsView::Word();
}

/// It says no more than that the file is to be looked at, so one that has not left does for this post, too.
void Link::tell_go(std::uint32_t number) {
  const std::lock_guard lock(control_mutex());
  const host_link::MessageName name = name_of(Named::go, number);
  if (!waits(name)) send(encode(Go{number}), {}, {}, name);
}

void Link::tell_drop(std::uint32_t number) {
  if (usable()) note(LeavingMove{number});
}

void Link::say_first() {
  for (const Want& want : std::exchange(unsent_, {})) send(encode(want));
  attend();  // the peer's questions have waited for this, too
}

// ------------------------------------------------------------------ what the peer says

Result<void> Link::on_other(const host_link::Other& message, std::vector<UniqueFd> descriptors) {
  HEADRACE_TRY(read, decode(message, descriptors.size()));
  if (const auto* const pieces = std::get_if<Pieces>(&read))
    return on_pieces(*pieces, std::move(descriptors));
  if (incoming_) return make_error(Code::corrupt, "region {} lacks pieces", incoming_->offer.region_id);
  if (const auto* const offer = std::get_if<Offer>(&read)) {
    if (offer->pieces == 0)
      note(WholeOffer{*offer, {}});
    else
      incoming_ = WholeOffer{*offer, {}};
  }
  if (const auto* const want = std::get_if<Want>(&read)) {
    wanted_[want->region_id].insert(want->device);
    note(*want);
  }
  if (const auto* const refused = std::get_if<Refused>(&read)) note(*refused);
  if (const auto* const gone = std::get_if<Gone>(&read)) note(*gone);
  if (const auto* const by_owner = std::get_if<ByOwner>(&read))
    note(LeftToOwner{*by_owner, std::move(descriptors[0])});
  if (const auto* const move = std::get_if<Move>(&read)) note(ComingMove{*move, std::move(descriptors[0])});
  if (const auto* const go = std::get_if<Go>(&read)) note(*go);
  if (const auto* const drop = std::get_if<Drop>(&read)) note(*drop);
  return {};
}

Result<void> Link::on_pieces(const Pieces& pieces, std::vector<UniqueFd> descriptors) {
  if (!incoming_ || incoming_->pieces.size() + pieces.bytes.size() > incoming_->offer.pieces)
    return make_error(Code::corrupt, "{} pieces came that belong to no region", pieces.bytes.size());
  for (std::size_t i = 0; i < pieces.bytes.size(); ++i)
    incoming_->pieces.push_back({std::move(descriptors[i]), static_cast<std::size_t>(pieces.bytes[i])});
  if (incoming_->pieces.size() < incoming_->offer.pieces) return {};
  note(std::move(*incoming_));
  incoming_.reset();
  return {};
}

void Link::note(Event event) {
  {
    const std::scoped_lock lock(events_mutex_);
    events_.push_back(std::move(event));
  }
  attend();
}

void Link::closed() {
  const Error why{Code::peer_lost, fmt::format("the link to peer {} was closed", peer_name())};
  std::vector<std::shared_ptr<PeerRegion>> all;
  {
    const std::scoped_lock lock(regions_mutex_);
    for (const auto& [id, known] : regions_)
      if (auto region = known.lock()) all.push_back(std::move(region));
  }
  for (const auto& region : all) region->forget(why);
  copies_.clear();
  for (Request* const request : take_starved()) request->unref();  // they have ended
  const std::scoped_lock lock(events_mutex_);
  events_.clear();
  incoming_.reset();
}

// ------------------------------------------------------------------ what takes the driver's time

std::vector<Link::Event> Link::take_events() {
  {
    // Answers to the peer's questions wait until we have said who we are.
    const std::lock_guard lock(control_mutex());
    if (!is_introduced()) return {};
  }
  const std::scoped_lock lock(events_mutex_);
  return std::exchange(events_, {});
}

std::uint32_t Link::attended() {
  std::vector<Event> events = take_events();
  for (Event& event : events) std::visit([this](auto& one) { handle(one); }, event);
  if (!events.empty()) answers_.fetch_add(1);
  if (hungry_.exchange(false) || !events.empty()) feed_starved();
  return static_cast<std::uint32_t>(events.size());
}

/// Whether it wants what no GPU but ours reaches.
bool Link::leaves_to_us(const Want& want) const {
  const auto region = instance_.region(want.region_id);
  return region != nullptr && region->gpu() == nullptr && region->memory_fd() < 0;
}

Result<void> Link::send_by_owner(const Want& want) {
  HEADRACE_TRY(words, copies_.end_words());
  const int descriptor = words->get();
  const std::lock_guard lock(control_mutex());
  send(encode(ByOwner{want.region_id, want.device}), {descriptor}, {std::move(words)});
  return {};
}

void Link::handle(const Want& want) {
  if (leaves_to_us(want)) {
    if (auto sent = send_by_owner(want); !sent) send_refusal(want, std::move(sent).error());
    return;
  }
  auto offered = offer(want);
  if (offered)
    send_offer(std::move(*offered));
  else
    send_refusal(want, std::move(offered).error());
}

Result<WholeOffer> Link::offer(const Want& want) {
  const auto region = instance_.region(want.region_id);
  if (region == nullptr)
    return make_error(Code::not_found, "region {} of agent {} is not registered", want.region_id,
                      instance_.name);
  return region->gpu() != nullptr ? offer_gpu_memory(want, *region) : offer_host_memory(want, *region);
}

Result<WholeOffer> Link::offer_host_memory(const Want& want, const Region& region) {
  struct stat file {};
  if (::fstat(region.memory_fd(), &file) != 0)
    return os_error(errno, "look at the memory file of region {}", want.region_id);
  UniqueFd descriptor(::fcntl(region.memory_fd(), F_DUPFD_CLOEXEC, 0));
  if (!descriptor) return os_error(errno, "share the memory file of region {}", want.region_id);
  const std::array<std::uint64_t, 2> identity{file.st_dev, file.st_ino};
  WholeOffer whole;
  whole.offer.region_id = want.region_id;
  whole.offer.device = want.device;
  whole.offer.allocation = hash64(std::as_bytes(std::span(identity)));
  whole.offer.address = region.address();
  whole.offer.offset = region.memory_offset();
  whole.offer.bytes = region.length();
  whole.offer.pieces = 1;
  whole.pieces.push_back({std::move(descriptor), static_cast<std::size_t>(file.st_size)});
  return whole;
}

Result<WholeOffer> Link::offer_gpu_memory(const Want& want, const Region& region) {
  HEADRACE_TRY_VOID(region.check_unchanged());
  const gpu::Device& device = *region.gpu()->device;
  WholeOffer whole;
  Offer& offer = whole.offer;
  offer.region_id = want.region_id;
  offer.device = want.device;
  offer.address = region.address();
  offer.bytes = region.length();
  offer.uuid = device.info().uuid;
  HEADRACE_TRY(info, gpu::describe_allocation(device, region.address()));
  // A process is refused its own handles, but not its own descriptors.
  if (process().is_this_one() && info.sharing != gpu::Sharing::descriptor) return whole;
  HEADRACE_TRY(shared, gpu::share_memory(device, region.address(), region.length()));
  offer.offset = shared.offset;
  if (shared.sharing == gpu::Sharing::descriptor) {
    offer.allocation = region.buffers();
    offer.pieces = static_cast<std::uint32_t>(shared.pieces.size());
    whole.pieces = std::move(shared.pieces);
    return whole;
  }
  HEADRACE_TRY(proof, instance_.proof(*region.gpu()));
  offer.allocation = info.buffer_id;
  offer.handle = shared.handle;
  offer.proof = proof->handle();
  offer.nonce = proof->nonce();
  return whole;
}

void Link::send_offer(WholeOffer offered) {
  const std::lock_guard lock(control_mutex());
  send(encode(offered.offer));
  for (std::size_t i = 0; i < offered.pieces.size(); i += max_pieces_in_message) {
    Pieces pieces;
    std::vector<int> descriptors;
    std::vector<host_link::SharedFd> kept;
    for (std::size_t k = i; k < std::min(offered.pieces.size(), i + max_pieces_in_message); ++k) {
      pieces.bytes.push_back(offered.pieces[k].bytes);
      kept.push_back(std::make_shared<const UniqueFd>(std::move(offered.pieces[k].descriptor)));
      descriptors.push_back(kept.back()->get());
    }
    send(encode(pieces), std::move(descriptors), std::move(kept));
  }
}

void Link::send_refusal(const Want& want, Error error) {
  const std::lock_guard lock(control_mutex());
  // Another of its GPUs may have been offered the region.
  if (const auto wanted = wanted_.find(want.region_id); wanted != wanted_.end()) {
    wanted->second.erase(want.device);
    if (wanted->second.empty()) wanted_.erase(wanted);
  }
  send(encode(Refused{want.region_id, want.device, error.code, std::move(error.message)}));
}

void Link::handle(WholeOffer& offered) {
  const Offer offer = offered.offer;
  const int device = static_cast<int>(offer.device);
  const auto region = known_region(offer.region_id);
  if (region == nullptr || !region->awaits(device)) return;  // unloaded in the meantime
  const auto gpu = instance_.gpus.open(device);
  if (!gpu) return region->answered(device, gpu.error());
  const bool by_address = process().is_this_one() && offer.pieces == 0;
  auto memory = by_address ? Imports::reach(**gpu, offer) : imports_.open(**gpu, std::move(offered));
  if (!memory)
    memory = std::move(memory).error().within(fmt::format("region {} of peer {} on {}", offer.region_id,
                                                          peer_name(),
                                                          offer.is_host_memory() ? "its host" : offer.uuid));
  region->answered(device, std::move(memory));
}

void Link::handle(const Refused& refused) {
  const auto region = known_region(refused.region_id);
  const int device = static_cast<int>(refused.device);
  if (region != nullptr && region->awaits(device))
    region->answered(device, Error{refused.code, fmt::format("peer {} says: {}", peer_name(), refused.text)});
}

void Link::handle(const LeftToOwner& left) {
  {
    const std::scoped_lock lock(words_mutex_);
    if (end_words_ == nullptr) {
      auto view = EndWordsView::open(left.end_words.get());
      if (!view) return lose({view.code()}, fmt::format("from {}: {}", peer_text(), view.error().message));
      end_words_ = std::move(*view);
    }
  }
  const auto region = known_region(left.answer.region_id);
  const int device = static_cast<int>(left.answer.device);
  if (region != nullptr && region->awaits(device)) region->answered_by_owner(device);
}

void Link::handle(const ComingMove& coming) {
  if (const auto taken = copies_.take(coming.move.number, coming.move.end_word, coming.file); !taken)
    lose({taken.code()}, fmt::format("from {}: {}", peer_text(), taken.error().message));
}

void Link::handle(const LeavingMove& leaving) {
  const std::lock_guard lock(control_mutex());
  (void)take_back(name_of(Named::go, leaving.number));
  if (!take_back(name_of(Named::move, leaving.number))) send(encode(Drop{leaving.number}));
}

void Link::handle(const Gone& gone) {
  copies_.forget(gone.region_id);
  if (const auto region = known_region(gone.region_id))
    region->forget(make_error(Code::not_found,
                              "region {} of peer {} was deregistered; fetch the metadata again",
                              gone.region_id, peer_name()));
}

// ------------------------------------------------------------------ posts that wait for memory

void Link::add_starved(Request* request, std::uint64_t answers_seen) {
  request->ref();
  {
    const std::scoped_lock lock(starved_mutex_);
    starved_.push_back(request);
  }
  if (answers_.load() == answers_seen) return;
  hungry_.store(true);
  attend();
}

std::vector<Request*> Link::take_starved() {
  const std::scoped_lock lock(starved_mutex_);
  return std::exchange(starved_, {});
}

void Link::feed_starved() {
  for (Request* const request : take_starved()) {
    request->resume();
    request->unref();
  }
}

void Link::await_posts() {
  if (instance_.posts.progress() == 0) std::this_thread::sleep_for(link_poll_interval);
}

}  // namespace headrace::cuda_ipc
