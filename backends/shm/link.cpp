// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/link.hpp"

namespace headrace::shm {
namespace {

constexpr std::size_t max_lanes = 64;  // more than a reader ever has at a time

host_link::MessageName name_of_share(std::uint32_t region_id) { return std::uint64_t{region_id} + 1; }

}  // namespace

Imports::Found Link::import(std::uint32_t region_id) {
  if (Imports::Found found = imports_.find(region_id); found.known) return found;
  (void)has_hung_up();  // reads the socket
  return imports_.find(region_id);
}

// ------------------------------------------------------------------ what we say

std::string Link::greeting() {
  host_link::allow_attach_by(process().pid());  // before the peer tries
  return encode_greeting(instance_.own_nonce());
}

void Link::say_first() {
  const auto& memory = instance_.shared_memory();
  for (auto at = memory.begin(); at != memory.end();) {
    Share share;
    std::vector<int> descriptors;
    std::vector<host_link::SharedFd> kept;
    for (; at != memory.end() && share.regions.size() < max_regions_in_message; ++at) {
      share.regions.push_back(at->second.region);
      descriptors.push_back(at->second.file->get());
      kept.push_back(at->second.file);
    }
    send(encode(share), std::move(descriptors), std::move(kept));
  }
}

void Link::share(const SharedMemory& memory) {
  const std::lock_guard lock(control_mutex());
  if (is_introduced())
    send(encode(Share{{memory.region}}), {memory.file->get()}, {memory.file},
         name_of_share(memory.region.region_id));
}

void Link::unshare(std::uint32_t region_id) {
  const std::lock_guard lock(control_mutex());
  if (is_introduced() && !take_back(name_of_share(region_id))) send(encode(Unshare{{region_id}}));
}

// ------------------------------------------------------------------ what the peer says

void Link::greeted(std::string_view greeting) {
  if (!instance_.settings.attach) {
    attach_refusal_ = "cross-memory attach is switched off (option shm.attach)";
    return;
  }
  attach_refusal_ = host_link::why_no_attach(process().pid(), decode_greeting(greeting));
  if (!attach_refusal_.empty() && !process().dying()) {
    instance_.host.log(
        HEADRACE_LOG_WARN,
        fmt::format("memory of peer {} that was registered, not allocated, is out of reach of shm: {}",
                    peer_name(), attach_refusal_));
  }
}

Result<void> Link::on_other(const host_link::Other& message, std::vector<UniqueFd> descriptors) {
  HEADRACE_TRY(read, decode(message, descriptors.size()));
  if (const auto* const share = std::get_if<Share>(&read)) on_share(*share, descriptors);
  if (const auto* const unshare = std::get_if<Unshare>(&read))
    for (const std::uint32_t id : unshare->region_ids) imports_.forget(id);
  if (const auto* const lane = std::get_if<OpenLane>(&read)) return on_open_lane(*lane, descriptors[0]);
  if (const auto* const lane = std::get_if<ServeLane>(&read)) return on_serve_lane(*lane);
  if (const auto* const lane = std::get_if<DropLane>(&read)) served_lanes_.erase(lane->lane_id);
  return {};
}

void Link::on_share(const Share& share, const std::vector<UniqueFd>& descriptors) {
  if (!instance_.settings.map) return;
  for (std::size_t i = 0; i < share.regions.size(); ++i) {
    if (const auto added = imports_.add(descriptors[i], share.regions[i]); !added) {
      instance_.host.log(HEADRACE_LOG_WARN,
                         fmt::format("region {} of peer {} is not mapped, attach takes its place: {}",
                                     share.regions[i].region_id, peer_name(), added.error().message));
    }
  }
}

// ------------------------------------------------------------------ lanes

void Link::call(ReaderLane& lane) {
  const std::lock_guard lock(control_mutex());
  if (!lane.announced) {
    const auto file = std::make_shared<const UniqueFd>(std::move(lane.file));
    send(encode(OpenLane{lane.id}), {file->get()}, {file});
    lane.announced = true;
    instance_.host.log(HEADRACE_LOG_DEBUG, fmt::format("large reads of peer {}'s registered memory: lane {}",
                                                       peer_name(), lane.id));
  }
  send(encode(ServeLane{lane.id}));
}

void Link::drop(std::unique_ptr<ReaderLane> lane) {
  const std::lock_guard lock(control_mutex());
  if (lane->announced) send(encode(DropLane{lane->id}));
}

Result<void> Link::on_open_lane(const OpenLane& lane, const UniqueFd& file) {
  if (served_lanes_.size() >= max_lanes)
    return make_error(Code::corrupt, "it opened more than {} lanes", max_lanes);
  auto memory = LaneMemory::adopt(file);
  if (!memory && memory.code() == Code::corrupt) return std::move(memory).error();
  // No room to map it here: nobody comes, and the reader takes another way.
  served_lanes_[lane.lane_id] = memory ? std::move(memory).value() : nullptr;
  return {};
}

namespace {

struct ServeTask {
  std::shared_ptr<Link> link;
  std::shared_ptr<LaneMemory> lane;
  Instance* instance;

  static void run(ServeTask* given) {
    std::unique_ptr<ServeTask> task(given);
    TaskGate& tasks = task->instance->tasks;
    task->lane->queued.store(false);
    task->instance->serve(*task->link, *task->lane);
    task.reset();
    tasks.leave();
  }
};

}  // namespace

Result<void> Link::on_serve_lane(const ServeLane& lane) {
  const auto at = served_lanes_.find(lane.lane_id);
  if (at == served_lanes_.end())
    return make_error(Code::corrupt, "it asks for lane {}, which it has not opened", lane.lane_id);
  LaneMemory* const memory = at->second.get();
  if (memory == nullptr) return {};
  if (!instance_.serves_lanes()) {
    memory->words().state.store(LaneState::refused);
    return {};
  }
  if (memory->queued.exchange(true)) return {};  // that task serves whatever is asked for then
  auto task = std::make_unique<ServeTask>(shared(), at->second, &instance_);
  instance_.tasks.enter();
  if (instance_.host.submit<&ServeTask::run>(task.get())) {
    (void)task.release();
  } else {
    memory->queued.store(false);
    instance_.tasks.leave();
  }
  return {};
}

void Link::closed() {
  imports_.clear();
  lanes_.clear();
  served_lanes_.clear();
}

}  // namespace headrace::shm
