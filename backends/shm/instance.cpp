// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/instance.hpp"

#include "backends/shm/control_messages.hpp"
#include "backends/shm/link.hpp"
#include "backends/shm/request.hpp"
#include "base/affinity.hpp"
#include "base/random.hpp"

#include <algorithm>

namespace headrace::shm {
namespace {

/// More get into one another's way where the kernel pins pages for an attach, and move mapped memory no
/// faster (bench/notes/shm.md).
constexpr std::uint32_t most_helpers = 15;

std::uint32_t helpers_for(const Settings& settings, std::uint32_t pool_threads) {
  const std::uint32_t wanted =
      settings.threads != 0 ? settings.threads : std::min(usable_cores() - 1, most_helpers);
  return std::max(std::min(wanted, pool_threads), 1U);
}

/// Each has a thread of the owner's beside it: more than cores for both only wait for one another.
constexpr std::uint32_t most_relay_helpers = 8;

std::uint32_t relay_helpers_for(std::uint32_t helpers) {
  return std::max(std::min({helpers, usable_cores() / 2, most_relay_helpers}), 1U);
}

Link& own(const std::shared_ptr<host_link::Link>& link) { return static_cast<Link&>(*link); }

}  // namespace

Instance::Instance(plugin::Host its_host, const Settings& its_settings, Parts parts)
    : Site(its_host, shm::protocol, its_settings.links, std::move(parts)),
      settings(its_settings),
      helpers(helpers_for(its_settings, its_host.pool_threads())),
      copiers(std::min(helpers + 1, usable_cores())),
      relay_helpers(relay_helpers_for(helpers)),
      places(its_settings.numa ? CopyPlaces::read() : nullptr),
      nonce_(std::make_unique<const std::uint64_t>(random_u64())) {}

Instance::~Instance() {
  live().close();  // copies that still run in peers find it before our memory goes
  closing_.store(true, std::memory_order_release);
  tasks.wait_for_none();
  close_links();
  for (Request* const request : stranded) request->unref();
}

std::shared_ptr<host_link::Link> Instance::make_link(host_link::Side side, UnixSocket socket,
                                                     host_link::PeerProcess process) {
  return std::make_shared<Link>(*this, side, std::move(socket), std::move(process));
}

bool Instance::serves_lanes() {
  if (!settings.relay) return false;
  if (FaultGuard::in_place()) return true;
  if (!told_of_guard_.exchange(true))
    host.log(HEADRACE_LOG_WARN,
             "this process serves no lanes, and peers read its registered memory by attach: handlers of "
             "SIGSEGV or SIGBUS were installed after those of the first lane");
  return false;
}

void Instance::serve(Link& link, LaneMemory& lane) {
  LaneServer(served, lane).serve([&] {
    return link.usable() && !closing_.load(std::memory_order_acquire) &&
           lane.words().dropped.load(std::memory_order_acquire) == 0;
  });
}

void Instance::share(SharedMemory memory) {
  with_links([&](const auto& links) {
    for (const auto& link : links) own(link).share(memory);
    const std::uint32_t region_id = memory.region.region_id;
    shared_memory_.emplace(region_id, std::move(memory));
  });
}

void Instance::unshare(std::uint32_t region_id) {
  with_links([&](const auto& links) {
    shared_memory_.erase(region_id);
    for (const auto& link : links) own(link).unshare(region_id);
  });
}

}  // namespace headrace::shm
