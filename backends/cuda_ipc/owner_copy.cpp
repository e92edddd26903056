// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/owner_copy.hpp"

#include "backends/cuda_ipc/owner_copies.hpp"

#include <algorithm>
#include <utility>

namespace headrace::cuda_ipc {
namespace {

Outcome outcome_of(const Error& error) { return {{error.code, 0, error.page}, error.message}; }

}  // namespace

// ------------------------------------------------------------------ preparing

void OwnerCopy::prepare(const UniqueFd& file) {
  {
    const std::scoped_lock lock(mutex_);
    if (refused_) return;
  }
  auto made = make_work(file);
  if (!made) return refuse(std::move(made).error());
  const std::vector<std::shared_ptr<const Region>> regions = (*made)->ours;
  {
    const std::scoped_lock lock(mutex_);
    if (!refused_) work_ = std::move(*made);
  }
  // One that was deregistered meanwhile has looked for us before we had it.
  for (const auto& region : regions)
    if (instance_.region(region->id()) != region) give_up(region->id());
}

Result<std::shared_ptr<OwnerCopy::Work>> OwnerCopy::make_work(const UniqueFd& file) {
  auto work = std::make_shared<Work>();
  HEADRACE_TRY(list, read_move_list(file.get()));
  work->list = std::move(list);
  for (const ToldRegion& told : work->list.owners.regions) work->ours.push_back(instance_.region(told.id));
  HEADRACE_TRY(bytes, work->list.check([&](std::size_t number) -> std::optional<std::uint64_t> {
    const auto& region = work->ours[number];
    return region != nullptr ? std::optional(region->length()) : std::nullopt;
  }));
  HEADRACE_TRY_VOID(find_regions(*work));
  headrace_prepare_v1 args{};
  args.struct_size = sizeof args;
  args.op = work->list.op == HEADRACE_READ ? HEADRACE_WRITE : HEADRACE_READ;  // seen from our side
  args.connection = &link_;
  args.count = work->list.count;
  args.bytes = bytes;
  args.local = &work->our_side;
  args.remote = &work->their_side;
  if (work->list.grid) {
    work->grid = *work->list.grid;
    std::swap(work->grid.local_strides, work->grid.remote_strides);  // likewise
    args.grid = &work->grid;
  }
  HEADRACE_TRY(request, Request::prepare(instance_, args, link_.shared(), this));
  work->request = request;
  return work;
}

Result<void> OwnerCopy::find_regions(Work& work) const {
  for (const auto& region : work.ours)
    work.our_handles.push_back(const_cast<void*>(static_cast<const void*>(region.get())));
  for (const ToldRegion& told : work.list.initiators.regions) {
    HEADRACE_TRY(remote, copies_.remote(told));
    work.their_handles.push_back(remote.get());
    work.theirs.push_back(std::move(remote));
  }
  work.our_side = work.list.owners.view(work.list, work.our_handles);
  work.their_side = work.list.initiators.view(work.list, work.their_handles);
  return {};
}

// ------------------------------------------------------------------ posts

/// The work of a post that begins now; none: nothing is asked for, it has been refused, or one has not ended.
std::shared_ptr<OwnerCopy::Work> OwnerCopy::take_turn() {
  const std::scoped_lock lock(mutex_);
  if (running_ != nullptr) {
    again_ = true;
    return nullptr;
  }
  if (work_ == nullptr) {
    const auto number = control_.begin();
    if (number && refused_) control_.fail(*number, outcome_of(*refused_));
    return nullptr;
  }
  self_ = shared_from_this();
  running_ = work_;
  begun_.reset();
  called_off_ = gpu_tells_ = again_ = false;
  return running_;
}

void OwnerCopy::go() {
  const std::shared_ptr<Work> work = take_turn();
  if (work == nullptr) {
    std::shared_ptr<Work> running;
    {
      const std::scoped_lock lock(mutex_);
      running = running_;
    }
    if (running != nullptr)
      (void)instance_.posts.poll(*running->request);  // its GPU has told the peer already
    return;
  }
  headrace_post_v1 args{};
  args.struct_size = sizeof args;
  args.deadline_ns = UINT64_MAX;
  if (const Status refused = work->request->post(args); !refused.ok())
    ended({refused, fmt::format("the link to agent {} does not take it", link_.peer_name())});
}

bool OwnerCopy::may_begin() {
  const std::scoped_lock lock(mutex_);
  if (refused_) return false;
  begun_ = control_.begin();
  called_off_ = !begun_;
  return begun_.has_value();
}

void OwnerCopy::queued(const gpu::WorkingGpu& gpu, cuda::Stream stream) {
  const auto word = copies_.end_word(gpu, name_.end_word);
  if (!word) return;
  const std::scoped_lock lock(mutex_);
  const gpu::ContextGuard current(*gpu.device);
  gpu_tells_ = gpu.device->driver().stream_write_value_64(
                   stream, *word, *begun_, cuda::write_value_default) == cuda::Outcome::success;
}

void OwnerCopy::ended(const Outcome& outcome) {
  std::shared_ptr<OwnerCopy> self;  // these two go last, in this order, and outside the lock
  std::shared_ptr<Work> work;
  bool again = false;
  {
    const std::scoped_lock lock(mutex_);
    const bool well = outcome.status.ok();
    const Outcome why = !well && refused_ ? outcome_of(*refused_) : outcome;
    // Where the GPU has moved, its word is on the way, and is the answer: what is found afterwards is about
    // the initiator's memory, or the link. Told besides, it would give the word to another request before it
    // is written. A GPU that failed writes none.
    const bool answered = gpu_tells_ && outcome.status.code != Code::backend_failed;
    if (!well && !begun_ && !called_off_) begun_ = control_.begin();
    if (begun_ && !answered && !well) control_.fail(*begun_, why);
    if (begun_ && !answered && well) control_.end_well(*begun_);
    self = std::move(self_);
    work = std::move(running_);
    again = again_;
  }
  if (again) link_.look_again(name_.number);
}

// ------------------------------------------------------------------ refusing

void OwnerCopy::refuse(Error why) {
  std::shared_ptr<Work> work, running;  // go outside the lock
  {
    const std::scoped_lock lock(mutex_);
    if (!refused_) refused_ = std::move(why);
    work = std::move(work_);
    running = running_;
  }
  if (running != nullptr) running->request->cancel();
}

void OwnerCopy::give_up(std::uint32_t region_id) {
  {
    const std::scoped_lock lock(mutex_);
    const Work* const work = running_ != nullptr ? running_.get() : work_.get();
    if (work == nullptr ||
        std::ranges::none_of(work->ours, [&](const auto& r) { return r->id() == region_id; }))
      return;
  }
  refuse(make_error(Code::not_found, "region {} was deregistered; fetch the metadata again", region_id));
}

}  // namespace headrace::cuda_ipc
