// SPDX-License-Identifier: Apache-2.0
// A request that lies in CUDA graphs: the host has no part in its replays, so all that they touch is held
// from the capture on, and what went wrong is looked for when somebody asks.
#include "backends/cuda_ipc/request.hpp"

#include <span>
#include <unordered_map>
#include <utility>

namespace headrace::cuda_ipc {

Result<bool> Request::capture(const headrace_capture_v1& args) {
  const auto stream = static_cast<cuda::Stream>(args.stream);
  HEADRACE_TRY(capturing, look_at_stream(stream));
  if (capturing == cuda::CaptureStatus::none) return false;
  if (capturing == cuda::CaptureStatus::invalidated)
    return make_error(Code::invalid_argument,
                      "the capture of the stream has failed already: end it, and look what failed before");
  if (args.has_message != 0)
    return make_error(
        Code::not_supported,
        "a graph carries no notification and no immediate: post without, and notify when a replay has ended");
  HEADRACE_TRY_VOID(find_memory_for_graph());
  if (by_owner_ != nullptr || stages_) {
    memory_.clear();
    return make_error(
        Code::not_supported,
        "host memory that was registered, not allocated, moves with the help of its process, which "
        "no graph calls: take memory from `allocate`");
  }
  auto move = prepare_for_graph(args);
  auto recorded = move ? Result<void>() : Result<void>(move.error());
  if (recorded && args.indices != nullptr) recorded = (*move)->record_indices(*args.indices);
  if (recorded) recorded = (*move)->record(stream);
  if (!recorded) {
    end_capture();
    return std::move(recorded).error();
  }
  captured_ = std::move(*move);
  return true;
}

/// Where the remote regions are, now or not at all: a capture cannot wait.
Result<void> Request::find_memory_for_graph() {
  if (link_ == nullptr) return {};  // found when it was prepared
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
  captured_.reset();
  if (link_ != nullptr) memory_.clear();
}

Result<void> Request::set_indices(const headrace_indices_v1& args) {
  HEADRACE_TRY(capturing, look_at_stream(static_cast<cuda::Stream>(args.stream)));
  if (capturing != cuda::CaptureStatus::none)
    return make_error(
        Code::invalid_argument,
        "the stream is being captured: change page numbers outside of captures, or give them with the "
        "post that is captured");
  return captured_->set_indices(args);
}

Result<std::uint64_t> Request::check() {
  // First how many: what is looked at behind that holds for them all.
  const std::uint64_t replays = captured_->replays();
  if (link_ != nullptr) {
    // A peer that was killed has closed nothing and deregistered nothing: only the link knows.
    Outcome seen = link_->usable() ? check_peer() : link_->why_lost();
    if (!seen.status.ok()) return std::move(seen).error();
  }
  if (const auto refused = captured_->take_refused()) {
    const bool local = refused->of_target == (args_.op == HEADRACE_READ);
    Error error =
        make_error(Code::invalid_argument,
                   "a replay passed over page {}, and maybe others: its number in the {} list, which a GPU "
                   "had written, is not below the list's number of pages",
                   refused->page, local ? "local" : "remote");
    error.page = refused->page;
    return error;
  }
  return replays;
}

}  // namespace headrace::cuda_ipc
