// SPDX-License-Identifier: Apache-2.0
#include "runner/runner_pool.hpp"

#include "runner/strides.hpp"

#include <algorithm>

namespace headrace {
namespace {

constexpr std::size_t usual_outputs = 8;

bool same(const TensorView& a, const TensorView& b) noexcept {
  return a.data == b.data && a.dtype == b.dtype && a.shape == b.shape && a.device == b.device &&
         a.strides == b.strides;
}

}  // namespace

headrace_tensor_v1 to_runtime(const TensorView& view) noexcept {
  headrace_tensor_v1 tensor;
  tensor.data = view.data;
  tensor.handle = nullptr;
  tensor.dtype = static_cast<std::int32_t>(view.dtype);
  tensor.device_kind = static_cast<std::int32_t>(view.device.kind);
  tensor.device_index = view.device.index;
  tensor.rank = static_cast<std::uint32_t>(view.shape.rank());
  const Shape strides = strides_of(view);
  std::copy_n(view.shape.begin(), view.shape.rank(), tensor.shape);
  std::copy_n(strides.begin(), strides.rank(), tensor.strides);
  return tensor;
}

TensorView from_runtime(const headrace_tensor_v1& tensor) noexcept {
  return {tensor.data,
          static_cast<DType>(tensor.dtype),
          Shape(std::span(tensor.shape, tensor.rank)),
          {},
          {static_cast<Device::Kind>(tensor.device_kind), tensor.device_index}};
}

bool Runner::has(std::span<const TensorView> inputs) const noexcept {
  return has_any_ && std::equal(inputs.begin(), inputs.end(), bound_.begin(), bound_.end(), same);
}

Result<void> Runner::bind(std::span<const TensorView> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (i < bound_.size() && same(inputs[i], bound_[i])) continue;
    const headrace_tensor_v1 tensor = to_runtime(inputs[i]);
    if (const std::int32_t code = table_->bind(model_, i, &tensor, text_.get()); code != 0) {
      has_any_ = false;
      bound_.clear();  // the bindings are unknown now: everything is bound again next time
      return text_.error(code);
    }
  }
  bound_.assign(inputs.begin(), inputs.end());
  has_any_ = true;
  return {};
}

Result<void> Runner::run(void* stream, std::vector<Tensor>& outputs) {
  outputs.clear();
  if (results_.empty()) results_.resize(usual_outputs);
  std::uint64_t count = results_.size();
  std::int32_t code = table_->run(model_, stream, results_.data(), &count, text_.get());
  if (code == static_cast<std::int32_t>(Code::exhausted) && count > results_.size()) {
    // Once, at the first run of a model with many outputs: the runtime keeps them for the next call.
    results_.resize(static_cast<std::size_t>(count));
    code = table_->run(model_, stream, results_.data(), &count, text_.get());
  }
  if (code != 0) return text_.error(code);
  outputs.reserve(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < count; ++i)
    outputs.emplace_back(from_runtime(results_[i]), results_[i].handle, table_->release);
  return {};
}

RunnerPool::Loan RunnerPool::take() {
  std::unique_lock lock(mutex_);
  ++waiting_;
  changed_.wait(lock, [this] { return !idle_.empty() && waiting_for_all_ == 0; });
  --waiting_;
  Runner* const runner = idle_.back();
  idle_.pop_back();
  return {*this, *runner};
}

void RunnerPool::give_back(Runner& runner) {
  bool one_waits = false, all_are_wanted = false;
  {
    const std::scoped_lock lock(mutex_);
    idle_.push_back(&runner);
    one_waits = waiting_ > 0;
    all_are_wanted = waiting_for_all_ > 0;
  }
  if (all_are_wanted)
    changed_.notify_all();
  else if (one_waits)
    changed_.notify_one();
}

}  // namespace headrace
