// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/owner_move.hpp"

#include "backends/cuda_ipc/remote_region.hpp"

#include <utility>

namespace headrace::cuda_ipc {
namespace {

ToldRegion tell_own(void* handle) {
  const Region& region = Handles::region(handle);
  if (region.gpu() == nullptr) return {region.id(), HEADRACE_DRAM, region.length(), 0};
  return {region.id(), HEADRACE_VRAM, region.length(), mark_of(region.gpu()->device->info())};
}

ToldRegion tell_remote(void* handle) {
  const RemoteRegion& region = Handles::remote(handle);
  return {region.peer().id(), region.is_of_gpu() ? HEADRACE_VRAM : HEADRACE_DRAM, region.length(),
          region.gpu_mark()};
}

}  // namespace

Result<std::unique_ptr<OwnerMove>> OwnerMove::prepare(std::shared_ptr<Link> link,
                                                      const headrace_prepare_v1& args) {
  HEADRACE_TRY(file, write_move_file(args, tell_own, tell_remote));
  EndWordsView::Word word = link->take_end_word();
  const std::uint32_t number = link->tell_move(std::move(file.descriptor), word.number());
  return std::unique_ptr<OwnerMove>(
      new OwnerMove(std::move(link), number, std::move(file.control), std::move(word)));
}

OwnerMove::~OwnerMove() { link_->tell_drop(number_); }

void OwnerMove::tell_owner() const { link_->tell_go(number_); }

bool OwnerMove::poll_done() const { return has_ended() || control_.was_withdrawn(posts_) || owner_is_gone(); }

/// Its GPUs have stopped with it. Until the link is lost nothing is asked of the system.
bool OwnerMove::owner_is_gone() const {
  if (link_->state() != host_link::LinkState::lost) return false;
  const host_link::PeerProcess& owner = link_->process();
  return owner.pidfd() >= 0 ? !owner.still_there() : owner.dying();
}

host_link::Outcome OwnerMove::outcome() const {
  if (control_.was_withdrawn(posts_)) return {{Code::canceled}, "canceled"};
  if (!has_ended()) return link_->why_lost();
  host_link::Outcome outcome = control_.outcome(posts_);
  if (!outcome.status.ok()) outcome.text = fmt::format("peer {} says: {}", link_->peer_name(), outcome.text);
  return outcome;
}

}  // namespace headrace::cuda_ipc
