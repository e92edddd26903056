// SPDX-License-Identifier: Apache-2.0
#include "local/copy_request.hpp"

#include <algorithm>
#include <utility>

namespace headrace::local {
namespace {

constexpr std::uint64_t least_chunk_bytes = 64 * 1024;
constexpr std::uint64_t runs_a_turn = 1024;  // in a chunk or inside post
constexpr int chunks_a_turn = 8;  // then the helper goes to the end of the pool's queue, for other requests

std::uint64_t chunk_bytes_for(const Settings& settings, const headrace_prepare_v1& args) {
  const std::uint64_t run_bytes =
      std::max<std::uint64_t>(args.bytes / std::max<std::uint64_t>(most_stretches(args), 1), 1);
  return run_bytes >= settings.chunk_bytes ? settings.chunk_bytes
                                           : std::min(settings.chunk_bytes, run_bytes * runs_a_turn);
}

}  // namespace

CopyRequest::CopyRequest(Instance& instance, const headrace_prepare_v1& args)
    : instance_(instance),
      args_(args),
      mode_(args.bytes >= instance.settings.stream_bytes ? CopyMode::streaming : CopyMode::cached),
      chunk_bytes_(chunk_bytes_for(instance.settings, args)) {}

Error CopyRequest::no_stream() {
  return {Code::not_supported, "threads copy the pages of this request, and no stream waits for threads"};
}

Status CopyRequest::post(const headrace_post_v1& args) {
  // A message to oneself is the host's business, and no stream waits for threads.
  if (args.has_message != 0 || args.stream != nullptr) return {Code::not_supported};
  token_ = args.token;
  stopped_.store(false, std::memory_order_relaxed);
  if (args_.bytes == 0) {
    instance_.completed(token_, {});
  } else if (args_.bytes <= instance_.settings.inline_bytes && most_stretches(args_) <= runs_a_turn) {
    instance_.completed(token_, move_pages(move(), {0, 0}, {args_.count, 0}));
  } else {
    begin_chunks();
  }
  return {};
}

void CopyRequest::begin_chunks() {
  ref();  // the end may come, and the host's release with it, while we still look for help
  {
    const std::lock_guard lock(mutex_);
    active_ = true;
    next_ = {0, 0};
    unclaimed_ = unfinished_ = args_.bytes;
    outcome_ = {};
  }
  get_help();
  unref();
}

bool CopyRequest::claim(Chunk& chunk) {
  const std::lock_guard lock(mutex_);
  if (!active_ || unclaimed_ == 0) return false;
  chunk.move = outcome_.ok();
  chunk.from = next_;
  chunk.bytes = unclaimed_;
  if (chunk.move) {
    // Towards the end the chunks get smaller, so that the threads finish together.
    const std::uint64_t share = unclaimed_ / (2 * (instance_.helpers + 1));
    chunk.bytes =
        std::min(unclaimed_, std::clamp(share, std::min(least_chunk_bytes, chunk_bytes_), chunk_bytes_));
    chunk.to = unclaimed_ == chunk.bytes ? PagePosition{args_.count, 0}
                                         : position_at_byte(args_, chunk.bytes, next_);
    next_ = chunk.to;
  }
  unclaimed_ -= chunk.bytes;
  return true;
}

/// `thread`: of a thread that may be placed.
bool CopyRequest::work_on_chunk(NearMemory* thread) {
  Chunk chunk;
  if (!claim(chunk)) return false;
  if (thread != nullptr && chunk.move && instance_.places != nullptr)
    if (const std::byte* const target = first_target(args_, chunk.from, chunk.to)) thread->write_to(target);
  give_back(chunk, chunk.move ? move_pages(move(), chunk.from, chunk.to) : Result<void>());
  return true;
}

/// The last one completes the post.
void CopyRequest::give_back(const Chunk& chunk, Result<void> moved) {
  Result<void> ended;
  {
    const std::lock_guard lock(mutex_);
    if (!moved && outcome_.ok()) {
      outcome_ = std::move(moved);
      stopped_.store(true, std::memory_order_relaxed);
    }
    unfinished_ -= chunk.bytes;
    if (unfinished_ > 0) return;
    active_ = false;
    ended = std::move(outcome_);
  }
  instance_.completed(token_, ended);
}

/// Gives back all that nobody has claimed. After a failure that moves nothing.
void CopyRequest::drain() {
  while (work_on_chunk()) {
  }
}

void CopyRequest::cancel() {
  ref();
  {
    const std::lock_guard lock(mutex_);
    if (active_ && outcome_.ok()) {
      outcome_ = Error{Code::canceled, "canceled"};
      stopped_.store(true, std::memory_order_relaxed);
    }
  }
  drain();
  unref();
}

// ------------------------------------------------------------------ threads of the pool

void CopyRequest::get_help() {
  const std::uint64_t chunks = (args_.bytes + chunk_bytes_ - 1) / chunk_bytes_;
  const std::uint64_t wanted =
      std::min<std::uint64_t>(instance_.helpers, std::max<std::uint64_t>(chunks - 1, 1));
  std::uint64_t found = 0;
  while (found < wanted && submit_helper()) ++found;
  if (found > 0) return;
  ref();
  instance_.strand(*this);
}

bool CopyRequest::submit_helper() {
  ref();
  instance_.tasks.enter();
  if (instance_.host.submit<&CopyRequest::help>(this)) return true;
  instance_.tasks.leave();
  unref();
  return false;
}

void CopyRequest::help(CopyRequest* request) {
  TaskGate& tasks = request->instance_.tasks;
  {
    NearMemory thread(request->instance_.places.get());
    bool more = true;
    while (more) {
      for (int i = 0; i < chunks_a_turn && more; ++i) more = request->work_on_chunk(&thread);
      if (more && request->submit_helper()) break;
    }
  }
  request->unref();
  tasks.leave();
}

bool CopyRequest::rescue() {
  if (submit_helper()) return false;
  return work_on_chunk();
}

}  // namespace headrace::local
