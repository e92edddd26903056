// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/local_copy.hpp"

#include "backends/tcp/chunk.hpp"
#include "backends/tcp/gpu_copy.hpp"

#include <algorithm>
#include <cstring>

namespace headrace::tcp {
namespace {

constexpr std::uint64_t inline_bytes = 256 * 1024;
constexpr ChunkLimits piece_limits{512 * 1024, 1 << 16};

Result<void> copy(const headrace_prepare_v1& args, const Chunk& chunk) {
  PageCursor cursor(args, chunk.from, chunk.to);
  PageRun run;
  GpuCopies by_gpu;
  while (cursor.next(run)) {
    const Region& mine = *static_cast<const Region*>(run.local_region);
    const Region& other = *static_cast<const RemoteRegion*>(run.remote_region)->local;
    if (mine.of_gpu() || other.of_gpu()) {
      if (args.op == HEADRACE_WRITE) {
        by_gpu.add(other, run.remote_offset, mine, run.local_offset, run.bytes);
      } else {
        by_gpu.add(mine, run.local_offset, other, run.remote_offset, run.bytes);
      }
      continue;
    }
    std::byte* const here = mine.base + run.local_offset;
    std::byte* const there = other.base + run.remote_offset;
    // The two sides may be the same memory.
    if (args.op == HEADRACE_WRITE) {
      std::memmove(there, here, run.bytes);
    } else {
      std::memmove(here, there, run.bytes);
    }
  }
  return by_gpu.wait();
}

}  // namespace

struct LocalRequest::Job {
  explicit Job(Context& the_context, const headrace_prepare_v1& prepared)
      : context(the_context), args(prepared) {}

  Context& context;
  const headrace_prepare_v1 args;
  std::mutex mutex;
  bool posted = false;
  std::uint64_t token = 0;  // of the present post
  bool canceled = false;
  Status failure;  // of the post, and its text
  std::string why;
  PagePosition next;
  unsigned pieces_under_way = 0;

  [[nodiscard]] bool anything_left() const {
    return posted && !canceled && failure.ok() && next.page < args.count;
  }

  /// Copies one piece, if one is left.
  bool work() {
    Chunk chunk;
    {
      const std::scoped_lock lock(mutex);
      if (!anything_left()) return false;
      chunk = cut_chunk(args, next, piece_limits);
      next = skip_empty_pages(args, chunk.to);
      ++pieces_under_way;
    }
    auto copied = copy(args, chunk);
    Status status;
    std::string text;
    std::uint64_t ended = 0;
    {
      const std::scoped_lock lock(mutex);
      if (!copied && failure.ok()) {
        failure.code = copied.code();
        why = std::move(copied).error().message;
      }
      if (--pieces_under_way > 0 || anything_left()) return true;
      posted = false;
      ended = token;
      if (!failure.ok()) {
        status = failure;
        text = std::move(why);
      } else if (next.page < args.count) {
        status.code = Code::canceled;
      }
    }
    context.host.completed(ended, status, text);
    return true;
  }
};

LocalRequest::LocalRequest(const headrace_prepare_v1& prepared, Context& context)
    : Request(prepared), job_(std::make_shared<Job>(context, prepared)), context_(context) {}

Status LocalRequest::post(const headrace_post_v1& how) {
  // A message to oneself is the host's own business.
  if (how.has_message != 0) return {Code::not_supported};
  const PagePosition begin = skip_empty_pages(args, {0, 0});
  const bool nothing = args.bytes == 0 || begin.page >= args.count;
  {
    const std::scoped_lock lock(job_->mutex);
    if (job_->posted) return {Code::invalid_argument};
    job_->posted = !nothing;
    job_->token = how.token;
    job_->canceled = false;
    job_->failure = {};
    job_->next = begin;
  }
  if (nothing) {
    context_.host.completed(how.token, {});
    return {};
  }
  if (args.bytes <= inline_bytes) {
    while (job_->work()) {
    }
    return {};
  }
  const std::uint64_t pieces = (args.bytes + piece_limits.bytes - 1) / piece_limits.bytes;
  unsigned helpers = 0;
  for (; helpers < std::min<std::uint64_t>(pieces, context_.host.pool_threads()); ++helpers) {
    auto* const task = new std::shared_ptr<Job>(job_);
    context_.tasks.fetch_add(1);
    if (context_.host.submit<&LocalRequest::run>(task)) continue;
    context_.tasks.fetch_sub(1);
    delete task;
    break;
  }
  if (helpers > 0) return {};
  const std::scoped_lock lock(job_->mutex);
  // A task of an earlier post that came late may have begun already; then it goes on to the end.
  if (!job_->posted || job_->pieces_under_way > 0 || job_->next != begin) return {};
  job_->posted = false;
  return {Code::would_block};
}

/// A task of the pool.
void LocalRequest::run(std::shared_ptr<Job>* given) {
  const std::unique_ptr<std::shared_ptr<Job>> job(given);
  std::atomic<unsigned>& tasks = (*job)->context.tasks;
  while ((*job)->work()) {
  }
  tasks.fetch_sub(1);
}

bool LocalRequest::poll() { return job_->work(); }

void LocalRequest::cancel() {
  std::uint64_t token = 0;
  {
    const std::scoped_lock lock(job_->mutex);
    if (!job_->posted || job_->canceled) return;
    job_->canceled = true;
    if (job_->pieces_under_way > 0) return;  // the last copier ends it
    job_->posted = false;
    token = job_->token;
  }
  context_.host.completed(token, {Code::canceled});
}

}  // namespace headrace::tcp
