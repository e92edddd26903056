// SPDX-License-Identifier: Apache-2.0
#include "bindings/torchcomms/window.hpp"

#include <ATen/ATen.h>

#include <utility>

namespace headrace::torchcomms_backend {

std::shared_ptr<tc::TorchCommWindow> HeadraceTorchComm::new_window(const std::optional<at::Tensor>& tensor) {
  static_cast<void>(ready());
  auto window = std::make_shared<HeadraceTorchWindow>(comm_, hooks_);
  if (tensor) window->tensor_register(*tensor, true);
  return window;
}

HeadraceTorchWindow::HeadraceTorchWindow(std::shared_ptr<Comm> comm, std::shared_ptr<AbortHooks> hooks)
    : comm_(std::move(comm)),
      hooks_(std::move(hooks)),
      window_(std::make_shared<Window>(take(comm_->new_window()))) {
  buf_device_ = at::kCPU;
}

void HeadraceTorchWindow::tensor_register(const at::Tensor& tensor, bool owning) {
  Tensors used;
  const Elements memory = used.writes(tensor);
  TORCH_CHECK(!used.has_copies(), "the tensor has gaps: a window takes a contiguous tensor");
  take(window_->tensor_register(memory));
  if (owning) buf_tensor_ = tensor;
  buf_dtype_ = tensor.scalar_type();
  buf_shape_ = tensor.sizes().vec();
  win_size_ = memory.bytes();
}

void HeadraceTorchWindow::tensor_deregister() {
  take(window_->tensor_deregister());
  buf_tensor_.reset();
  buf_shape_.clear();
  win_size_ = 0;
}

std::shared_ptr<tc::TorchCommWindow> HeadraceTorchWindow::clone() {
  auto copy = std::make_shared<HeadraceTorchWindow>(comm_, hooks_);
  if (buf_tensor_) copy->tensor_register(buf_tensor_->clone(), true);
  return copy;
}

template <class Given, class Call>
WorkPtr HeadraceTorchWindow::start(Tensors&& tensors, bool async_op, const Given& given, const Call& call) {
  WindowOptions options;
  options.timeout = timeout_of(given.timeout);
  options.async = async_op;
  if (!async_op) {
    take(call(options));
    return c10::make_intrusive<tc::TorchWorkCompleted>();
  }
  auto work = c10::make_intrusive<HeadraceWork>(std::move(tensors), given.timeout, hooks_);
  options.owner = work->owner();
  work->begin(take(call(options)));
  return work;
}

WorkPtr HeadraceTorchWindow::put(const at::Tensor& tensor, int dst_rank, std::size_t target_offset_nelems,
                                 bool async_op, const tc::PutOptions& options) {
  Tensors used;
  const ConstElements memory = used.reads(tensor);
  return start(std::move(used), async_op, options, [&](const WindowOptions& with) {
    return window_->put(memory, dst_rank, target_offset_nelems, with);
  });
}

WorkPtr HeadraceTorchWindow::signal(int peer_rank, bool async_op, const tc::SignalOptions& options) {
  return start({}, async_op, options,
               [&](const WindowOptions& with) { return window_->signal(peer_rank, {}, with); });
}

WorkPtr HeadraceTorchWindow::wait_signal(int peer_rank, bool async_op, const tc::WaitSignalOptions& options) {
  auto wait = [window = window_, peer_rank, limit = timeout_of(options.timeout)] {
    static_cast<void>(take(window->wait_signal(peer_rank, limit)));
  };
  if (async_op) return c10::make_intrusive<tc::TorchWorkThread>(std::move(wait));
  wait();
  return c10::make_intrusive<tc::TorchWorkCompleted>();
}

at::Tensor HeadraceTorchWindow::map_remote_tensor(int rank) {
  if (rank == comm_->rank() && buf_tensor_) return *buf_tensor_;
  const RemoteTensor remote = take(window_->map_remote_tensor(rank));
  return at::from_blob(
      remote.elements.data, {static_cast<std::int64_t>(remote.elements.count)},
      [owner = remote.owner](void*) {}, at::TensorOptions().dtype(buf_dtype_));
}

std::shared_ptr<tc::TorchCommWindowAttr> HeadraceTorchWindow::get_attr(int peer_rank) {
  const WindowAttr attr = take(window_->get_attr(peer_rank));
  auto answer = std::make_shared<tc::TorchCommWindowAttr>();
  answer->accessType = attr.access == WindowAccess::unified
                           ? tc::TorchCommWinAccessType::WIN_ACCESS_TYPE_UNIFIED
                           : tc::TorchCommWinAccessType::WIN_ACCESS_TYPE_SEPARATE;
  return answer;
}

}  // namespace headrace::torchcomms_backend
