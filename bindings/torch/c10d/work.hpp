// SPDX-License-Identifier: Apache-2.0
// torch's Work for operations of a communicator.
#pragma once

#include <headrace/comm.hpp>

#include "bindings/torch/comm/tensors.hpp"

#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <mutex>

namespace headrace::torch_group {

/// Operations that belong to one call: all of them, until they have ended.
///   threads  any
///   owns     the communicator, and the tensors as long as it lives or an operation uses them
class GroupWork final : public c10d::Work {
 public:
  /// Of several other works, for add_all.
  explicit GroupWork(c10d::OpType type) : c10d::Work(-1, type) {}
  /// title: what profilers show, from now until the end; null: no range. It stays in place.
  GroupWork(std::shared_ptr<Comm> comm, c10d::OpType type, const char* title, Tensors&& tensors);
  ~GroupWork() override;

  void add(headrace::Work work) { works_.push_back(std::move(work)); }
  /// Takes in the operations of another work.
  void add_all(const GroupWork& other);
  /// Keeps the tensors: OpOptions::owner.
  [[nodiscard]] std::shared_ptr<const void> owner() const { return tensors_.front(); }
  /// All operations have been added: the range of a profiler ends with them.
  void seal();

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// The rank that sent; -1: this is no receive, or has not ended.
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  /// The host has no stream: the same as wait.
  void synchronize() override { wait(); }
  void blockCurrentStream() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  /// Ends every operation of the communicator, on all ranks.
  void abort() override;
  /// The outputs, or the error. Callbacks run on the thread for endings.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// A number: that of c10d::WorkResult.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

  /// Code::ok: none has failed, or they have not ended.
  [[nodiscard]] Error error() const;

 private:
  void wait_for(const headrace::Work& work, std::chrono::steady_clock::time_point deadline) const;
  void finish_outputs();
  void end_range();
  c10::intrusive_ptr<GroupWork> self();

  std::shared_ptr<Comm> comm_;
  c10::SmallVector<std::shared_ptr<Tensors>, 1> tensors_;
  c10::SmallVector<headrace::Work, 1> works_;
  bool has_range_ = false, has_copies_ = false;  ///< what there is to do at the end
  std::mutex outputs_mutex_;
  bool outputs_finished_ = false;  ///< once: the caller may have changed them since
};

}  // namespace headrace::torch_group
