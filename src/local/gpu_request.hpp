// SPDX-License-Identifier: Apache-2.0
// A request that a GPU moves: that of its local side where there is one, which reaches both sides' memory.
#pragma once

#include "gpu/graph_move.hpp"
#include "gpu/posts.hpp"
#include "gpu/replay_watch.hpp"
#include "gpu/staged_move.hpp"
#include "local/request.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

namespace headrace::local {

class GpuRequest final : public Request, public gpu::Post, public gpu::ReplayWatch::Listener {
 public:
  ///   errors   not_supported (no GPU reaches both sides: why), and those of Request::prepare
  [[nodiscard]] static Result<Request*> prepare(Instance& instance, const headrace_prepare_v1& args);

  [[nodiscard]] Status post(const headrace_post_v1& args) override;
  bool poll() override { return instance_.posts.poll(*this); }
  /// A GPU that has begun cannot be called back; its end is near.
  void cancel() override {}
  void release() override { delete this; }

  [[nodiscard]] Result<bool> capture(const headrace_capture_v1& args) override;
  void end_capture() override;
  [[nodiscard]] Result<void> set_indices(const headrace_indices_v1& args) override;
  [[nodiscard]] Result<std::uint64_t> check() override;

  // For gpu::Posts.

  [[nodiscard]] bool poll_done() const override {
    return staged_ ? staged_->poll_done() : move_->poll_done();
  }
  [[nodiscard]] bool ends_with_gpu() const override { return staged_ == nullptr; }
  [[nodiscard]] const gpu::WorkingGpu& gpu() const override { return *gpu_; }
  [[nodiscard]] std::uint64_t look_until_ns() const override { return look_until_ns_; }
  void ended(Result<void> outcome) override;

  // For the watch of its replays.

  [[nodiscard]] bool may_hear() const override { return true; }
  void replays_ended(std::uint32_t count) override;

 private:
  using Addresses = std::unordered_map<void*, cuda::Address>;

  GpuRequest(Instance& instance, const headrace_prepare_v1& args, const gpu::WorkingGpu& gpu);
  ~GpuRequest() override = default;

  [[nodiscard]] Result<void> reach(const headrace_side_v1& side, bool may_stage);
  [[nodiscard]] Result<void> prepare_move();
  [[nodiscard]] Result<void> begin(cuda::Stream ordered_by);
  void warn_of_courier() const;

  Instance& instance_;
  const headrace_prepare_v1 args_;
  const gpu::WorkingGpu* const gpu_;  // the instance keeps what it has opened
  const gpu::Touches touches_;
  Addresses addresses_;                      // where the GPU reaches the regions
  bool stages_ = false;                      // the local side is host memory that cannot be pinned
  std::optional<gpu::PreparedMove> move_;    // one of these two
  std::shared_ptr<gpu::StagedMove> staged_;  //

  // While it lies in a graph.
  std::unique_ptr<gpu::GraphMove> captured_;
  std::optional<plugin::Immediate> counted_as_;
  std::shared_ptr<gpu::ReplayWatch> watch_;  // if its replays are counted

  std::uint64_t token_ = 0;  // of the present post
  std::uint64_t look_until_ns_ = 0;
};

}  // namespace headrace::local
