// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/backend.hpp"

#include "base/backend_options.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"

#include <sys/mman.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace headrace::fake {
namespace {

constexpr std::uint64_t max_message_bytes =
    65'536 + 16;                                     // what an agent may send: 64 KiB and its own 16 bytes
constexpr std::uint32_t count_channel = UINT32_MAX;  // of the counts of posts; the host does not use it
constexpr std::uint64_t max_undelivered = 256;  // messages on one link that the far host has not heard yet
constexpr std::uint64_t run_bytes = 256 << 10;  // copied between two looks at cancel

constexpr std::array<headrace_option_v1, 4> option_rows{{
    {"completion", "progress", "text",
     "who does the work: inline (the caller that causes it), progress (whoever calls progress), thread (one "
     "of its own)",
     0, 0},
    {"queue_depth", "1024", "count", "posts in flight of one instance, beyond which post answers would_block",
     0, 0},
    {"faults", "", "text",
     "what goes wrong: drop, delay:TIME, duplicate, reorder, kill:PAGE, partial:BYTES, deny; with @N, @N..M "
     "or @N.. for the N-th to the M-th time",
     0, 0},
    {"objects", "", "list", "the objects that a query finds: KEY=BYTES, several with commas", 0, 0},
}};

/// The network of all instances that one process opens through the plugin. Never destroyed, for no plugin is
/// unloaded.
FakeNetwork& process_network() {
  static FakeNetwork* const network = new FakeNetwork;
  return *network;
}

bool inside(std::uint64_t offset, std::uint64_t bytes, std::uint64_t length) {
  return offset <= length && bytes <= length - offset;
}

}  // namespace

// ------------------------------------------------------------------------------------------------ life

std::span<const headrace_option_v1> FakeBackend::options() { return option_rows; }

Result<std::unique_ptr<FakeBackend>> FakeBackend::open(plugin::Host host, const plugin::CreateArgs& args) {
  return open(host, args, process_network(), std::make_shared<FaultScript>());
}

Result<std::unique_ptr<FakeBackend>> FakeBackend::open(plugin::Host host, const plugin::CreateArgs& args,
                                                       FakeNetwork& network,
                                                       std::shared_ptr<FaultScript> script) {
  BackendOptions options("fake", option_rows, args);
  constexpr std::array completions{Completion::caller, Completion::progress, Completion::thread};
  const Completion completion =
      completions.at(options.choice("completion", {"inline", "progress", "thread"}));
  HEADRACE_TRY(depth, options.checked(options.count("queue_depth", 1, UINT64_MAX)));
  HEADRACE_TRY(faults, FaultScript::parse(options.text("faults")));
  HEADRACE_TRY(objects, Objects::parse(options.text("objects")));
  script->add(faults);
  HEADRACE_TRY(epoll, Epoll::create());
  HEADRACE_TRY(bell, EventFd::create());
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer) return os_error(errno, "create a timer");
  HEADRACE_TRY_VOID(epoll.add(bell.fd(), EPOLLIN, 0));
  HEADRACE_TRY_VOID(epoll.add(timer.get(), EPOLLIN, 0));
  return std::unique_ptr<FakeBackend>(new FakeBackend(host, network, std::move(script), completion, depth,
                                                      std::move(objects), std::move(epoll), std::move(bell),
                                                      std::move(timer)));
}

FakeBackend::FakeBackend(plugin::Host host, FakeNetwork& network, std::shared_ptr<FaultScript> script,
                         Completion completion, std::uint64_t queue_depth, Objects objects, Epoll epoll,
                         EventFd bell, UniqueFd timer)
    : host_(host),
      network_(network),
      script_(std::move(script)),
      completion_(completion),
      queue_depth_(queue_depth),
      objects_(std::move(objects)),
      epoll_(std::move(epoll)),
      bell_(std::move(bell)),
      timer_(std::move(timer)) {
  {
    const Lock lock(network_.mutex_);
    number_ = network_.next_instance_++;
    network_.instances_.emplace(number_, this);
  }
  if (completion_ == Completion::thread) thread_ = std::thread([this] { work(); });
}

FakeBackend::~FakeBackend() {
  for (;;) {  // links that came in and were never accepted, or that the host forgot
    LinkEnd* link = nullptr;
    {
      const Lock lock(network_.mutex_);
      network_.instances_.erase(number_);  // nobody finds us from now on
      if (links_.empty()) break;
      link = links_.begin()->second.get();
    }
    disconnect(*link);
  }
  {
    Lock lock(network_.mutex_);
    stop_ = true;
    work_.notify_all();
    network_.changed_.wait(lock, [this] { return !draining_; });
  }
  if (thread_.joinable()) thread_.join();
  for (const auto& [address, mapped] : mappings_) ::munmap(mapped.first, mapped.second);
}

headrace_info_v1 FakeBackend::info() {
  headrace_info_v1 info{};
  info.struct_size = sizeof(info);
  info.abilities = HEADRACE_LOCAL | HEADRACE_REMOTE | HEADRACE_NOTIFY | HEADRACE_MAP | HEADRACE_REVOKE_SAFE |
                   HEADRACE_QUERY | HEADRACE_GRID | HEADRACE_COUNT;
  info.local_kinds = info.remote_kinds = memory_kinds;
  info.max_message_bytes = max_message_bytes;
  return info;
}

// ------------------------------------------------------------------------------------------------ links

Result<std::string> FakeBackend::connection_info() {
  return fmt::format("fake:{}:{}", network_.name(), number_);
}

Result<LinkEnd*> FakeBackend::connect(const headrace_connect_v1& args) {
  const std::string_view info(static_cast<const char*>(args.connection_info.data),
                              args.connection_info.length);
  const std::string here = fmt::format("fake:{}:", network_.name());
  if (!info.starts_with("fake:"))
    return make_error(Code::invalid_argument,
                      "connection information of {} bytes for {} is not a fake backend's", info.size(),
                      args.peer_name);
  if (!info.starts_with(here))
    return make_error(Code::not_supported, "{} is at \"{}\", and fake reaches only the instances at \"{}\"",
                      args.peer_name, info, here);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(info.data() + here.size(), info.data() + info.size(), number);
  if (error != std::errc() || end != info.data() + info.size())
    return make_error(Code::invalid_argument, "connection information \"{}\" for {} ends in no number", info,
                      args.peer_name);

  auto mine = std::make_shared<LinkEnd>();
  auto theirs = std::make_shared<LinkEnd>();
  {
    const Lock lock(network_.mutex_);
    const auto found = network_.instances_.find(number);
    if (found == network_.instances_.end())
      return make_error(Code::peer_lost, "{} at \"{}\" is gone", args.peer_name, info);
    FakeBackend* const peer = found->second;
    if (args.peer_incarnation != 0 && peer->host_.incarnation() != args.peer_incarnation)
      return make_error(Code::peer_lost,
                        "{} at \"{}\" is another life of it: incarnation {:x} instead of {:x}",
                        args.peer_name, info, peer->host_.incarnation(), args.peer_incarnation);
    mine->owner = theirs->peer = this;
    mine->peer = theirs->owner = peer;
    mine->other = theirs;
    theirs->other = mine;
    mine->token = args.link_token;
    links_.emplace(mine.get(), mine);
    peer->links_.emplace(theirs.get(), theirs);
    Event event;
    event.kind = Event::Kind::accept;
    event.link = theirs;
    peer->push(std::move(event));
  }
  settle();
  return mine.get();
}

void FakeBackend::accept(Lock& lock, const std::shared_ptr<LinkEnd>& link) {
  if (link->state != LinkState::connecting) {  // the other side has given it up already
    links_.erase(link.get());
    return;
  }
  const std::string peer_name(link->peer->host_.agent_name());
  const std::uint64_t incarnation = link->peer->host_.incarnation();
  ++link->busy;
  lock.unlock();
  const std::uint64_t token = host_.accepted(link.get(), peer_name, incarnation);
  lock.lock();
  --link->busy;
  network_.changed_.notify_all();
  const auto other = link->other.lock();
  if (token == 0) {
    link->state = LinkState::closed;
    link->broken = true;
    links_.erase(link.get());
    if (other) lose(*other, {Code::peer_lost}, fmt::format("{} refused the link", host_.agent_name()));
    return;
  }
  link->token = token;
  if (link->state != LinkState::connecting) return;  // lost meanwhile: the event that says so is on its way
  link->state = LinkState::open;
  if (!other || other->state != LinkState::connecting) return;
  Event event;
  event.kind = Event::Kind::ready;
  event.link = other;
  other->owner->push(std::move(event));
}

void FakeBackend::ready(Lock& lock, const std::shared_ptr<LinkEnd>& link) {
  if (link->state != LinkState::connecting) return;
  link->state = LinkState::open;
  ++link->busy;
  lock.unlock();
  const std::uint64_t now = host_.now_ns();
  host_.link_event(link->token, HEADRACE_LINK_READY, {}, "connected");
  lock.lock();
  --link->busy;
  network_.changed_.notify_all();
  for (const auto& request : std::exchange(link->until_ready, {})) schedule(request, now);
}

void FakeBackend::lose(LinkEnd& end, Status status, const std::string& text) {
  if (end.state == LinkState::lost || end.state == LinkState::closed) return;
  end.state = LinkState::lost;
  end.lost_status = status;
  end.lost_text = text;
  end.broken.store(true, std::memory_order_release);  // whoever sees it may read the two above
  Event event;
  event.kind = Event::Kind::lost;
  event.link = end.owner->links_.at(&end);
  end.owner->push(std::move(event));
}

void FakeBackend::lost(Lock& lock, const std::shared_ptr<LinkEnd>& link) {
  end_waiting(lock, *link, link->lost_status, link->lost_text);
  if (link->state == LinkState::closed) return;
  link->told_lost = true;
  if (link->token == 0) return;  // refused, or given up before it was accepted
  ++link->busy;
  lock.unlock();
  host_.link_event(link->token, HEADRACE_LINK_LOST, link->lost_status, link->lost_text);
  lock.lock();
  --link->busy;
  network_.changed_.notify_all();
}

void FakeBackend::end_waiting(Lock& lock, LinkEnd& link, Status status, const std::string& text) {
  for (;;) {  // the set changes while a post is being completed
    const auto waiting = std::find_if(link.in_flight.begin(), link.in_flight.end(), [](const auto& request) {
      return request->state == RequestState::waiting;
    });
    if (waiting == link.in_flight.end()) return;
    end(lock, *waiting, status, text);
  }
}

void FakeBackend::disconnect(LinkEnd& end) {
  {
    Lock lock(network_.mutex_);
    const auto found = links_.find(&end);
    if (found == links_.end()) return;  // came in, and was refused by the host just now
    const std::shared_ptr<LinkEnd> link = found->second;
    if (link->state != LinkState::lost) {
      link->lost_status = {Code::canceled};
      link->lost_text = "the link was disconnected";
    }
    link->state = LinkState::closed;
    link->broken.store(true, std::memory_order_release);
    if (const auto other = link->other.lock()) {
      other->peer = nullptr;
      lose(*other, {Code::peer_lost}, fmt::format("{} closed the link", host_.agent_name()));
    }
    end_waiting(lock, *link, {Code::canceled}, "the link was disconnected");
    network_.changed_.wait(lock, [&] { return link->busy == 0 && link->in_flight.empty(); });
    link->until_ready.clear();  // they hold the link, which holds them
    links_.erase(&end);
  }
  settle();
}

// ------------------------------------------------------------------------------------------------ regions

Result<Region*> FakeBackend::register_region(const headrace_region_v1& region) {
  if (region.kind != HEADRACE_DRAM)
    return make_error(Code::not_supported, "fake takes host memory only, region {} is of kind {}",
                      region.region_id, region.kind);
  if (region.address == 0 || region.length == 0 || region.address > UINT64_MAX - region.length)
    return make_error(Code::invalid_argument, "region {}: {} bytes at {:#x} are no memory", region.region_id,
                      region.length, region.address);
  auto made = std::make_shared<Region>();
  made->id = region.region_id;
  made->base = reinterpret_cast<std::byte*>(region.address);
  made->length = region.length;
  made->writable = (region.flags & HEADRACE_REGION_READ_ONLY) == 0;
  if (region.memory_fd >= 0) {
    made->memory_fd = ::fcntl(region.memory_fd, F_DUPFD_CLOEXEC, 0);
    if (made->memory_fd < 0) return os_error(errno, "keep the descriptor of region {}", region.region_id);
    made->memory_offset = region.memory_offset;
  }
  const Lock lock(network_.mutex_);
  if (!regions_by_id_.emplace(made->id, made).second)
    return make_error(Code::invalid_argument, "region {} is registered already: ids are never used twice",
                      region.region_id);
  regions_.emplace(made.get(), made);
  return made.get();
}

void FakeBackend::deregister_region(Region& handle) {
  std::shared_ptr<Region> region;
  {
    const Lock lock(network_.mutex_);
    const auto found = regions_.find(&handle);
    region = found->second;
    regions_by_id_.erase(region->id);
    regions_.erase(found);
  }
  const std::unique_lock alone(region->gate);  // waits for peers that are in the memory now
  region->gone = true;
}

Result<RemoteRegion*> FakeBackend::load_local(Region& region) {
  auto made = std::make_shared<RemoteRegion>();
  const Lock lock(network_.mutex_);
  made->own = regions_.at(&region);
  made->region_id = made->own->id;
  remotes_.emplace(made.get(), made);
  return made.get();
}

Result<RemoteRegion*> FakeBackend::load_remote(LinkEnd& link, const headrace_remote_region_v1& region) {
  if (region.public_data.length != 0)
    return make_error(Code::corrupt,
                      "region {} comes with {} bytes of public data, a fake instance gives out none",
                      region.region_id, region.public_data.length);
  auto made = std::make_shared<RemoteRegion>();
  made->region_id = region.region_id;
  const Lock lock(network_.mutex_);
  made->link = links_.at(&link);
  if (made->link->broken) return Error{made->link->lost_status.code, "load region: " + made->link->lost_text};
  remotes_.emplace(made.get(), made);
  return made.get();
}

void FakeBackend::unload(RemoteRegion& remote) {
  const Lock lock(network_.mutex_);
  remotes_.erase(&remote);
}

/// The region behind a remote handle, if its owner still has it.
std::shared_ptr<Region> FakeBackend::find_region(const RemoteRegion& remote) {
  if (remote.own) return remote.own;
  const auto other = remote.link->other.lock();
  if (!other || other->state == LinkState::closed) return nullptr;
  const auto& regions = other->owner->regions_by_id_;
  const auto found = regions.find(remote.region_id);
  return found != regions.end() ? found->second : nullptr;
}

Result<std::span<std::byte>> FakeBackend::map(RemoteRegion& remote, int device, unsigned access) {
  if (device >= 0)
    return make_error(Code::not_supported, "fake maps for the CPU only, not for device {}", device);
  const Lock lock(network_.mutex_);
  if (remote.link && remote.link->broken)
    return Error{remote.link->lost_status.code, "map: " + remote.link->lost_text};
  if (remote.link && remote.link->state == LinkState::connecting)
    return make_error(Code::would_block, "map region {}: its link is not ready yet", remote.region_id);
  const auto region = find_region(remote);
  if (!region)
    return make_error(Code::not_found, "map region {}: its owner does not have it any more",
                      remote.region_id);
  if (region->memory_fd < 0)
    return make_error(Code::not_supported,
                      "map region {}: only memory from allocate can be mapped, this was merely registered",
                      region->id);
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = region->memory_offset / page * page;
  const std::size_t skew = region->memory_offset - begin;
  const int protection = ((access & 1U) != 0 ? PROT_READ : 0) | ((access & 2U) != 0 ? PROT_WRITE : 0);
  void* const at = ::mmap(nullptr, skew + region->length, protection, MAP_SHARED, region->memory_fd,
                          static_cast<off_t>(begin));
  if (at == MAP_FAILED) return os_error(errno, "map {} bytes of region {}", region->length, region->id);
  auto* const address = static_cast<std::byte*>(at) + skew;
  mappings_.emplace(address, std::pair(at, skew + region->length));
  return std::span<std::byte>(address, region->length);
}

void FakeBackend::unmap(RemoteRegion& /*remote*/, void* address) {
  std::pair<void*, std::size_t> mapped;
  {
    const Lock lock(network_.mutex_);
    const auto found = mappings_.find(address);
    mapped = found->second;
    mappings_.erase(found);
  }
  ::munmap(mapped.first, mapped.second);
}

// ------------------------------------------------------------------------------------------------ requests

Result<Request*> FakeBackend::prepare(LinkEnd* link, const headrace_prepare_v1& args) {
  if (script_->next_preparation_denied())
    return make_error(Code::not_supported, "the fault script denies this preparation");
  auto request = std::make_shared<Request>();
  request->args = args;
  const Lock lock(network_.mutex_);
  if (link != nullptr) request->link = links_.at(link);
  if (request->link && request->link->broken)
    return Error{request->link->lost_status.code, "prepare: " + request->link->lost_text};
  requests_.emplace(request.get(), request);
  return request.get();
}

Status FakeBackend::post(Request& handle, const headrace_post_v1& args) {
  const std::uint64_t now = host_.now_ns();
  {
    const Lock lock(network_.mutex_);
    const std::shared_ptr<Request> request = requests_.at(&handle);
    if (request->state != RequestState::idle) return {Code::invalid_argument};
    LinkEnd* const link = request->link.get();
    if (link != nullptr && link->broken) return link->lost_status;
    const bool tells = args.has_message != 0 || args.has_immediate != 0;
    if (tells && link == nullptr) return {Code::invalid_argument};
    if (args.has_message != 0 && (args.message.length > max_message_bytes || args.channel == count_channel))
      return {Code::invalid_argument};
    if (posts_in_flight_ >= queue_depth_ || (tells && link->undelivered >= max_undelivered))
      return {Code::would_block};
    request->mishap = script_->next_action();
    request->state = RequestState::waiting;
    request->cancel = false;
    request->token = args.token;
    ++request->post_number;
    request->has_message = args.has_message != 0;
    if (request->has_message) {
      request->channel = args.channel;
      request->sequence = ++link->channels[args.channel].sent;
      request->message.assign(static_cast<const char*>(args.message.data), args.message.length);
      ++link->undelivered;
    }
    request->immediate = plugin::Immediate::of(args);
    if (request->immediate) ++link->undelivered;
    ++posts_in_flight_;
    if (link != nullptr) link->in_flight.insert(request);
    if (link != nullptr && link->state == LinkState::connecting)
      link->until_ready.push_back(request);
    else
      schedule(request, now);
  }
  settle();
  return {};
}

bool FakeBackend::poll(Request& handle) {
  if (completion_ != Completion::progress) return false;
  Lock lock(network_.mutex_);
  const std::shared_ptr<Request> request = requests_.at(&handle);
  const Mishap& mishap = request->mishap;
  if (request->state != RequestState::waiting || mishap.drop || mishap.reorder || mishap.delay_ns != 0)
    return false;
  if (request->link && request->link->state == LinkState::connecting) return false;
  run(lock, request);
  return true;
}

void FakeBackend::cancel(Request& handle) {
  {
    const Lock lock(network_.mutex_);
    const std::shared_ptr<Request> request = requests_.at(&handle);
    if (request->state == RequestState::idle) return;
    request->cancel = true;
    if (request->state == RequestState::waiting) push_run(request);  // wherever it waits: it ends now
  }
  settle();
}

void FakeBackend::release(Request& handle) {
  const Lock lock(network_.mutex_);
  requests_.erase(&handle);
}

void FakeBackend::schedule(const std::shared_ptr<Request>& request, std::uint64_t now) {
  if (request->state != RequestState::waiting) return;  // canceled while its link was not ready
  const Mishap& mishap = request->mishap;
  Event event;
  event.request = request;
  event.post_number = request->post_number;
  if (mishap.drop) return;
  if (mishap.delay_ns != 0) {
    delayed_.emplace(now + mishap.delay_ns, std::move(event));
    set_timer(now);
  } else if (mishap.reorder) {
    late_runs_.push_back(std::move(event));
    ring();
  } else {
    push(std::move(event));
  }
}

void FakeBackend::push_run(const std::shared_ptr<Request>& request) {
  Event event;
  event.request = request;
  event.post_number = request->post_number;
  push(std::move(event));
}

void FakeBackend::run(Lock& lock, const std::shared_ptr<Request>& request) {
  const std::shared_ptr<LinkEnd> link = request->link;
  if (request->cancel) return end(lock, request, {Code::canceled}, "canceled before it began");
  if (link && link->broken) return end(lock, request, link->lost_status, link->lost_text);
  request->state = RequestState::running;
  if (link) ++link->busy;
  lock.unlock();
  std::string text;
  const Status status = copy(*request, text);
  lock.lock();
  if (link) --link->busy;
  if (link && request->mishap.kill_page && status.code == Code::peer_lost && !link->broken) {
    if (const auto other = link->other.lock())
      lose(*other, {Code::peer_lost}, "the fault script killed the link");
    lose(*link, {Code::peer_lost}, "the fault script killed the link");
  }
  end(lock, request, status, text);
}

// By value: what the caller refers to may stand in a list that changes while the lock is let go of.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void FakeBackend::end(Lock& lock, std::shared_ptr<Request> request, Status status, const std::string& text) {
  const std::shared_ptr<LinkEnd> link = request->link;
  if (request->has_message) {
    Message message;
    message.channel = request->channel;
    message.sequence = request->sequence;
    message.nothing = !status.ok();
    message.bytes = std::move(request->message);
    Mishap on_the_way;  // delay and reorder have befallen the whole post
    on_the_way.duplicate = request->mishap.duplicate;
    send(*link, std::move(message), on_the_way, 0);
  }
  if (request->immediate) send_count(*link, *request, status);
  request->state = RequestState::idle;
  --posts_in_flight_;
  if (link) {
    link->in_flight.erase(request);
    ++link->busy;
  }
  const std::uint64_t token = request->token;
  lock.unlock();
  host_.completed(token, status, text);
  lock.lock();
  if (link) --link->busy;
  network_.changed_.notify_all();
}

/// Counts need no order among themselves. So a count takes its number when the post ends, and waits for no
/// earlier post.
void FakeBackend::send_count(LinkEnd& link, const Request& request, Status status) {
  if (!status.ok()) {
    --link.undelivered;
    return;
  }
  Message count;
  count.channel = count_channel;
  count.sequence = ++link.channels[count_channel].sent;
  count.bytes.assign(reinterpret_cast<const char*>(&*request.immediate), sizeof(plugin::Immediate));
  Mishap on_the_way;
  on_the_way.duplicate = request.mishap.duplicate;
  send(link, std::move(count), on_the_way, 0);
}

Status FakeBackend::copy(Request& request, std::string& text) {
  if (const Status status = check_remote(request, text); !status.ok()) return status;
  Status status = copy_once(request, text);
  if (status.ok() && request.mishap.duplicate) status = copy_once(request, text);
  return status;
}

/// Looks at every remote range before the first byte moves, as an owner does with the header of a write.
Status FakeBackend::check_remote(const Request& request, std::string& text) {
  const headrace_side_v1& side = *request.args.remote;
  const RemoteRegion* last = nullptr;
  std::uint64_t length = 0;
  for (std::uint64_t page = 0; page < request.args.count; ++page) {
    const RemoteRegion* const remote = &Handles::remote(side_region(side, page));
    if (remote != last) {
      const Lock lock(network_.mutex_);
      const auto region = find_region(*remote);
      if (!region) return gone(request, *remote, page, text);
      last = remote;
      length = region->length;
      if (request.args.op == HEADRACE_WRITE && !region->writable) {
        text = fmt::format("page {}: region {} is registered read-only", page, remote->region_id);
        return {Code::invalid_argument, 0, page};
      }
    }
    const std::uint64_t offset = offset_of(side.columns, page), bytes = remote_extent(request.args, page);
    if (inside(offset, bytes, length)) continue;
    text = fmt::format("page {}: {} bytes at {} reach beyond region {}, which has {}", page, bytes, offset,
                       remote->region_id, length);
    return {Code::invalid_argument, 0, page};
  }
  return {};
}

/// The region cannot be found: because its owner gave it up, or because the owner went and took the link
/// along.
Status FakeBackend::gone(const Request& request, const RemoteRegion& remote, std::uint64_t page,
                         std::string& text) {
  if (request.link && request.link->broken.load(std::memory_order_acquire))
    return broken_at(*request.link, page, text);
  text = fmt::format("page {}: its owner does not have region {} any more", page, remote.region_id);
  return {Code::not_found, 0, page};
}

Status FakeBackend::broken_at(const LinkEnd& link, std::uint64_t page, std::string& text) {
  text = link.lost_text;
  Status status = link.lost_status;
  status.page = page;
  return status;
}

Status FakeBackend::copy_once(Request& request, std::string& text) {
  const headrace_prepare_v1& args = request.args;
  const Mishap& mishap = request.mishap;
  PagePosition stop{args.count, 0};
  Status at_the_stop;
  if (mishap.kill_page && request.link && *mishap.kill_page < args.count) {
    stop = {*mishap.kill_page, 0};
    at_the_stop = {Code::peer_lost, 0, stop.page};
    text = fmt::format("the fault script killed the link at page {}", stop.page);
  }
  if (mishap.partial_bytes && *mishap.partial_bytes < args.bytes) {
    stop = position_at_byte(args, *mishap.partial_bytes);
    at_the_stop = {Code::backend_failed, 0, stop.page};
    text = fmt::format("the fault script stopped the copy after {} bytes", *mishap.partial_bytes);
  }
  PageCursor cursor(args, {0, 0}, stop, run_bytes);
  PageRun run;
  while (cursor.next(run)) {
    if (request.cancel) {
      text = fmt::format("canceled at page {}", run.first_page);
      return {Code::canceled, 0, run.first_page};
    }
    if (request.link && request.link->broken.load(std::memory_order_acquire))
      return broken_at(*request.link, run.first_page, text);
    const RemoteRegion& handle = Handles::remote(run.remote_region);
    std::shared_ptr<Region> region;
    {
      const Lock lock(network_.mutex_);
      region = find_region(handle);
    }
    if (!region) return gone(request, handle, run.first_page, text);
    std::byte* const local = Handles::region(run.local_region).base + run.local_offset;
    const std::shared_lock together(region->gate);
    if (region->gone) return gone(request, handle, run.first_page, text);
    std::byte* const remote = region->base + run.remote_offset;
    if (args.op == HEADRACE_READ)
      std::memmove(local, remote, run.bytes);
    else
      std::memmove(remote, local, run.bytes);
  }
  return at_the_stop;
}

// ------------------------------------------------------------------------------------------------ messages

Status FakeBackend::notify(LinkEnd& link, std::uint32_t channel, std::string_view bytes) {
  const std::uint64_t now = host_.now_ns();
  {
    const Lock lock(network_.mutex_);
    if (link.broken) return link.lost_status;
    if (bytes.size() > max_message_bytes || channel == count_channel) return {Code::invalid_argument};
    if (link.undelivered >= max_undelivered) return {Code::would_block};
    const Mishap mishap = script_->next_action();
    ++link.undelivered;
    Message message;
    message.channel = channel;
    message.sequence = ++link.channels[channel].sent;
    message.bytes = bytes;
    if (mishap.kill_page) {
      if (const auto other = link.other.lock())
        lose(*other, {Code::peer_lost}, "the fault script killed the link");
      lose(link, {Code::peer_lost}, "the fault script killed the link");
    } else {
      send(link, std::move(message), mishap, now);
    }
  }
  settle();
  return {};
}

void FakeBackend::send(LinkEnd& from, Message message, const Mishap& mishap, std::uint64_t now) {
  const auto to = from.other.lock();
  if (!to || from.broken) return;  // what was on its way is lost with the link
  Event event;
  event.kind = Event::Kind::message;
  event.link = to;
  event.message = std::move(message);
  if (mishap.duplicate) deliver(Event(event));
  if (mishap.delay_ns != 0) {
    delayed_.emplace(now + mishap.delay_ns, std::move(event));
    set_timer(now);
  } else if (mishap.reorder) {
    late_messages_.push_back(std::move(event));
    ring();
  } else {
    deliver(std::move(event));
    for (Event& late : std::exchange(late_messages_, {})) deliver(std::move(late));
  }
}

void FakeBackend::deliver(Event event) {
  if (event.link->state == LinkState::closed) return;
  FakeBackend& owner = *event.link->owner;
  owner.push(std::move(event));
}

/// Puts messages back into the order in which they were sent and gives each to the host once, whatever the
/// way did to them.
void FakeBackend::receive(Lock& lock, const std::shared_ptr<LinkEnd>& link, Message message) {
  LinkEnd::Channel& channel = link->channels[message.channel];
  const std::uint32_t number = message.channel;
  if (message.sequence < channel.expected) return;  // came before
  channel.early.emplace(message.sequence, std::move(message));
  for (;;) {
    const bool deaf = link->token == 0 || link->told_lost || link->state == LinkState::closed;
    const auto next = channel.early.find(channel.expected);
    if (deaf || next == channel.early.end()) return;
    const Message here = std::move(next->second);
    channel.early.erase(next);
    ++channel.expected;
    if (const auto other = link->other.lock()) --other->undelivered;
    if (here.nothing) continue;
    ++link->busy;
    lock.unlock();
    if (number == count_channel) {
      plugin::Immediate immediate;
      std::memcpy(&immediate, here.bytes.data(), sizeof immediate);
      host_.counted(link->token, immediate);
    } else {
      host_.received(link->token, number, here.bytes);
    }
    lock.lock();
    --link->busy;
    network_.changed_.notify_all();
  }
}

// ------------------------------------------------------------------------------------------------ time

void FakeBackend::push(Event event) {
  inbox_.push_back(std::move(event));
  if (completion_ == Completion::thread)
    work_.notify_one();
  else if (armed_)
    bell_.signal(), rung_ = true;
}

/// Something waits that only progress (or the instance's thread) sees to.
void FakeBackend::ring() {
  if (completion_ == Completion::thread) {
    work_.notify_one();
  } else if (completion_ == Completion::caller || armed_) {
    bell_.signal();
    rung_ = true;
  }
}

void FakeBackend::set_timer(std::uint64_t now) {
  if (completion_ == Completion::thread) {
    work_.notify_one();
    return;
  }
  if (delayed_.empty()) return;
  // A host whose clock is turned by hand may not be due when the timer rings: then it is set again.
  const std::uint64_t due = delayed_.begin()->first;
  const std::uint64_t wait = due > now ? due - now : 1;
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(wait / 1'000'000'000);
  when.it_value.tv_nsec = static_cast<long>(wait % 1'000'000'000);
  ::timerfd_settime(timer_.get(), 0, &when, nullptr);
  timer_set_ = true;
}

/// Does what waits for this instance, until nothing is left, unless another thread is at it: that one will
/// see it too.
std::uint32_t FakeBackend::drain(Lock& lock, bool release_late) {
  if (draining_) return 0;
  draining_ = true;
  std::uint32_t things = 0;
  for (;;) {
    if (!delayed_.empty()) {
      lock.unlock();
      const std::uint64_t now = host_.now_ns();
      lock.lock();
      bring_due(now);
    }
    if (inbox_.empty() && release_late) {
      for (Event& late : std::exchange(late_messages_, {})) deliver(std::move(late));
      for (Event& late : std::exchange(late_runs_, {})) inbox_.push_back(std::move(late));
    }
    if (inbox_.empty()) break;
    Event event = std::move(inbox_.front());
    inbox_.pop_front();
    ++things;
    handle(lock, event);
  }
  draining_ = false;
  network_.changed_.notify_all();
  return things;
}

void FakeBackend::bring_due(std::uint64_t now) {
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    Event event = std::move(delayed_.begin()->second);
    delayed_.erase(delayed_.begin());
    if (event.kind == Event::Kind::message)
      deliver(std::move(event));
    else
      inbox_.push_back(std::move(event));
  }
  set_timer(now);
}

void FakeBackend::handle(Lock& lock, Event& event) {
  switch (event.kind) {
    case Event::Kind::accept:
      return accept(lock, event.link);
    case Event::Kind::ready:
      return ready(lock, event.link);
    case Event::Kind::message:
      return receive(lock, event.link, std::move(event.message));
    case Event::Kind::lost:
      return lost(lock, event.link);
    case Event::Kind::run:
      break;
  }
  // It may have been canceled, carried out by poll, or even posted again since.
  if (event.request->state != RequestState::waiting || event.request->post_number != event.post_number)
    return;
  run(lock, event.request);
  for (Event& late : std::exchange(late_runs_, {})) inbox_.push_back(std::move(late));
}

/// Completion::caller: does what this call has caused, here and at the instances that it touched.
void FakeBackend::settle() {
  Lock lock(network_.mutex_);
  for (;;) {
    const auto due =
        std::find_if(network_.instances_.begin(), network_.instances_.end(), [](const auto& entry) {
          const FakeBackend& instance = *entry.second;
          return instance.completion_ == Completion::caller && !instance.draining_ &&
                 !instance.inbox_.empty();
        });
    if (due == network_.instances_.end()) return;
    due->second->drain(lock, false);
  }
}

std::uint32_t FakeBackend::progress() {
  if (completion_ == Completion::thread) return 0;
  std::uint32_t things = 0;
  {
    Lock lock(network_.mutex_);
    if (std::exchange(rung_, false)) bell_.drain();
    if (timer_set_) {
      std::uint64_t rings = 0;
      if (::read(timer_.get(), &rings, sizeof(rings)) > 0) timer_set_ = false;  // else it has not rung yet
    }
    things = drain(lock, true);
  }
  settle();
  return things;
}

int FakeBackend::descriptor() { return completion_ == Completion::thread ? -1 : epoll_.fd(); }

std::uint32_t FakeBackend::arm(bool on) {
  const Lock lock(network_.mutex_);
  armed_ = on;
  if (!on || completion_ == Completion::thread) return 0;
  return static_cast<std::uint32_t>(inbox_.size() + late_runs_.size() + late_messages_.size());
}

void FakeBackend::work() {
  Lock lock(network_.mutex_);
  while (!stop_) {
    drain(lock, true);
    if (stop_ || !inbox_.empty()) continue;
    // The host's clock may be turned by hand: while something is delayed, look at it every millisecond.
    if (delayed_.empty())
      work_.wait(lock);
    else
      work_.wait_for(lock, std::chrono::milliseconds(1));
  }
}

Result<std::string> FakeBackend::query(const headrace_query_v1& args) { return objects_.answer(args); }

headrace_cost_v1 FakeBackend::cost(const headrace_prepare_v1& /*args*/) {
  return {.struct_size = sizeof(headrace_cost_v1),
          .fixed_ns = 2'000,
          .ns_per_page = 40,
          .bytes_per_second = 4e9,
          .margin = 1,
          .method = "constant"};
}

}  // namespace headrace::fake
