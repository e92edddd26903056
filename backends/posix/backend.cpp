// SPDX-License-Identifier: Apache-2.0
#include "backends/posix/backend.hpp"

#include "backends/posix/job.hpp"
#include "backends/posix/query.hpp"

#include <algorithm>

namespace headrace::posix {
namespace {

/// Checks that one side is memory and the other files, and that the target may be written.
Result<void> check_side(const headrace_side_v1& side, bool files, bool is_target) {
  for (void* const handle : std::span(side.regions, side.region_count)) {
    const Region& region = Handles::region(handle);
    if ((region.file() != nullptr) != files)
      return make_error(
          Code::not_supported,
          "posix reads files into memory and writes them from it: region {} on the {} side is {}",
          region.id(), files ? "remote" : "local", files ? "memory" : "a file");
    if (is_target && region.read_only())
      return make_error(Code::invalid_argument, "region {} may be read, not written", region.id());
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<PosixBackend>> PosixBackend::open(plugin::Host host, const plugin::CreateArgs& args) {
  return open(host, args, FileCalls::system());
}

Result<std::unique_ptr<PosixBackend>> PosixBackend::open(plugin::Host host, const plugin::CreateArgs& args,
                                                         const FileCalls& calls) {
  HEADRACE_TRY(settings, read_settings(args));
  return std::unique_ptr<PosixBackend>(new PosixBackend(host, settings, calls));
}

headrace_info_v1 PosixBackend::info() {
  headrace_info_v1 info{};
  info.struct_size = sizeof info;
  info.abilities = HEADRACE_LOCAL | HEADRACE_QUERY | HEADRACE_GRID;
  info.local_kinds = HEADRACE_KIND_BIT(HEADRACE_DRAM);
  info.remote_kinds = HEADRACE_KIND_BIT(HEADRACE_FILE);
  return info;
}

Result<Region*> PosixBackend::register_region(const headrace_region_v1& args) {
  HEADRACE_TRY(region, Region::make(args, calls_));
  return region.release();
}
void PosixBackend::deregister_region(Region& region) { delete &region; }

Result<Region*> PosixBackend::load_local(Region& region) { return &region; }
void PosixBackend::unload(Region&) {}

Result<Request*> PosixBackend::prepare(Link* /*link*/, const headrace_prepare_v1& args) {
  HEADRACE_TRY_VOID(check_side(*args.local, false, args.op == HEADRACE_READ));
  HEADRACE_TRY_VOID(check_side(*args.remote, true, args.op == HEADRACE_WRITE));
  return new Request{std::make_shared<Job>(host_, args, settings_.piece_bytes)};
}

Status PosixBackend::post(Request& request, const headrace_post_v1& args) {
  if (args.has_message != 0) return {Code::not_supported};  // the host delivers messages to its own agent
  const auto pool = workers();
  if (!pool) {
    host_.log(HEADRACE_LOG_WARN, pool.error().message);
    return {pool.error().code};
  }
  const std::shared_ptr<Job>& job = request.job;
  if (!job->begin(args.token)) return {Code::invalid_argument};
  const std::uint64_t wanted = std::min<std::uint64_t>(job->pieces(), settings_.threads);
  std::uint64_t helpers = 0;
  while (helpers < wanted && (*pool)->submit([job] { job->work(); })) ++helpers;
  if (helpers == 0 && job->take_back()) return {Code::would_block};
  return {};
}

void PosixBackend::cancel(Request& request) { request.job->cancel(); }
void PosixBackend::release(Request& request) { delete &request; }

Result<std::string> PosixBackend::query(const headrace_query_v1& args) { return posix::query(args); }

headrace_cost_v1 PosixBackend::cost(const headrace_prepare_v1&) {
  return {.struct_size = sizeof(headrace_cost_v1),
          .fixed_ns = 20'000,
          .ns_per_page = 500,
          .bytes_per_second = 1e9,
          .margin = 1,
          .method = "constant: the cost of a file depends on its file system"};
}

/// Starts the threads at the first post: an agent that moves no files has none.
Result<WorkerPool*> PosixBackend::workers() {
  const std::scoped_lock lock(workers_mutex_);
  if (!workers_) {
    HEADRACE_TRY(pool, WorkerPool::open("hr-posix", settings_.threads, settings_.queue_depth));
    workers_ = std::move(pool);
  }
  return workers_.get();
}

}  // namespace headrace::posix
