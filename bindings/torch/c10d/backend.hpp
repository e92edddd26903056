// SPDX-License-Identifier: Apache-2.0
// The process group of torch.distributed on headrace::Comm: a compiled c10d::Backend.
#pragma once

#include <headrace/comm.hpp>

#include "bindings/torch/c10d/arguments.hpp"
#include "bindings/torch/c10d/errors.hpp"
#include "bindings/torch/c10d/work.hpp"
#include "bindings/torch/comm/tensors.hpp"

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace headrace::torch_group {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

/// The communicator of a headrace.Comm, which lives as long as this pointer. With the GIL.
std::shared_ptr<Comm> comm_of(const py::object& object);

/// What a group was made with.
struct GroupOptions final : c10d::Backend::Options {
  using c10d::Backend::Options::Options;

  // The first members are those of c10d::ProcessGroupGloo::Options: see GroupBackend.
  std::vector<std::shared_ptr<void>> devices = {};
  int threads = 0;

  std::map<std::string, std::string> hints = {};  ///< of the communicator
};

/// How one call begins.
struct Operation {
  c10d::OpType type;
  const char* name;  ///< as profilers show it
  std::chrono::milliseconds timeout;
  bool async;
};

/// torch's names of methods are those of c10d::Backend. An operation throws CommError, and c10::Error for
/// tensors that it does not take. Without asyncOp it waits in the call, and may return null, as nccl does.
///   threads  any, without the GIL
class GroupBackend final : public c10d::Backend {
 public:
  /// With the GIL.
  ///   comm  the headrace.Comm whose operations these are
  GroupBackend(py::object comm, c10::intrusive_ptr<GroupOptions> options);

  // --- what it is
  [[nodiscard]] const std::string getBackendName() const override { return options_->backend; }
  /// A copy: torch changes it for groups that it makes of this one.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return c10::make_intrusive<GroupOptions>(*options_);
  }
  [[nodiscard]] const c10::intrusive_ptr<GroupOptions>& options() const { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsShrinking() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override { number_ = 0; }
  uint64_t getSequenceNumberForGroup() override { return number_; }
  c10d::ErrorType getError() override;
  /// With the GIL.
  [[nodiscard]] py::object comm() const { return py::reinterpret_borrow<py::object>(comm_object_); }

  // --- its end, and other groups
  void abort() override;
  /// Waits for operations that are queued, and leaves. After a failed operation: leaves.
  void shutdown() override;
  BackendPtr split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  BackendPtr merge(const c10::intrusive_ptr<c10d::Store>& store,
                   const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank,
                   const int& size) override;
  BackendPtr shrink(const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
                    const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  // --- what it does not have
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  void suspend() override;
  void resume() override;
  std::unordered_map<std::string, uint64_t> getMemoryStats() override;

  // --- several operations as one
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // --- all ranks give, all receive
  WorkPtr allreduce(TensorList& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(TensorList& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(TensorList& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr allgather(std::vector<TensorList>& outputs, TensorList& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<TensorList>& outputs, TensorList& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall(TensorList& outputs, TensorList& inputs, const c10d::AllToAllOptions& opts) override;
  /// Splits count rows; none: one part of all rows for each rank.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  /// Rank 0 names the first rank that has not come, or all of them.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // --- one rank gives, or one receives
  WorkPtr broadcast(TensorList& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr reduce(TensorList& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr gather(std::vector<TensorList>& outputs, TensorList& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                  const c10d::ScatterOptions& opts) override;

  // --- from rank to rank
  WorkPtr send(TensorList& tensors, int destination, int tag) override;
  WorkPtr recv(TensorList& tensors, int source, int tag) override;
  /// Work::sourceRank tells which rank sent.
  WorkPtr recvAnysource(TensorList& tensors, int tag) override;

 private:
  /// Begins one collective: call(options).
  template <class Call>
  WorkPtr start(const Operation& operation, Tensors& tensors, const Call& call) {
    number_.fetch_add(1, std::memory_order_relaxed);
    if (ends_in_call(operation)) {
      OpOptions options;
      options.timeout = limit_of(operation.timeout);
      take(call(options));
      tensors.copy_back();
      return nullptr;  // torch has nothing to wait for
    }
    return start_each(operation, tensors, 1,
                      [&](std::size_t, const OpOptions& options) { return call(options); });
  }
  /// Begins several, as one work: call(index, options).
  template <class Call>
  WorkPtr start_each(const Operation& operation, Tensors& tensors, std::size_t calls, const Call& call) {
    const auto work = begin(operation, tensors);
    OpOptions options;
    options.async = true;
    options.timeout = limit_of(operation.timeout);
    options.owner = work->owner();
    for (std::size_t index = 0; index < calls; ++index) work->add(take(call(index, options)));
    return begun(work);
  }
  /// Begins a message: call(options).
  template <class Call>
  WorkPtr start_message(const Operation& operation, Tensors& tensors, int tag, const Call& call) {
    const auto work = begin(operation, tensors);
    MessageOptions options;
    options.async = true;
    options.tag = static_cast<std::uint32_t>(tag);
    options.owner = work->owner();
    work->add(take(call(options)));
    return begun(work);
  }
  WorkPtr receive(const Operation& operation, TensorList& tensors, int source, int tag);

  /// Whether the caller waits, and nothing uses the tensors once the call of the communicator has returned.
  [[nodiscard]] bool ends_in_call(const Operation& operation) const;
  c10::intrusive_ptr<GroupWork> begin(const Operation& operation, Tensors& tensors);
  WorkPtr begun(c10::intrusive_ptr<GroupWork> work);
  [[nodiscard]] static Timeout limit_of(std::chrono::milliseconds timeout);
  [[nodiscard]] std::vector<std::size_t> elements_of_ranks(const at::Tensor& tensor,
                                                           std::vector<int64_t> rows) const;
  /// Of a group that is made of this one: its own, changed by those that are given.
  [[nodiscard]] c10::intrusive_ptr<GroupOptions> options_of(
      const c10::intrusive_ptr<c10d::Backend::Options>& given) const;

  // torch's log of DistributedDataParallel takes the backend of a group for gloo's where the group was made
  // by torch.distributed.shrink_group, and reads its threads. So the members begin with those of
  // c10d::ProcessGroupGloo: a shared pointer, and the options.
  std::shared_ptr<Comm> comm_;  ///< owns comm_object_
  const c10::intrusive_ptr<GroupOptions> options_;
  PyObject* comm_object_;

  const bool nothing_outlasts_calls_;  ///< of its backend of communicators
  std::atomic<std::uint64_t> number_{0};
  std::atomic<std::uint64_t> barriers_{0};  ///< monitored ones
  std::atomic<bool> coalescing_{false};
  std::mutex coalesced_mutex_;
  std::vector<c10::intrusive_ptr<GroupWork>> coalesced_;
};

}  // namespace headrace::torch_group
