// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/c10d/work.hpp"

#include "bindings/torch/c10d/errors.hpp"
#include "bindings/torch/comm/endings.hpp"
#include "bindings/torch/comm/kept.hpp"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace headrace::torch_group {
namespace {

using Clock = std::chrono::steady_clock;

std::optional<TensorList> profiled(const char* title, const Tensors& tensors) {
  if (title == nullptr) return std::nullopt;
  return tensors.inputs();
}

bool has_ended(const headrace::Work& work) { return work.status() > WorkStatus::in_progress; }

c10d::WorkResult result_of(Code code) {
  if (code == Code::ok) return c10d::WorkResult::SUCCESS;
  return code == Code::timed_out ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
}

}  // namespace

GroupWork::GroupWork(std::shared_ptr<Comm> comm, c10d::OpType type, const char* title, Tensors&& tensors)
    : c10d::Work(comm->rank(), type, title, profiled(title, tensors)),
      comm_(std::move(comm)),
      has_range_(title != nullptr),
      has_copies_(tensors.has_copies()) {
  tensors_.push_back(keep(std::move(tensors)));
}

GroupWork::~GroupWork() {
  const FreesHere scope;
  works_.clear();
  tensors_.clear();
}

void GroupWork::add_all(const GroupWork& other) {
  has_copies_ = has_copies_ || other.has_copies_;
  works_.append(other.works_.begin(), other.works_.end());
  tensors_.append(other.tensors_.begin(), other.tensors_.end());
}

void GroupWork::seal() {
  if (has_range_) after(works_, [work = self()] { work->end_range(); });
}

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  const auto deadline = timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout;
  for (const headrace::Work& work : works_) wait_for(work, deadline);
  finish_outputs();
  end_range();
  return true;
}

void GroupWork::wait_for(const headrace::Work& work, Clock::time_point deadline) const {
  constexpr Clock::duration slice = std::chrono::milliseconds(100);  // so that Ctrl-C is noticed
  for (;;) {
    const auto left = deadline == Clock::time_point::max() ? Clock::duration::max() : deadline - Clock::now();
    auto waited = work.wait(std::clamp(left, Clock::duration::zero(), slice));
    if (waited) return;
    if (has_ended(work)) {
      Error error = work.error();
      if (error.code != Code::ok) throw CommError(std::move(error));
      return;  // it ended well after the wait did
    }
    if (waited.code() != Code::timed_out || left <= slice) throw CommError(std::move(waited).error());
    check_signals();
  }
}

bool GroupWork::isCompleted() {
  bool all = true;
  for (const headrace::Work& work : works_) all = work.is_completed() && all;  // each call makes progress
  if (!all) return false;
  if (error().code == Code::ok) finish_outputs();
  end_range();
  return true;
}

bool GroupWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const headrace::Work& work) {
    return work.is_completed() && work.error().code == Code::ok;
  });
}

Error GroupWork::error() const {
  for (const headrace::Work& work : works_)
    if (Error error = work.error(); error.code != Code::ok) return error;
  return {Code::ok, {}};
}

std::exception_ptr GroupWork::exception() const {
  Error error = this->error();
  return error.code == Code::ok ? nullptr : std::make_exception_ptr(CommError(std::move(error)));
}

int GroupWork::sourceRank() const { return works_.empty() ? -1 : works_.front().source(); }

std::vector<at::Tensor> GroupWork::result() {
  TensorList all;
  for (const auto& tensors : tensors_) {
    const TensorList some = tensors->outputs();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void GroupWork::abort() {
  if (comm_) comm_->abort("abort of a work was called");
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  after(works_, [work = self(), future] {
    try {
      if (const Error error = work->error(); error.code != Code::ok) throw CommError(error);
      work->finish_outputs();
    } catch (...) {
      return future->setError(std::current_exception());
    }
    future->markCompleted(c10::IValue(work->result()));
  });
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFutureResult() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  after(works_, [work = self(), future] {
    future->markCompleted(c10::IValue(static_cast<std::int64_t>(result_of(work->error().code))));
  });
  return future;
}

void GroupWork::finish_outputs() {
  if (!has_copies_) return;
  const std::scoped_lock lock(outputs_mutex_);
  if (std::exchange(outputs_finished_, true)) return;
  for (const auto& tensors : tensors_) tensors->copy_back();
}

void GroupWork::end_range() {
  if (!has_range_) return;
  const std::scoped_lock lock(mutex_);
  if (auto end = std::exchange(recordFunctionEndCallback_, nullptr)) end();
}

c10::intrusive_ptr<GroupWork> GroupWork::self() { return c10::intrusive_ptr<GroupWork>::reclaim_copy(this); }

}  // namespace headrace::torch_group
