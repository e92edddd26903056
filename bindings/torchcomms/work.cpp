// SPDX-License-Identifier: Apache-2.0
#include "bindings/torchcomms/work.hpp"

#include "bindings/torch/comm/endings.hpp"
#include "bindings/torch/comm/kept.hpp"
#include "bindings/torchcomms/errors.hpp"

#include <span>
#include <utility>

namespace headrace::torchcomms_backend {

HeadraceWork::HeadraceWork(Tensors&& tensors, std::chrono::milliseconds timeout,
                           std::shared_ptr<AbortHooks> hooks)
    : tensors_(torch_group::keep(std::move(tensors))), timeout_(timeout), hooks_(std::move(hooks)) {}

HeadraceWork::~HeadraceWork() {
  const torch_group::FreesHere scope;
  work_ = {};
  tensors_.reset();
}

void HeadraceWork::begin(Work work) {
  work_ = std::move(work);
  setStatus(WorkStatus::INPROGRESS);
  torch_group::after(std::span(&work_, 1),
                     [self = c10::intrusive_ptr<HeadraceWork>::reclaim_copy(this)] { self->finish(); });
}

void HeadraceWork::wait() {
  runWaitPreHooks();
  auto waited = work_.wait();
  finish();
  runWaitPostHooks();
  take(std::move(waited));
}

void HeadraceWork::finish() {
  const std::scoped_lock lock(mutex_);
  if (std::exchange(finished_, true)) return;
  const Code code = work_.error().code;
  if (code == Code::ok) {
    tensors_->copy_back();
    return setStatus(WorkStatus::COMPLETED);
  }
  hooks_->run();
  setStatus(code == Code::timed_out ? WorkStatus::TIMEDOUT : WorkStatus::ERROR);
}

}  // namespace headrace::torchcomms_backend
