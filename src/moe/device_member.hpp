// SPDX-License-Identifier: Apache-2.0
// The part of a MoE that is on a GPU. The head of a window and the words of its ranks lie in host memory,
// where ranks compare configurations and vote; the rest is memory of the GPU, which kernels alone read and
// write. A kernel leaves a rank out on its own. The CPU learns that from its status, and votes: so the ranks
// that go on have one mask (docs/decisions/0017-moe.md, 7).
#pragma once

#include "base/clock.hpp"
#include "gpu/loaded_kernels.hpp"
#include "gpu/shareable_memory.hpp"
#include "moe/config.hpp"
#include "moe/device_rank.hpp"
#include "moe/under_way.hpp"
#include "moe/words.hpp"

#include <headrace/agent.hpp>
#include <headrace/moe.hpp>
#include <headrace/tensor.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headrace::moe {

/// One thread at a time, but for abort.
class DeviceMember {
 public:
  /// What dispatches learn, and which operations use it now, by their numbers.
  struct Routing {
    DeviceRouting memory;
    std::uint64_t dispatch_sent = 0, combine_sent = 0;  ///< 0: none
  };

  /// Takes the GPU and memory for the window, which it offers as a region.
  ///   errors  those of gpu::LoadedKernels, of gpu::ShareableMemory and of Agent::register_memory
  [[nodiscard]] static Result<std::unique_ptr<DeviceMember>> open(Agent& agent, const MoEConfig& config,
                                                                  gpu::LoadedKernels& gpus);
  ~DeviceMember();
  DeviceMember(const DeviceMember&) = delete;
  DeviceMember& operator=(const DeviceMember&) = delete;

  /// The same in every process.
  [[nodiscard]] const std::string& gpu() const { return kernels_->device().info().uuid; }
  /// Of the window of the rank that has this region in host memory.
  [[nodiscard]] static std::string region_name(const MoEConfig& config) { return config.name + "/gpu"; }

  /// Maps the window of another rank for this GPU.
  ///   errors  not_supported (no path to it), those of Agent::map
  Result<void> map(int peer, const std::string& agent, RegionId region, Deadline deadline,
                   const std::function<bool()>& interrupted);
  /// The heads of a join that has failed are not mapped any more.
  void leave_heads() { heads_.clear(); }
  /// Takes memory for launches, and waits until all ranks have done so: none launches while another one maps
  /// or allocates, which the driver may make wait for launches.
  ///   heads   of the windows of all ranks, this one's too; they stay mapped
  ///   errors  timed_out (which ranks have not come), invalid_argument (why one could not), those of
  ///           DeviceRank::open
  Result<void> join(std::span<std::byte* const> heads, Deadline deadline);
  [[nodiscard]] bool joined() const { return rank_.has_value(); }

  [[nodiscard]] Result<Routing> new_routing() const;
  [[nodiscard]] Result<Tensor> new_tensor(DType dtype, const Shape& shape) const;
  [[nodiscard]] Result<Tensor> new_host_tensor(DType dtype, const Shape& shape) const;

  /// They are queued, and tell what earlier ones have found: see headrace::MoE.
  Result<void> dispatch(const MoETokens& tokens, const MoERows& rows, Routing& routing, Halves halves,
                        cuda::Stream stream);
  Result<void> combine(const MoEResults& results, const MoESums& sums, Routing& routing, Halves halves,
                       cuda::Stream stream);
  ///   of_ranks  in memory of the GPU
  Result<void> combine_memory(std::span<MoEWindowRows> of_ranks, Routing& routing, cuda::Stream stream);
  Result<void> check();

  [[nodiscard]] Mask active() const;
  /// `ranks` is a part of active() with this rank.
  Result<void> set_active(Mask ranks, cuda::Stream stream);
  [[nodiscard]] const std::optional<MoEFailure>& failure() const { return failure_; }
  ///   threads  any
  void abort();

 private:
  DeviceMember(Agent& agent, const MoEConfig& config, std::shared_ptr<const gpu::Kernels> kernels,
               gpu::Stream stream)
      : agent_(agent),
        config_(config),
        layout_(window_layout(config)),
        kernels_(std::move(kernels)),
        stream_(std::move(stream)) {}
  [[nodiscard]] Result<void> offer_window();

  [[nodiscard]] int ranks_on_this_gpu() const;
  [[nodiscard]] Result<void> wait_for_all(Deadline deadline) const;
  [[nodiscard]] Result<void> still_waits_for(std::uint32_t peer, Deadline deadline) const;
  /// Why a rank could not join, as it says; empty: it has joined.
  [[nodiscard]] std::string reason_of(std::uint32_t peer) const;

  /// Why it does nothing any more, if it does not.
  [[nodiscard]] Result<void> not_ended();
  /// What launches behind this have: the mask on which ranks have agreed.
  Result<void> follow_votes(cuda::Stream stream);
  Result<void> copy_counts(const MoERows& rows, cuda::Stream stream) const;

  /// What a launch has reported leads to a vote.
  [[nodiscard]] Result<void> settle(Error found);
  /// Raises the ranks of `out` of which the caller does not know.
  ///   seen  by a launch; without a peer: nothing
  [[nodiscard]] Result<void> tell_news(Mask out, MoEFailure seen = {});
  [[nodiscard]] Error end(std::string why);
  [[nodiscard]] Error left_out();
  [[nodiscard]] Mask voted_out() const { return heads_[0].load(WindowLayout::voted_out_at); }
  Mask vote_out(Mask ranks);
  [[nodiscard]] std::uint32_t self() const { return static_cast<std::uint32_t>(config_.rank); }

  Agent& agent_;
  const MoEConfig config_;
  const WindowLayout layout_;
  const std::shared_ptr<const gpu::Kernels> kernels_;
  const gpu::Stream stream_;  // for memory of its own
  std::optional<Region> region_;
  std::shared_ptr<gpu::ShareableMemory> window_;
  std::vector<std::optional<Mapping>> mappings_;  // of each rank; none of this one
  std::vector<Window> heads_;
  UnderWay dispatches_, combines_;  // as calls have queued them
  Mask given_ = 0;                  // the mask of launches from now on
  Mask told_ = 0;                   // ranks that are out, of which the caller knows
  std::optional<MoEFailure> failure_;
  std::optional<std::string> ended_;
  std::mutex abort_mutex_;  // for `rank_` beside abort
  std::atomic<bool> aborted_{false};
  std::optional<DeviceRank> rank_;  // once joined
};

}  // namespace headrace::moe
