// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/request.hpp"

#include "backends/shm/link.hpp"
#include "backends/shm/regions.hpp"
#include "base/clock.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace headrace::shm {
namespace {

constexpr std::uint64_t least_chunk_bytes = 64 * 1024;
constexpr std::uint64_t runs_a_turn = 1024;  // in a chunk or inside post: some 100 us by attach
constexpr std::uint64_t until_pool_is_busy_ns = 2'000'000;  // then whoever waits does the work
constexpr std::uint64_t least_relayed_bytes = 1 << 20;
constexpr std::uint64_t most_relayed_bytes = 32 << 20;

/// Longer ones are as quick by attach, or quicker; later where many threads get into one another's way in the
/// kernel (bench/notes/shm.md).
std::uint64_t most_relayed_run_bytes(std::uint32_t relay_helpers) {
  return relay_helpers < 4 ? 8 * 1024 : 32 * 1024;
}

constexpr int chunks_a_turn =
    8;  // then the helper goes to the end of the pool's queue: other requests want to be served too

std::uint64_t chunk_bytes_for(const Settings& settings, const headrace_prepare_v1& args) {
  const std::uint64_t run_bytes =
      std::max<std::uint64_t>(args.bytes / std::max<std::uint64_t>(most_stretches(args), 1), 1);
  return run_bytes >= settings.chunk_bytes ? settings.chunk_bytes
                                           : std::min(settings.chunk_bytes, run_bytes * runs_a_turn);
}

/// Of the first few: pages that touch are moved in one piece.
std::uint64_t mean_run_bytes(const headrace_prepare_v1& args) {
  constexpr std::uint64_t long_enough = 1 << 20;
  std::array<PageRun, 16> runs;
  const std::size_t count = PageCursor(args, long_enough).fill(runs);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) bytes += runs[i].bytes;
  return bytes / std::max<std::size_t>(count, 1);
}

}  // namespace

Request::Request(Instance& instance, const headrace_prepare_v1& args, std::shared_ptr<Link> link)
    : instance_(instance),
      args_(args),
      link_(std::move(link)),
      mode_(args.bytes >= instance.settings.stream_bytes ? CopyMode::streaming : CopyMode::cached),
      chunk_bytes_(chunk_bytes_for(instance.settings, args)) {}

Result<Request*> Request::prepare(Instance& instance, const headrace_prepare_v1& args,
                                  std::shared_ptr<Link> link) {
  if (link->state() == LinkState::lost) return link->why_lost().error();
  std::unique_ptr<Request, void (*)(Request*)> request(new Request(instance, args, std::move(link)),
                                                       [](Request* r) { r->unref(); });
  Outcome found = request->find_paths();
  if (!found.status.ok()) return std::move(found).error();
  return request.release();
}

/// Resolves the remote regions as far as the link lets us know. Fails if one can be reached in no way.
Outcome Request::find_paths() {
  const bool ready = link_->was_ready();
  const std::string& refusal = link_->attach_refusal();
  bool all_known = true;
  for (std::uint64_t i = 0; i < args_.remote->region_count; ++i) {
    auto& region = Handles::remote(args_.remote->regions[i]);
    if (!region.resolve()) all_known = false;
    if (const auto wrong = region.contradiction()) return {{wrong->code}, wrong->message};
    if (!ready || region.mapped() != nullptr || refusal.empty()) continue;
    // The trial of attach fails too when the peer dies during it: that is no fault of this path.
    if (link_->has_hung_up() || link_->process().dying()) return link_->why_lost();
    const char* const kind =
        region.state() == RegionState::allocated ? "is not mapped here" : "was registered, not allocated";
    return {{Code::not_supported},
            fmt::format("region {} of peer {} {}, and {}", region.region_id(), link_->peer_name(), kind,
                        refusal)};
  }
  paths_known_ = all_known;
  return {};
}

Transfer Request::transfer() { return {&args_, link_.get(), mode_, &stopped_}; }

Status Request::post(const headrace_post_v1& args) {
  if (const Status usable = link_->check_usable(); !usable.ok()) return usable;
  if (const Status room = message_.begin(*link_, args); !room.ok()) return room;
  token_ = args.token;
  stopped_.store(false, std::memory_order_relaxed);
  begin();
  return {};
}

void Request::begin() {
  if (!paths_known_) {
    if (Outcome found = find_paths(); !found.status.ok()) {
      finish(std::move(found), false);
      return;
    }
  }
  if (args_.bytes <= instance_.settings.inline_bytes && most_stretches(args_) <= runs_a_turn) {
    finish(move_part(transfer(), {0, 0}, {args_.count, 0}), false);
  } else {
    begin_chunks();
  }
}

/// Large reads of scattered pages that are nowhere mapped here.
bool Request::can_relay() const {
  const Settings& settings = instance_.settings;
  if (instance_.host.pool_threads() == 0) return false;
  if (args_.op != HEADRACE_READ || !settings.relay || args_.bytes < settings.relay_bytes) return false;
  if (!link_->lanes().open() || mean_run_bytes(args_) > most_relayed_run_bytes(instance_.relay_helpers))
    return false;
  if (link_->process().pid() == ::getpid()) return false;
  for (std::uint64_t i = 0; i < args_.remote->region_count; ++i) {
    const auto& region = Handles::remote(args_.remote->regions[i]);
    if (region.mapped() != nullptr || !region.relays()) return false;
  }
  return true;
}

void Request::begin_chunks() {
  message_.keep_place(*link_);
  ref();  // the end may come, and the host's release with it, while we still look for help
  bool known = true;
  {
    // The link knows of it before anybody can claim a chunk: whoever ends it, cancels included, finds it in
    // the list.
    const std::lock_guard lock(mutex_);
    known = link_->add_active(this);
    relaying_.store(can_relay(), std::memory_order_relaxed);
    helped_ns_.store(now_ns(), std::memory_order_relaxed);
    state_ = State::active;
    next_ = {0, 0};
    unclaimed_ = unfinished_ = args_.bytes;
    outcome_ = {};
  }
  if (!known) {
    stop(link_->why_lost());
    drain();
  } else {
    get_help();
  }
  unref();
}

/// `through_lane`: for a thread that may wait for the owner, and takes more at a time.
bool Request::claim(Chunk& chunk, bool through_lane) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::active || unclaimed_ == 0) return false;
  chunk.move = outcome_.status.ok();
  chunk.from = next_;
  if (chunk.move) {
    // Towards the end the pieces get smaller, so that the threads finish together.
    if (through_lane && relaying_.load(std::memory_order_relaxed)) {
      chunk.bytes =
          std::clamp(unclaimed_ / (2 * instance_.relay_helpers), least_relayed_bytes, most_relayed_bytes);
    } else {
      const std::uint64_t share = unclaimed_ / (2 * (instance_.helpers + 1));
      chunk.bytes = std::clamp(share, std::min(least_chunk_bytes, chunk_bytes_), chunk_bytes_);
    }
    chunk.bytes = std::min(unclaimed_, chunk.bytes);
    chunk.to = unclaimed_ == chunk.bytes ? PagePosition{args_.count, 0}
                                         : position_at_byte(args_, chunk.bytes, next_);
    next_ = chunk.to;
  } else {
    chunk.bytes = unclaimed_;
  }
  unclaimed_ -= chunk.bytes;
  return true;
}

/// `thread`: of a thread that may be placed.
bool Request::work_on_chunk(NearMemory* thread) {
  Chunk chunk;
  if (!claim(chunk, thread != nullptr)) return false;
  if (thread != nullptr && chunk.move && instance_.places != nullptr)
    if (const std::byte* const target = first_target(args_, chunk.from, chunk.to)) thread->write_to(target);
  Outcome moved;
  if (chunk.move) moved = move(chunk, thread != nullptr);
  bool last = false;
  Outcome ended;
  {
    const std::lock_guard lock(mutex_);
    if (!moved.status.ok() && outcome_.status.ok()) {
      outcome_ = std::move(moved);
      stopped_.store(true, std::memory_order_relaxed);
    }
    unfinished_ -= chunk.bytes;
    last = unfinished_ == 0;
    if (last) {
      state_ = State::idle;
      ended = std::move(outcome_);
    }
  }
  if (last) finish(std::move(ended), true);
  return true;
}

/// `through_lane`: the thread may wait for the owner.
Outcome Request::move(const Chunk& chunk, bool through_lane) {
  if (!through_lane || !relaying_.load(std::memory_order_relaxed))
    return move_part(transfer(), chunk.from, chunk.to);
  std::unique_ptr<ReaderLane> lane = link_->lanes().take();
  LaneEnd end{.outcome = {}, .complete = false, .reached = chunk.from, .refused_region = 0};
  if (lane != nullptr) {
    end = lane->reader->read(transfer(), chunk.from, chunk.to, [&] { link_->call(*lane); });
    for (std::uint64_t i = 0; end.refused_region != 0 && i < args_.remote->region_count; ++i)
      Handles::remote(args_.remote->regions[i]).refuse_relay(end.refused_region);
    if (auto dropped =
            link_->lanes().give_back(std::move(lane), end.refused_region != 0 || !end.outcome.status.ok()))
      link_->drop(std::move(dropped));
  }
  if (end.complete || !end.outcome.status.ok()) return end.outcome;
  instance_.host.log(HEADRACE_LOG_DEBUG,
                     fmt::format("a read from peer {} goes on by attach: its lane was {}", link_->peer_name(),
                                 end.refused_region != 0 ? "refused" : "not served in time"));
  stop_relaying();
  return move_part(transfer(), end.reached, chunk.to);
}

/// The rest of the post goes as if there were no lanes.
void Request::stop_relaying() {
  if (!relaying_.exchange(false)) return;
  get_help();
  instance_.wake();  // whoever waits for the request may work on it again
}

/// Gives back all that nobody has claimed. After stop() that moves nothing.
void Request::drain() {
  while (work_on_chunk()) {
  }
}

/// A post that reads through lanes is the pool's, if it has a thread for it: a thread more would take the
/// core that the owner's needs.
bool Request::poll() {
  if (relaying_.load(std::memory_order_relaxed)) {
    if (helping_.load(std::memory_order_relaxed) != 0) return false;
    if (now_ns() - helped_ns_.load(std::memory_order_relaxed) < until_pool_is_busy_ns) return false;
  }
  return work_on_chunk();
}

/// Lets the current post end with `outcome` unless something else went wrong before.
void Request::stop(const Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::idle || !outcome_.status.ok()) return;
  outcome_ = outcome;
  stopped_.store(true, std::memory_order_relaxed);
}

void Request::end_early(const Outcome& outcome) {
  stop(outcome);
  drain();
}

void Request::cancel() {
  ref();
  stop({{Code::canceled}, "canceled"});
  drain();
  unref();
}

// ------------------------------------------------------------------ threads of the pool

void Request::get_help() {
  const std::uint64_t chunks = (args_.bytes + chunk_bytes_ - 1) / chunk_bytes_;
  const std::uint32_t most =
      relaying_.load(std::memory_order_relaxed) ? instance_.relay_helpers : instance_.helpers;
  const std::uint64_t wanted = std::min<std::uint64_t>(most, std::max<std::uint64_t>(chunks - 1, 1));
  std::uint64_t found = 0;
  while (found < wanted && submit_helper()) ++found;
  if (found > 0) return;
  ref();
  {
    const std::lock_guard lock(instance_.stranded_mutex);
    instance_.stranded.push_back(this);
    instance_.has_stranded.store(true, std::memory_order_release);
  }
  instance_.wake();
}

bool Request::submit_helper() {
  ref();
  instance_.tasks.enter();
  if (instance_.host.submit<&Request::help>(this)) return true;
  instance_.tasks.leave();
  unref();
  return false;
}

void Request::help(Request* request) {
  TaskGate& tasks = request->instance_.tasks;
  {
    NearMemory thread(request->instance_.places.get());
    request->helping_.fetch_add(1, std::memory_order_relaxed);
    bool more = true;
    while (more) {
      const int turn = request->relaying_.load(std::memory_order_relaxed) ? 1 : chunks_a_turn;
      for (int i = 0; i < turn && more; ++i) more = request->work_on_chunk(&thread);
      if (more && request->submit_helper()) break;
    }
    request->helped_ns_.store(now_ns(), std::memory_order_relaxed);
    request->helping_.fetch_sub(1, std::memory_order_relaxed);
  }
  request->unref();
  tasks.leave();
}

bool Request::rescue() {
  if (submit_helper()) return false;
  return work_on_chunk();
}

// ------------------------------------------------------------------ the end

/// Tells the far side and the host. `counted`: the link knows of this post. After this the request may be
/// gone.
void Request::finish(Outcome outcome, bool counted) {
  const std::shared_ptr<Link> counting = counted ? link_ : nullptr;
  message_.end(*link_, outcome);
  if (counting != nullptr) counting->remove_active(this);
  instance_.host.completed(token_, outcome.status, outcome.text);
  if (counting != nullptr) counting->post_finished();
}

}  // namespace headrace::shm
