// SPDX-License-Identifier: Apache-2.0
// Several loaded copies of one model, so that several threads run it at once. torch's own pool (num_runners)
// takes two locks for each run; here each copy has one user at a time, and torch is told that.
#pragma once

#include "base/errors.hpp"
#include "vendor/torch/model_runtime.hpp"

#include <headrace/tensor.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace headrace {

/// A loaded model with its last inputs.
class Runner {
 public:
  Runner(const headrace_model_runtime_v1& table, void* model) : table_(&table), model_(model) {}
  ~Runner() { table_->close(model_); }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Whether these inputs are bound already: then they have been checked too, and run can follow at once.
  [[nodiscard]] bool has(std::span<const TensorView> inputs) const noexcept;
  /// Binds the inputs that are not bound yet. The caller has checked them all.
  ///   errors  backend_failed (torch's words)
  [[nodiscard]] Result<void> bind(std::span<const TensorView> inputs);
  /// Runs with the bound inputs; frees the earlier content of `outputs` first.
  [[nodiscard]] Result<void> run(void* stream, std::vector<Tensor>& outputs);

  [[nodiscard]] void* model() const noexcept { return model_; }

 private:
  const headrace_model_runtime_v1* table_;
  void* model_;
  std::vector<TensorView> bound_;
  bool has_any_ = false;                     ///< true even for a model without inputs, once bound
  std::vector<headrace_tensor_v1> results_;  ///< room for outputs, kept between runs
  RuntimeText text_;
};

/// Lends runners. The runner that was used last is lent first: its inputs are the likeliest to be the same
/// again.
class RunnerPool {
 public:
  explicit RunnerPool(std::vector<std::unique_ptr<Runner>> runners) : all_(std::move(runners)) {
    for (const auto& runner : all_) idle_.push_back(runner.get());
  }

  /// A borrowed runner; the destructor returns it.
  class Loan {
   public:
    Loan(RunnerPool& pool, Runner& runner) : pool_(&pool), runner_(&runner) {}
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() { pool_->give_back(*runner_); }
    Runner& operator*() const { return *runner_; }
    Runner* operator->() const { return runner_; }

   private:
    RunnerPool* pool_;
    Runner* runner_;
  };
  /// Waits for an idle runner.
  [[nodiscard]] Loan take();

  /// Waits until none is in use, and does `work` with all before any is lent again.
  template <class Work>
  auto with_all(Work work) {
    std::unique_lock lock(mutex_);
    ++waiting_for_all_;  // from here on none is lent
    changed_.wait(lock, [this] { return idle_.size() == all_.size(); });
    auto result = work(all_);
    --waiting_for_all_;
    lock.unlock();
    changed_.notify_all();
    return result;
  }

 private:
  void give_back(Runner& runner);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Runner>> all_;
  std::vector<Runner*> idle_;
  int waiting_ = 0, waiting_for_all_ = 0;
};

/// Conversion to and from the table's form; strides are filled in if the view has none.
[[nodiscard]] headrace_tensor_v1 to_runtime(const TensorView& view) noexcept;
[[nodiscard]] TensorView from_runtime(const headrace_tensor_v1& tensor) noexcept;

}  // namespace headrace
