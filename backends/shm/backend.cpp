// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/backend.hpp"

#include "backends/shm/regions.hpp"
#include "backends/shm/registry.hpp"
#include "backends/shm/request.hpp"
#include "base/random.hpp"
#include "base/text.hpp"

#include <dirent.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>

namespace headrace::shm {
namespace {

constexpr std::uint64_t look_every_ns =
    20'000;                             // a system call, so not at each pass; peers' deaths can wait as long
constexpr long timer_ns = 100'000'000;  // while some link shakes hands
constexpr std::uint32_t events_a_look = 32;
constexpr int stale_sockets_a_start = 32;

constexpr std::string_view socket_prefix = "shm-";
constexpr std::string_view socket_suffix = ".sock";

/// The instance's own keys have serial 0.
constexpr std::uint64_t listener_key = 0;
constexpr std::uint64_t bell_key = 1;
constexpr std::uint64_t timer_key = 2;

std::uint32_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<std::uint32_t>(std::max(CPU_COUNT(&set), 1));
}

std::uint32_t helpers_for(const Settings& settings, std::uint32_t pool_threads) {
  const std::uint32_t wanted = settings.threads != 0 ? settings.threads : std::max(usable_cores() - 1, 1U);
  return std::max(std::min(wanted, pool_threads), 1U);
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

/// Processes that were killed leave their sockets behind. Listening there takes the lock, which only a dead
/// owner's socket lets us have, and going away again removes the files.
void sweep_stale_sockets(const std::string& runtime_dir) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(runtime_dir.c_str()), ::closedir);
  if (folder == nullptr) return;
  int swept = 0;
  while (const dirent* const entry = ::readdir(folder.get())) {
    const std::string_view file = entry->d_name;
    if (!file.starts_with(socket_prefix) || !file.ends_with(socket_suffix)) continue;
    if (UnixListener::listen(runtime_dir + "/" + entry->d_name) && ++swept == stale_sockets_a_start) return;
  }
}

Result<UniqueFd> create_timer() {
  UniqueFd fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!fd) return os_error(errno, "create a timer");
  return fd;
}

}  // namespace

// ------------------------------------------------------------------ life

Result<std::unique_ptr<plugin::Backend>> ShmBackend::open(plugin::Host host, const plugin::CreateArgs& args) {
  HEADRACE_TRY(settings, read_settings(args));
  sweep_stale_sockets(args.runtime_dir);
  // The random part lets several instances of one agent live side by side.
  const auto serial = static_cast<std::uint32_t>(random_u64());
  HEADRACE_TRY(listener,
               UnixListener::listen(fmt::format("{}/{}{:016x}-{:08x}{}", args.runtime_dir, socket_prefix,
                                                host.incarnation(), serial, socket_suffix)));
  HEADRACE_TRY(live, LiveTable::create());
  HEADRACE_TRY(epoll, Epoll::create());
  HEADRACE_TRY(bell, EventFd::create());
  HEADRACE_TRY(timer, create_timer());
  HEADRACE_TRY_VOID(epoll.add(listener.fd(), EPOLLIN, listener_key));
  HEADRACE_TRY_VOID(epoll.add(bell.fd(), EPOLLIN | EPOLLET, bell_key));
  HEADRACE_TRY_VOID(epoll.add(timer.get(), EPOLLIN | EPOLLET, timer_key));
  auto instance = std::make_unique<Instance>(host, settings, std::move(epoll), std::move(bell));
  instance->name = host.agent_name();
  instance->incarnation = host.incarnation();
  instance->runtime_dir = args.runtime_dir;
  instance->helpers = helpers_for(settings, host.pool_threads());
  instance->nonce = std::make_unique<const std::uint64_t>(random_u64());
  instance->live = std::move(live);
  instance->registry = std::make_unique<Registry>();
  return std::unique_ptr<Backend>(new ShmBackend(std::move(instance), std::move(listener), std::move(timer)));
}

ShmBackend::ShmBackend(std::unique_ptr<Instance> instance, UnixListener listener, UniqueFd timer)
    : instance_(std::move(instance)), listener_(std::move(listener)), timer_(std::move(timer)) {}

ShmBackend::~ShmBackend() {
  instance_->live->close();  // copies that still run in peers find it before our memory goes
  instance_->tasks.wait_for_none();
  instance_->registry->look(links_version_, links_);
  for (const auto& link : links_) link->close();
  for (Request* const request : instance_->stranded) request->unref();
}

headrace_info_v1 ShmBackend::info() {
  headrace_info_v1 info{};
  info.struct_size = sizeof info;
  info.abilities = HEADRACE_LOCAL | HEADRACE_REMOTE | HEADRACE_NOTIFY;
  if (instance_->settings.map) info.abilities |= HEADRACE_MAP;
  info.local_kinds = memory_kinds;
  info.remote_kinds = memory_kinds;
  info.max_message_bytes = max_message_bytes;
  return info;
}

// ------------------------------------------------------------------ links

Result<std::string> ShmBackend::connection_info() {
  return encode(ConnectionInfo{boot_id(), listener_.path().substr(instance_->runtime_dir.size() + 1)});
}

Result<void*> ShmBackend::connect(const headrace_connect_v1& args) {
  const std::span info_bytes(static_cast<const std::byte*>(args.connection_info.data),
                             args.connection_info.length);
  HEADRACE_TRY(info, decode_connection_info(info_bytes));
  auto socket = UnixSocket::connect(instance_->runtime_dir + "/" + info.socket_name);
  if (!socket) {
    const bool same_host = !info.boot_id.empty() && info.boot_id == boot_id();
    if (socket.code() == Code::peer_lost && same_host) {
      // An agent listens for as long as it lives: the file that nobody listens at is what a dead one has left. Not
      // not_supported, which would send the caller to look for a setting.
      return make_error(Code::peer_lost,
                        "peer {} has died: nobody listens at {} in {}; if it runs again, import its new metadata",
                        args.peer_name, info.socket_name, instance_->runtime_dir);
    }
    if (socket.code() == Code::not_found || socket.code() == Code::peer_lost) {
      return make_error(Code::not_supported,
                        "peer {} {} or uses another HEADRACE_RUNTIME_DIR: {} is not in {}; give both agents the same folder",
                        args.peer_name, same_host ? "has ended" : "is on another host", info.socket_name, instance_->runtime_dir);
    }
    return std::move(socket).error().within(fmt::format("link to peer {}", args.peer_name));
  }
  HEADRACE_TRY(link, Link::to_peer(*instance_, std::move(*socket), instance_->registry->next_serial(), args));
  allow_attach_by(link->process().pid());  // before the peer tries
  instance_->registry->add(link);
  instance_->registry->introduce(*link);
  instance_->wake();  // the timer is to be wound
  return link.get();
}

void ShmBackend::disconnect(void* connection) {
  const auto link = instance_->registry->remove(static_cast<Link*>(connection));
  if (link != nullptr) link->close();
}

Status ShmBackend::notify(void* connection, std::uint32_t channel, std::string_view bytes) {
  auto& link = *static_cast<Link*>(connection);
  if (bytes.size() > max_message_bytes) return {Code::invalid_argument};
  if (link.state() == LinkState::lost) return {link.why_lost().status.code};
  return link.messages().send(channel, bytes);
}

// ------------------------------------------------------------------ regions

Result<void*> ShmBackend::register_region(const headrace_region_v1& region) {
  if (region.kind != HEADRACE_DRAM)
    return make_error(Code::not_supported, "shm moves host memory (dram), not kind {}", region.kind);
  if (region.address == 0 || region.length == 0) {
    return make_error(Code::invalid_argument, "region {} has address {:#x} and {} bytes", region.region_id,
                      region.address, region.length);
  }
  auto local = std::make_unique<LocalRegion>();
  local->region_id = region.region_id;
  local->base = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(region.address));
  local->length_bytes = region.length;
  SharedMemory memory;
  if (region.memory_fd >= 0 && instance_->settings.map) {
    UniqueFd file(::fcntl(region.memory_fd, F_DUPFD_CLOEXEC, 0));
    if (file) {
      memory = {{region.region_id, region.memory_offset, region.length},
                std::make_shared<const UniqueFd>(std::move(file))};
      local->shared = true;
    } else {
      instance_->host.log(
          HEADRACE_LOG_WARN,
          fmt::format(
              "region {} is not offered for mapping, attach takes its place: duplicate its memory file: {}",
              region.region_id, os_error_text(errno)));
    }
  }
  HEADRACE_TRY(slot, instance_->live->set(region.region_id,
                                          local->shared ? RegionState::allocated : RegionState::registered,
                                          (region.flags & HEADRACE_REGION_READ_ONLY) == 0));
  local->slot = slot;
  if (local->shared) instance_->registry->share(std::move(memory));
  return local.release();
}

void ShmBackend::deregister_region(void* handle) {
  const std::unique_ptr<LocalRegion> region(static_cast<LocalRegion*>(handle));
  (void)instance_->live->set(region->region_id,
                             RegionState::gone);  // its step of the table is mapped: this cannot fail
  if (region->shared) instance_->registry->unshare(region->region_id);
}

Result<std::string> ShmBackend::export_region(void* /*handle*/) { return std::string(); }

Result<void*> ShmBackend::load_local(void* handle) {
  return new RemoteRegion(*static_cast<LocalRegion*>(handle));
}

Result<void*> ShmBackend::load_remote(void* connection, const headrace_remote_region_v1& region) {
  if (region.kind != HEADRACE_DRAM)
    return make_error(Code::not_supported, "shm moves host memory (dram), not kind {}", region.kind);
  auto& link = *static_cast<Link*>(connection);
  if (link.state() == LinkState::lost) {
    Outcome why = link.why_lost();
    return Error{why.status.code, std::move(why.text)};
  }
  auto remote = std::make_unique<RemoteRegion>(link.shared_from_this(), region.region_id, region.address,
                                               region.length);
  (void)remote->resolve();  // what is not here yet is looked for again by the requests that need it
  return remote.release();
}

void ShmBackend::unload(void* remote) { delete static_cast<RemoteRegion*>(remote); }

constexpr unsigned map_for_writing = 2;

Result<std::span<std::byte>> ShmBackend::map(void* remote, int device, unsigned access) {
  auto& region = *static_cast<RemoteRegion*>(remote);
  if (device >= 0)
    return make_error(Code::not_supported, "shm maps memory for the CPU, not for GPU {}", device);
  const bool known = region.resolve();
  if (std::byte* const mapped = region.mapped(); mapped != nullptr) {
    if ((access & map_for_writing) == 0 || region.writable()) return std::span(mapped, region.length_bytes());
    return make_error(Code::not_supported, "region {} of peer {} is read-only: map it for reading", region.region_id(),
                      region.link() != nullptr ? region.link()->peer_name() : instance_->name);
  }
  const std::string owner = region.link()->peer_name();
  if (!known)
    return make_error(Code::would_block, "the memory file of region {} of peer {} is on its way",
                      region.region_id(), owner);
  if (!region.live())
    return make_error(Code::not_found, "region {} of peer {} is not registered any more", region.region_id(),
                      owner);
  return make_error(
      Code::not_supported,
      "region {} of peer {} was registered, not allocated: only memory from allocate can be mapped",
      region.region_id(), owner);
}

// ------------------------------------------------------------------ requests

Result<void*> ShmBackend::prepare(const headrace_prepare_v1& args) {
  std::shared_ptr<Link> link;
  if (args.connection != nullptr) link = static_cast<Link*>(args.connection)->shared_from_this();
  HEADRACE_TRY(request, Request::prepare(*instance_, args, std::move(link)));
  return request;
}

Status ShmBackend::post(void* request, const headrace_post_v1& args) {
  return static_cast<Request*>(request)->post(args);
}
bool ShmBackend::poll(void* request) { return static_cast<Request*>(request)->poll(); }
void ShmBackend::cancel(void* request) { static_cast<Request*>(request)->cancel(); }
void ShmBackend::release(void* request) { static_cast<Request*>(request)->unref(); }

headrace_cost_v1 ShmBackend::cost(const headrace_prepare_v1& args) {
  bool mapped = args.connection == nullptr && args.remote->regions != nullptr;
  if (args.connection != nullptr && args.remote->regions != nullptr) {
    mapped = static_cast<const RemoteRegion*>(args.remote->regions[0])->mapped() != nullptr;
  }
  const CopySpeed speed = mapped ? speeds_.mapped() : speeds_.attached();
  const bool shared_work = args.bytes > instance_->settings.inline_bytes;
  headrace_cost_v1 cost{};
  cost.struct_size = sizeof cost;
  cost.fixed_ns = shared_work ? 20'000 : mapped ? 300 : 1'500;
  cost.ns_per_page = speed.ns_per_page;
  cost.bytes_per_second =
      speed.bytes_per_second * (shared_work ? std::min(instance_->helpers + 1, usable_cores()) : 1);
  cost.margin = 0.5;
  cost.method = "one thread measured at first use, times the threads that share the work";
  return cost;
}

// ------------------------------------------------------------------ progress

std::uint32_t ShmBackend::progress() {
  std::uint32_t done = progress_links();
  if (instance_->has_stranded.load(std::memory_order_acquire)) done += rescue_stranded();
  // While a thread of the host sleeps on our descriptor, what rings there is for that thread: taken away by another that polls,
  // it would sleep on with the rings no longer armed.
  if (armed_) return done;
  const std::uint64_t now = now_ns();
  // A message that woke the host is on its way first; the epoll set is looked at in the next pass, when nobody waits for it.
  if ((look_now_ && done == 0) || now - looked_at_ns_ >= look_every_ns) {
    looked_at_ns_ = now;
    look_now_ = false;
    if (look_at_descriptors(instance_->host.now_ns()) > 0) done += progress_links();
  }
  return done;
}

std::uint32_t ShmBackend::progress_links() {
  std::uint32_t done = 0;
  instance_->registry->look(links_version_, links_);
  for (const auto& link : links_) {
    done += link->progress();
    if (!link->abandoned()) continue;
    // It came in and never became a link of the host's. The list changes at the next look.
    if (instance_->registry->remove(link.get()) != nullptr) link->close();
  }
  return done;
}

std::uint32_t ShmBackend::look_at_descriptors(std::uint64_t now_ns) {
  std::array<epoll_event, events_a_look> events;
  const auto ready = instance_->epoll.wait(events, Deadline::at_ns(0));
  const std::size_t count = ready ? *ready : 0;
  instance_->registry->look(links_version_, links_);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t key = events[i].data.u64;
    if (key == listener_key) accept_all();
    const auto serial = static_cast<std::uint32_t>(key >> 2);
    if (serial == 0) continue;
    const auto at = std::find_if(links_.begin(), links_.end(),
                                 [&](const auto& link) { return link->serial() == serial; });
    if (at != links_.end()) (*at)->on_event(static_cast<Watched>(key & 3), events[i].events);
  }
  for (const auto& link : links_) {
    if (link->wants_timer()) link->on_timer(now_ns);
  }
  wind_timer();
  return static_cast<std::uint32_t>(count);
}

void ShmBackend::accept_all() {
  for (;;) {
    auto socket = listener_.accept();
    if (!socket) {
      if (socket.code() != Code::would_block)
        instance_->host.log(HEADRACE_LOG_ERROR, "accept a link: " + socket.error().message);
      return;
    }
    auto link = Link::from_peer(*instance_, std::move(*socket), instance_->registry->next_serial());
    if (link) {
      instance_->registry->add(std::move(*link));
    } else {
      instance_->host.log(HEADRACE_LOG_WARN, "a link that came in was dropped: " + link.error().message);
    }
  }
}

/// Runs the timer exactly while some link waits for time to pass.
void ShmBackend::wind_timer() {
  instance_->registry->look(links_version_, links_);
  const bool wanted =
      std::any_of(links_.begin(), links_.end(), [](const auto& link) { return link->wants_timer(); });
  if (wanted == timer_runs_) return;
  timer_runs_ = wanted;
  itimerspec period{};
  if (wanted) period.it_interval.tv_nsec = period.it_value.tv_nsec = timer_ns;
  (void)::timerfd_settime(timer_.get(), 0, &period, nullptr);
}

std::uint32_t ShmBackend::rescue_stranded() {
  std::vector<Request*> stranded;
  {
    const std::lock_guard lock(instance_->stranded_mutex);
    stranded.swap(instance_->stranded);
    instance_->has_stranded.store(false, std::memory_order_release);
  }
  for (Request* const request : stranded) {
    if (!request->rescue()) {
      request->unref();
      continue;
    }
    const std::lock_guard lock(instance_->stranded_mutex);
    instance_->stranded.push_back(request);
    instance_->has_stranded.store(true, std::memory_order_release);
  }
  return static_cast<std::uint32_t>(stranded.size());
}

int ShmBackend::descriptor() { return instance_->epoll.fd(); }

std::uint32_t ShmBackend::arm(bool on) {
  instance_->registry->look(links_version_, links_);
  armed_ = on;
  std::uint32_t arrived = 0;
  if (!on) {
    for (const auto& link : links_) link->disarm();
    look_now_ = true;  // what woke the host is in the epoll set and must be taken out of it
    return 0;
  }
  for (const auto& link : links_) arrived += link->arm() ? 1 : 0;
  if (instance_->has_stranded.load(std::memory_order_acquire)) ++arrived;
  return arrived;
}

}  // namespace headrace::shm
