// SPDX-License-Identifier: Apache-2.0
// The backend that torchcomms loads: its operations are those of headrace::Comm.
#pragma once

#include <headrace/comm.hpp>

#include "bindings/torch/comm/tensors.hpp"
#include "bindings/torchcomms/abort_hooks.hpp"
#include "bindings/torchcomms/errors.hpp"
#include "bindings/torchcomms/options.hpp"
#include "bindings/torchcomms/work.hpp"

#include <comms/torchcomms/TorchCommBackend.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::torchcomms_backend {

namespace tc = ::torch::comms;
using torch_group::TensorList;
using WorkPtr = c10::intrusive_ptr<tc::TorchWork>;

/// Names of methods are those of tc::TorchCommBackend, and so are their arguments. Tensors lie on the CPU and
/// may have gaps. Without async_op a call returns when its operation has ended.
///   threads  one at a time, as torchcomms has it; abort: any
///   errors   CommError; c10::Error for tensors that Headrace does not take. Wrong arguments end nothing
class HeadraceTorchComm final : public tc::TorchCommBackend {
 public:
  HeadraceTorchComm() = default;
  ~HeadraceTorchComm() override { hooks_->clear(); }

  // --- its life
  void init(at::Device device, const std::string& name, const tc::CommOptions& options) override;
  void finalize() override;
  std::shared_ptr<tc::TorchCommBackend> split(const std::vector<int>& ranks, const std::string& name,
                                              const tc::CommOptions& options) override;
  [[nodiscard]] bool isAbortSupported() const override { return true; }
  [[nodiscard]] bool isAborted() const override { return comm_ && comm_->is_aborted(); }
  void abort() override;
  [[nodiscard]] bool supportsReconfigure() const override { return true; }
  /// Whether it has ranks: see CommOptions::enable_reconfigure.
  [[nodiscard]] bool isInitialized() const override { return has_ranks_; }
  [[nodiscard]] tc::InitHandle getInitHandle() const override;
  /// Waits: the work that it returns is done.
  WorkPtr reconfigure(const tc::ReconfigureOptions& given) override;
  void registerAbortHook(std::int64_t id, tc::AbortHook hook) override { hooks_->add(id, std::move(hook)); }
  void unregisterAbortHook(std::int64_t id) override { hooks_->remove(id); }

  // --- what it is
  [[nodiscard]] int getRank() const override { return has_ranks_ ? comm_->rank() : -1; }
  [[nodiscard]] int getSize() const override { return has_ranks_ ? comm_->size() : -1; }
  [[nodiscard]] std::string_view getBackendName() const override { return "headrace"; }
  [[nodiscard]] std::string_view getBackendVersion() const override;
  [[nodiscard]] std::string_view getCommName() const override { return name_; }
  [[nodiscard]] const tc::CommOptions& getOptions() const override { return options_; }
  [[nodiscard]] const at::Device& getDevice() const override { return device_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setHints(GivenHints hints) override;

  // --- all ranks give, all receive
  WorkPtr all_reduce(at::Tensor& tensor, const tc::ReduceOp& op, bool async_op,
                     const tc::AllReduceOptions& options) override;
  WorkPtr all_gather(const TensorList& tensor_list, const at::Tensor& tensor, bool async_op,
                     const tc::AllGatherOptions& options) override;
  WorkPtr all_gather_v(const TensorList& tensor_list, const at::Tensor& tensor, bool async_op,
                       const tc::AllGatherOptions& options) override;
  WorkPtr all_gather_single(at::Tensor& output, const at::Tensor& input, bool async_op,
                            const tc::AllGatherSingleOptions& options) override;
  AllGatherPHandle all_gather_p_init(at::Tensor& output, const tc::AllGatherPInitOptions& options) override;
  WorkPtr all_gather_p_exec(AllGatherPHandle handle, const at::Tensor& input, bool async_op,
                            const tc::AllGatherPExecOptions& options) override;
  void all_gather_p_free(AllGatherPHandle handle) override;
  WorkPtr reduce_scatter(at::Tensor& output, const TensorList& input_list, const tc::ReduceOp& op,
                         bool async_op, const tc::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_v(at::Tensor& output, const TensorList& input_list, const tc::ReduceOp& op,
                           bool async_op, const tc::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_single(at::Tensor& output, const at::Tensor& input, const tc::ReduceOp& op,
                                bool async_op, const tc::ReduceScatterSingleOptions& options) override;
  WorkPtr all_to_all(const TensorList& output_tensor_list, const TensorList& input_tensor_list, bool async_op,
                     const tc::AllToAllOptions& options) override;
  WorkPtr all_to_all_single(at::Tensor& output, const at::Tensor& input, bool async_op,
                            const tc::AllToAllSingleOptions& options) override;
  /// Splits count rows.
  WorkPtr all_to_all_v_single(at::Tensor& output, const at::Tensor& input,
                              const std::vector<std::uint64_t>& output_split_sizes,
                              const std::vector<std::uint64_t>& input_split_sizes, bool async_op,
                              const tc::AllToAllvSingleOptions& options) override;
  WorkPtr barrier(bool async_op, const tc::BarrierOptions& options) override;

  // --- one rank gives, or one receives
  WorkPtr broadcast(at::Tensor& tensor, int root, bool async_op,
                    const tc::BroadcastOptions& options) override;
  WorkPtr reduce(const at::Tensor& tensor, int root, const tc::ReduceOp& op, bool async_op,
                 const tc::ReduceOptions& options) override;
  WorkPtr scatter(at::Tensor& output_tensor, const TensorList& input_tensor_list, int root, bool async_op,
                  const tc::ScatterOptions& options) override;
  WorkPtr gather(const TensorList& output_tensor_list, const at::Tensor& input_tensor, int root,
                 bool async_op, const tc::GatherOptions& options) override;
  WorkPtr gather_single(at::Tensor& output, const at::Tensor& input, int root, bool async_op,
                        const tc::GatherSingleOptions& options) override;

  // --- from rank to rank
  WorkPtr send(const at::Tensor& tensor, int dst, bool async_op, const tc::SendOptions& options) override;
  WorkPtr recv(at::Tensor& tensor, int src, bool async_op, const tc::RecvOptions& options) override;
  WorkPtr batch_op_issue(const std::vector<tc::BatchSendRecv::P2POp>& ops, bool async_op,
                         const tc::BatchP2POptions& options) override;

  // --- memory that other ranks reach, or that calls use again and again
  [[nodiscard]] bool supportsWindow() const override { return true; }
  std::shared_ptr<tc::TorchCommWindow> new_window(const std::optional<at::Tensor>& tensor) override;
  /// All ranks call it, as a collective: Comm::tensor_register.
  void tensor_register(const at::Tensor& tensor) override;
  void tensor_deregister(const at::Tensor& tensor) override;

 private:
  HeadraceTorchComm(Comm comm, at::Device device, const tc::CommOptions& options);

  /// The communicator, for an operation. Throws if it has no ranks.
  [[nodiscard]] Comm& ready() const;
  /// Begins one operation: call(options of Comm).
  template <class Given, class Call>
  WorkPtr start(Tensors&& tensors, bool async_op, const Given& given, const Call& call) {
    OpOptions options;
    options.timeout = timeout_of(given.timeout);
    options.hints = call_hints(given.hints);
    return start_with(std::move(options), std::move(tensors), async_op, given, call);
  }
  /// Begins a message.
  template <class Given, class Call>
  WorkPtr start_message(Tensors&& tensors, bool async_op, const Given& given, const Call& call) {
    MessageOptions options;
    options.timeout = timeout_of(given.timeout);
    options.tag = static_cast<std::uint32_t>(given.tag);
    return start_with(std::move(options), std::move(tensors), async_op, given, call);
  }
  template <class Options, class Given, class Call>
  WorkPtr start_with(Options options, Tensors&& tensors, bool async_op, const Given& given,
                     const Call& call) {
    static_cast<void>(ready());
    if (!async_op && ends_in_call_) {
      ended(call(options));
      tensors.copy_back();
      return c10::make_intrusive<tc::TorchWorkCompleted>();
    }
    const auto limit = given.timeout == tc::kNoTimeout ? options_.timeout : given.timeout;
    auto work = c10::make_intrusive<HeadraceWork>(std::move(tensors), limit, hooks_);
    options.async = true;
    options.owner = work->owner();
    work->begin(take(call(options)));
    if (!async_op) work->wait();
    return work;
  }
  /// Of an operation that has ended in its call: throws, after the abort hooks if it has ended the
  /// communicator.
  void ended(Result<Work> result);

  std::shared_ptr<Comm> comm_;
  bool has_ranks_ = false;
  bool ends_in_call_ = true;  ///< nothing uses the tensors once a call that is not async has returned
  std::shared_ptr<AbortHooks> hooks_ = std::make_shared<AbortHooks>();
  std::string name_;
  at::Device device_ = at::kCPU;
  tc::CommOptions options_;
};

}  // namespace headrace::torchcomms_backend
