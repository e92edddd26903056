// SPDX-License-Identifier: Apache-2.0
// A request that lies in CUDA graphs: the host has no part in its replays, so all that they touch is held
// from the capture on, and what went wrong is looked for when somebody asks. The threads
// that look for the ends of posts also look for replays that the peer counts, and tell them.
#include "backends/cuda_ipc/request.hpp"
#include "gpu/given_stream.hpp"

#include <span>
#include <unordered_map>
#include <utility>

namespace headrace::cuda_ipc {

Result<bool> Request::capture(const headrace_capture_v1& args) {
  HEADRACE_TRY(captured, gpu::is_captured(*gpu_, args));
  if (!captured) return false;
  HEADRACE_TRY_VOID(find_memory_for_graph());
  if (by_owner_ != nullptr || stages_) {
    memory_.clear();
    return make_error(
        Code::not_supported,
        "host memory that was registered, not allocated, moves with the help of its process, which "
        "no graph calls: take memory from `allocate`");
  }
  auto move = prepare_for_graph(args);
  auto recorded = move ? gpu::record(**move, args) : Result<void>(move.error());
  if (!recorded) {
    end_capture();
    return std::move(recorded).error();
  }
  captured_ = std::move(*move);
  counted_as_ = plugin::Immediate::of(args);
  if (counted_as_) watch_ = gpu::ReplayWatch::start(instance_.posts, *gpu_, *captured_, *this);
  return true;
}

/// Where the remote regions are, now or not at all: a capture cannot wait.
Result<void> Request::find_memory_for_graph() {
  if (link_->state() == host_link::LinkState::connecting)
    return make_error(Code::would_block, "the link to peer {} is being made: post once before the capture",
                      link_->peer_name());
  if (!link_->usable()) return link_->why_lost().error();
  Outcome why;
  const Ready ready = find_memory(why);
  if (ready == Ready::yes) why = check_peer();
  if (ready == Ready::not_yet)
    why = {{Code::would_block},
           fmt::format("peer {} has not said yet how to reach its memory: post once before the capture",
                       link_->peer_name())};
  if (why.status.ok()) return {};
  memory_.clear();
  return std::move(why).error();
}

Result<std::unique_ptr<gpu::GraphMove>> Request::prepare_for_graph(const headrace_capture_v1& args) const {
  const std::span handles(args_.remote->regions, args_.remote->region_count);
  std::unordered_map<void*, cuda::Address> remote;
  for (std::size_t i = 0; i < handles.size(); ++i) remote.emplace(handles[i], memory_[i].address);
  return gpu::GraphMove::prepare(
      gpu_->mover, args_, {args.local_pages, args.remote_pages},
      [this](void* handle) { return local_.at(handle); },
      [&remote](void* handle) { return remote.at(handle); });
}

void Request::end_capture() {
  if (watch_ != nullptr) watch_->stop();
  watch_.reset();
  captured_.reset();
  memory_.clear();
}

/// As at the end of a post, which is not counted either if the owner had given the memory up.
void Request::replays_ended(std::uint32_t count) {
  if (!link_->usable() || !check_peer().status.ok()) return;
  link_->messages().send_beyond(host_link::count_channel,
                                host_link::CountRecord{*counted_as_, count}.bytes());
}

Result<void> Request::set_indices(const headrace_indices_v1& args) {
  return gpu::change_indices(*gpu_, *captured_, args);
}

Result<std::uint64_t> Request::check() {
  // First how many: what is looked at behind that holds for them all.
  const std::uint64_t replays = captured_->replays();
  // A peer that was killed has closed nothing and deregistered nothing: only the link knows.
  Outcome seen = link_->usable() ? check_peer() : link_->why_lost();
  if (!seen.status.ok()) return std::move(seen).error();
  HEADRACE_TRY_VOID(gpu::check_replays(*captured_, args_.op));
  return replays;
}

}  // namespace headrace::cuda_ipc
