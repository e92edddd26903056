// SPDX-License-Identifier: Apache-2.0
#include "backends/posix/job.hpp"

#include "backends/posix/region.hpp"

#include <array>
#include <utility>

namespace headrace::posix {
namespace {

const File& file_of(const PageRun& run) { return *Handles::remote(run.remote_region).file(); }

/// Whether the run continues in the file where the run before it ends.
bool continues(const PageRun& run, const PageRun& before) {
  return run.remote_region == before.remote_region &&
         run.remote_offset == before.remote_offset + before.bytes;
}

}  // namespace

std::uint64_t Job::pieces() const {
  return args_.bytes / piece_bytes_ + most_stretches(args_) / runs_a_piece + 1;
}

bool Job::begin(std::uint64_t token) {
  {
    const std::scoped_lock lock(mutex_);
    if (posted_) return false;
    token_ = token;
    stopping_ = false;
    failure_.reset();
    cursor_.emplace(args_, piece_bytes_);
    posted_ = !cursor_->done();
    if (posted_) return true;
  }
  host_.completed(token, {});
  return true;
}

bool Job::take_back() {
  const std::scoped_lock lock(mutex_);
  // A task of an earlier post may have begun already, or even have ended this one.
  if (!posted_ || under_way_ > 0 || cursor_->position() != PagePosition{0, 0}) return false;
  posted_ = false;
  return true;
}

void Job::work() {
  std::array<PageRun, runs_a_piece> runs;
  while (const std::size_t count = claim(runs)) give_back(move(std::span(runs).first(count)));
}

void Job::cancel() {
  std::uint64_t token = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (!posted_) return;
    stopping_ = true;
    if (under_way_ > 0) return;  // the last active thread ends it
    posted_ = false;
    token = token_;
  }
  host_.completed(token, {Code::canceled});
}

std::size_t Job::claim(std::span<PageRun> runs) {
  const std::scoped_lock lock(mutex_);
  if (!posted_ || stopping_) return 0;
  std::size_t count = 0;
  for (std::uint64_t bytes = 0; count < runs.size() && bytes < piece_bytes_ && cursor_->next(runs[count]);
       ++count)
    bytes += runs[count].bytes;
  if (count > 0) ++under_way_;
  return count;
}

/// Runs that are neighbours in the file go in one call.
std::optional<Job::Failure> Job::move(std::span<const PageRun> runs) const {
  const auto op = static_cast<headrace_op_v1>(args_.op);
  std::array<iovec, runs_a_piece> parts;
  for (std::size_t first = 0, next = 0; first < runs.size(); first = next) {
    do {
      const PageRun& run = runs[next];
      parts[next - first] = {Handles::region(run.local_region).base() + run.local_offset, run.bytes};
      ++next;
    } while (next < runs.size() && continues(runs[next], runs[next - 1]));
    Moved moved =
        file_of(runs[first]).move(op, std::span(parts).first(next - first), runs[first].remote_offset);
    if (moved.status.ok()) continue;
    std::size_t stopped = first;
    for (; stopped + 1 < next && moved.bytes >= runs[stopped].bytes; ++stopped)
      moved.bytes -= runs[stopped].bytes;
    const PageRun& run = runs[stopped];
    moved.status.page = position_at_byte(args_, moved.bytes, {run.first_page, run.first_page_skip}).page;
    return Failure{moved.status, std::move(moved.text)};
  }
  return std::nullopt;
}

void Job::give_back(std::optional<Failure> failure) {
  Failure end;
  std::uint64_t token = 0;
  {
    const std::scoped_lock lock(mutex_);
    --under_way_;
    if (failure && (!failure_ || failure->status.page < failure_->status.page)) failure_ = std::move(failure);
    if (failure_) stopping_ = true;
    if (under_way_ > 0 || (!stopping_ && !cursor_->done())) return;
    posted_ = false;
    token = token_;
    if (failure_) {
      end = *std::move(failure_);
    } else if (!cursor_->done()) {
      end.status.code = Code::canceled;
    }
  }
  host_.completed(token, end.status, end.text);
}

}  // namespace headrace::posix
