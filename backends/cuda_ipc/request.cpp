// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/request.hpp"

#include "base/clock.hpp"
#include "gpu/given_stream.hpp"
#include "gpu/path_speed.hpp"
#include "memory/columns.hpp"

#include <algorithm>
#include <span>
#include <unordered_map>

namespace headrace::cuda_ipc {
namespace {

std::span<void* const> regions_of(const headrace_side_v1& side) { return {side.regions, side.region_count}; }

/// Where the driving GPU reaches a region of our own.
Result<cuda::Address> reach_own(const Region& region, const WorkingGpu& driver, bool is_target) {
  HEADRACE_TRY_VOID(region.check_unchanged());
  if (is_target && region.read_only())
    return make_error(Code::invalid_argument, "region {} may be read, not written", region.id());
  return region.reach(driver);
}

gpu::Touches touched_by(const headrace_prepare_v1& args) {
  const bool gpus_alone =
      std::ranges::all_of(regions_of(*args.local),
                          [](void* handle) { return Handles::region(handle).gpu() != nullptr; }) &&
      std::ranges::all_of(regions_of(*args.remote),
                          [](void* handle) { return Handles::remote(handle).is_of_gpu(); });
  return gpus_alone ? gpu::Touches::gpus : gpu::Touches::host;
}

/// The GPU that moves: the one whose memory the local pages are. Host memory leaves the choice to the far
/// side: its own GPU, or any that reaches it.
Result<const WorkingGpu*> driver_of(Instance& instance, const headrace_prepare_v1& args) {
  const WorkingGpu* driver = nullptr;
  for (void* const handle : regions_of(*args.local)) {
    const WorkingGpu* const gpu = Handles::region(handle).gpu();
    if (driver != nullptr && gpu != nullptr && gpu != driver)
      return make_error(Code::not_supported,
                        "the local pages are of GPU {} and GPU {}: make a request for each GPU",
                        driver->device->ordinal(), gpu->device->ordinal());
    if (gpu != nullptr) driver = gpu;
  }
  if (driver != nullptr) return driver;
  const auto handles = regions_of(*args.remote);
  const auto of_gpu =
      std::ranges::find_if(handles, [](void* handle) { return Handles::remote(handle).is_of_gpu(); });
  if (of_gpu == handles.end())
    return make_error(Code::not_supported, "cuda_ipc moves host memory only to and from GPUs");
  HEADRACE_TRY(gpu, instance.gpus.like(Handles::remote(*of_gpu).gpu_mark()));
  return gpu.get();  // the instance keeps what it has opened
}

}  // namespace

// ------------------------------------------------------------------ preparing

Request::Request(Instance& instance, const headrace_prepare_v1& args, std::shared_ptr<Link> link,
                 const WorkingGpu& gpu, Client* client)
    : instance_(instance),
      args_(args),
      link_(std::move(link)),
      gpu_(&gpu),
      touches_(touched_by(args)),
      client_(client) {}

Result<Request*> Request::prepare(Instance& instance, const headrace_prepare_v1& args,
                                  std::shared_ptr<Link> link, Client* client) {
  if (link->state() == host_link::LinkState::lost) return link->why_lost().error();
  HEADRACE_TRY(driver, driver_of(instance, args));
  std::unique_ptr<Request, void (*)(Request*)> request(
      new Request(instance, args, std::move(link), *driver, client), [](Request* r) { r->unref(); });
  HEADRACE_TRY_VOID(request->reach_local());
  Outcome why;
  if (request->find_memory(why) == Ready::never) return std::move(why).error();
  request->memory_.clear();
  return request.release();
}

Result<void> Request::reach_local() {
  const auto handles = regions_of(*args_.local);
  const bool on_host =
      std::ranges::all_of(handles, [](void* handle) { return Handles::region(handle).gpu() == nullptr; });
  for (void* const handle : handles) {
    const Region& region = Handles::region(handle);
    const auto address = reach_own(region, *gpu_, args_.op == HEADRACE_READ);
    if (!address && (address.code() != Code::not_supported || !on_host || !instance_.staging.enabled()))
      return address.error();
    stages_ = stages_ || !address;
    local_.emplace(handle, address ? *address : region.address());
  }
  return {};
}

/// Looks where the remote regions are, asks for those that nobody has asked for, and prepares the move if all
/// are here and not where they were, or leaves it to the owner if it alone reaches one of them.
Request::Ready Request::find_memory(Outcome& why) {
  memory_.clear();
  bool all = true, by_owner = false;
  const auto handles = regions_of(*args_.remote);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    auto found = Handles::remote(handles[i]).reach(gpu_->device->ordinal());
    if (found.reach == PeerRegion::Reach::refused) {
      // The driver does not know memory of a process that ends, before its link tells.
      const bool gone =
          found.error.code == Code::not_found && (link_->has_hung_up() || link_->process().dying());
      why = gone ? link_->why_lost() : about_region(i, found.error.code, std::move(found.error.message));
      return Ready::never;
    }
    by_owner = by_owner || found.reach == PeerRegion::Reach::by_owner;
    all = all && (found.reach == PeerRegion::Reach::here || found.reach == PeerRegion::Reach::by_owner);
    if (all) memory_.push_back(std::move(found.memory));
  }
  if (!all) return Ready::not_yet;
  if (auto prepared = by_owner ? leave_to_owner() : prepare_move(); !prepared) {
    why = {{prepared.code()}, std::move(prepared).error().message};
    return Ready::never;
  }
  return Ready::yes;
}

Result<void> Request::leave_to_owner() {
  memory_.clear();
  if (by_owner_ != nullptr) return {};
  if (client_ != nullptr)
    return make_error(
        Code::not_supported,
        "both sides have host memory that was registered, which no GPU but its owner's reaches");
  HEADRACE_TRY(told, OwnerMove::prepare(link_, args_));
  by_owner_ = std::move(told);
  return {};
}

Result<void> Request::prepare_move() {
  const auto moved = [](const ImportedMemory& memory, cuda::Address before) {
    return memory.address == before;
  };
  if ((move_ || staged_) && std::ranges::equal(memory_, prepared_for_, moved)) return {};
  const auto handles = regions_of(*args_.remote);
  std::unordered_map<void*, cuda::Address> remote;
  for (std::size_t i = 0; i < handles.size(); ++i) remote.emplace(handles[i], memory_[i].address);
  if (stages_) {
    staged_ = std::make_shared<gpu::StagedMove>(
        instance_.staging, *gpu_, args_,
        [](void* handle) { return reinterpret_cast<std::byte*>(Handles::region(handle).address()); },
        [remote](void* handle) { return remote.at(handle); });
  } else {
    HEADRACE_TRY(move, gpu::PreparedMove::prepare(
                           gpu_->mover, args_, [this](void* handle) { return local_.at(handle); },
                           [&remote](void* handle) { return remote.at(handle); }, touches_));
    move_.emplace(std::move(move));
  }
  prepared_for_.clear();
  for (const ImportedMemory& memory : memory_) prepared_for_.push_back(memory.address);
  return {};
}

Outcome Request::about_region(std::size_t number, Code code, std::string text) const {
  return {{code, 0, first_page_in(args_.remote->columns, args_.count, number)}, std::move(text)};
}

/// What the owner's table of live regions says. Looked at before the GPU begins, and after it has ended: a
/// move that raced with a deregistration has not been done.
Outcome Request::check_peer() const {
  if (link_->owner_closed()) return link_->why_lost();
  const auto handles = regions_of(*args_.remote);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const RemoteRegion& remote = Handles::remote(handles[i]);
    remote.find_slot();
    const PeerRegion& region = remote.peer();
    if (!region.live()) {
      if (link_->has_hung_up())
        return link_->why_lost();  // a peer that leaves closes its links, then deregisters
      return about_region(
          i, Code::not_found,
          fmt::format("region {} of peer {} was {}; fetch the metadata again", region.id(),
                      link_->peer_name(), region.was_registered() ? "deregistered" : "never registered"));
    }
    if (args_.op == HEADRACE_WRITE && !region.writable())
      return about_region(
          i, Code::invalid_argument,
          fmt::format("region {} of peer {} is registered read-only", region.id(), link_->peer_name()));
  }
  return {};
}

// ------------------------------------------------------------------ posting

Status Request::post(const headrace_post_v1& args) {
  const auto ordered_by = static_cast<cuda::Stream>(args.stream);
  if (ordered_by != nullptr) {
    if (const auto fits = gpu::check_stream_of_post(*gpu_, ordered_by); !fits) {
      instance_.host.log(HEADRACE_LOG_WARN, fits.error().message);
      return {fits.error().code};
    }
  }
  if (ordered_by != nullptr && stages_) return {Code::not_supported};  // no stream waits for threads
  stream_ = ordered_by != nullptr ? ordered_by : gpu_->stream.handle();
  token_ = args.token;
  if (const Status usable = link_->check_usable(); !usable.ok()) return usable;
  Status refused;
  if (Outcome ignored; ordered_by != nullptr && find_memory(ignored) == Ready::not_yet)
    refused.code = Code::would_block;
  else if (ordered_by != nullptr && by_owner_ != nullptr)
    refused.code = Code::not_supported;  // others than its stream take part
  else
    refused = message_.begin(*link_, args);
  if (!refused.ok()) {
    memory_.clear();  // of a request that rests no import is held
    return refused;
  }
  {
    const std::lock_guard lock(mutex_);
    state_ = State::beginning;
    early_ = {};
  }
  message_.keep_place(*link_);
  begin();
  return {};
}

/// The GPU has it.
void Request::in_flight() {
  look_until_ns_ = gpu::look_until_ns(now_ns(), touches_, args_.bytes);
  instance_.posts.add(*this);
}

/// Whether the post was there; if so it is the caller's now.
bool Request::take(State from) {
  const std::lock_guard lock(mutex_);
  if (state_ != from) return false;
  state_ = State::beginning;
  return true;
}

void Request::begin() {
  if (link_->add_active(this))
    go_on();
  else
    finish(link_->why_lost());
}

/// The link knows the post as active.
void Request::go_on() {
  const std::uint64_t answers = link_->answers();
  Outcome why;
  switch (find_memory(why)) {
    case Ready::yes:
      return launch();
    case Ready::not_yet:
      return starve(answers);
    case Ready::never:
      return finish(std::move(why));
  }
}

/// Leaves the post to the link until memory has come in.
void Request::starve(std::uint64_t answers_seen) {
  memory_.clear();
  ref();  // from `starved` on others may take it to its end before add_starved has it
  Outcome early;
  {
    const std::lock_guard lock(mutex_);
    early = early_;
    if (early.status.ok()) state_ = State::starved;
  }
  if (early.status.ok())
    link_->add_starved(this, answers_seen);
  else
    finish(std::move(early));
  unref();
}

void Request::resume() {
  if (take(State::starved)) go_on();
}

void Request::launch() {
  Outcome refused = check_peer();
  if (refused.status.ok()) {
    const std::lock_guard lock(mutex_);
    refused = early_;
    if (refused.status.ok()) state_ = State::running;
    if (refused.status.ok() && by_owner_ != nullptr) by_owner_->ask();
  }
  if (!refused.status.ok()) return finish(std::move(refused));
  if (by_owner_ != nullptr) {
    by_owner_->tell_owner();
  } else {
    if (client_ != nullptr && !client_->may_begin()) return finish({{Code::canceled}, "canceled"});
    if (auto begun = begin_move(); !begun) return finish({{begun.code()}, std::move(begun).error().message});
    if (client_ != nullptr && !stages_) client_->queued(*gpu_, stream_);
  }
  in_flight();
}

Result<void> Request::begin_move() {
  if (stages_) return staged_->post();
  auto begun = move_->post(stream_, order());
  warn_of_courier();
  return begun;
}

/// A stream was named, or an owner tells the end on it, by what comes behind the bytes there.
gpu::Order Request::order() const noexcept {
  return client_ == nullptr && stream_ == gpu_->stream.handle() ? gpu::Order::none : gpu::Order::stream;
}

void Request::warn_of_courier() const {
  if (gpu_->mover->courier == nullptr) return;
  if (const auto failure = gpu_->mover->courier->take_failure())
    instance_.host.log(HEADRACE_LOG_WARN,
                       failure->message + "; small requests are launched one by one from now on");
}

// ------------------------------------------------------------------ the end

void Request::ended(Result<void> moved) {
  if (moved && staged_ != nullptr) moved = staged_->outcome();
  Outcome outcome;
  if (!moved) outcome = {{moved.code()}, std::move(moved).error().message};
  if (outcome.status.ok() && move_ && move_->was_dropped()) {
    warn_of_courier();
    outcome = {{Code::backend_failed},
               "the courier, which had left before the request, could not be launched anew"};
  }
  {
    const std::lock_guard lock(mutex_);
    state_ = State::beginning;
    if (outcome.status.ok()) outcome = early_;
  }
  if (outcome.status.ok() && by_owner_ != nullptr) outcome = by_owner_->outcome();
  if (outcome.status.ok()) outcome = check_peer();
  finish(std::move(outcome));
}

void Request::end_early(const Outcome& outcome) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::idle) return;
    if (early_.status.ok()) early_ = outcome;
    if (state_ == State::running && by_owner_ != nullptr) by_owner_->withdraw();
    if (state_ != State::starved) return;  // its memory is not quiet, or who has it will look
    state_ = State::beginning;
  }
  finish(outcome);
}

void Request::cancel() {
  ref();
  const Outcome canceled{{Code::canceled}, "canceled"};
  bool mine = false;
  {
    const std::lock_guard lock(mutex_);
    const bool stoppable = state_ != State::idle && state_ != State::running;
    if (stoppable && early_.status.ok()) early_ = canceled;
    if (state_ == State::running && by_owner_ != nullptr) by_owner_->withdraw();
    mine = state_ == State::starved;
    if (mine) state_ = State::beginning;
  }
  if (mine) finish(canceled);
  unref();
}

void Request::tell(const Outcome& outcome) {
  if (client_ != nullptr)
    client_->ended(outcome);
  else
    instance_.host.completed(token_, outcome.status, outcome.text);
}

/// Tells the far side and the host. After this the request may be gone.
void Request::finish(Outcome outcome) {
  const std::shared_ptr<Link> link = link_;
  message_.end(*link, outcome);
  memory_.clear();
  {
    const std::lock_guard lock(mutex_);
    state_ = State::idle;
  }
  link->remove_active(this);
  tell(outcome);
  link->post_finished();
}

}  // namespace headrace::cuda_ipc
