// SPDX-License-Identifier: Apache-2.0
// One rank on a GPU that maps the windows of all: dispatch and combine as launches of the kernel family moe.
// Calls queue work on a stream. They neither allocate nor wait, so a stream that is captured may take them.
#pragma once

#include "gpu/device_memory.hpp"
#include "gpu/kernel_family.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/stream.hpp"
#include "moe/routing.hpp"
#include "moe/scales.hpp"

#include <headrace/plugin/kernels/moe_v1.h>
#include <headrace/moe.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace headrace::moe {

/// What dispatches learn, in memory of a GPU.
class DeviceRouting {
 public:
  explicit DeviceRouting(gpu::DeviceMemory memory) : memory_(std::move(memory)) {}
  [[nodiscard]] std::uint64_t address() const { return memory_.address(); }
  std::uint64_t given = 0;  ///< rows that were given to its last dispatch
  bool filled = false;      ///< a dispatch has been queued with it
  bool has_memory = false;  ///< combine_memory has been queued for its next combine

 private:
  gpu::DeviceMemory memory_;
};

enum class Halves : std::uint32_t {
  send = HEADRACE_MOE_SEND,
  receive = HEADRACE_MOE_RECEIVE,
  both = HEADRACE_MOE_SEND | HEADRACE_MOE_RECEIVE,
};

/// One thread at a time. Calls of a rank are in order on the GPU: on one stream, or on streams that wait for
/// one another.
class DeviceRank {
 public:
  struct Place {
    std::shared_ptr<const gpu::Kernels> kernels;
    int sharing = 1;  ///< ranks of these that are on this GPU, the same on all of them
    int blocks = 0;   ///< of a launch, the budget of multiprocessors; 0: 32, or as many as there can be
  };

  /// Takes memory for the state.
  ///   errors  not_supported (more experts than kernels can place), invalid_argument (blocks), exhausted
  [[nodiscard]] static Result<DeviceRank> open(const MoEConfig& config, const Place& place);

  /// `windows`: of all ranks as this GPU sees them, this one's too, zeros at first; they stay mapped.
  void join(std::span<const std::uint64_t> windows);
  [[nodiscard]] Result<DeviceRouting> new_routing() const;

  /// Pointers are addresses of the GPU, those of tables of replicas too. `tokens` is not looked at without
  /// the first half, `rows` without the second.
  ///   errors  invalid_argument (what was expected, what is given)
  Result<void> dispatch(const MoETokens& tokens, const MoERows& rows, DeviceRouting& routing, Halves halves,
                        cuda::Stream stream);
  Result<void> combine(const MoEResults& results, const MoESums& sums, DeviceRouting& routing, Halves halves,
                       cuda::Stream stream);
  /// As MoE::combine_memory. The GPU writes the answer: addresses alternate, also between replays.
  ///   of_ranks  [ranks] in memory of the GPU
  ///   errors    invalid_argument, not_supported (another layout, float8_combine)
  Result<void> combine_memory(MoEWindowRows* of_ranks, DeviceRouting& routing, cuda::Stream stream);

  /// What launches that have ended report: once, then ok again.
  ///   errors  timed_out, canceled, corrupt (see failure()), exhausted, invalid_argument (an expert)
  [[nodiscard]] Result<void> check();
  [[nodiscard]] const std::optional<MoEFailure>& failure() const { return failure_; }
  /// Leaves out the ranks whose bits are not set, in launches from now on. Waits until the GPU has it.
  Result<void> set_active(Mask ranks);
  /// The same for launches behind what the stream holds, which is not captured; waits for nothing, and tells
  /// those that go. `ranks` is a part of the mask before it.
  Result<void> set_active(Mask ranks, cuda::Stream stream);
  /// The ranks that this one has left out, in its launches or by a mask. Waits for the GPU to tell it, not
  /// for launches. Once it has joined.
  [[nodiscard]] Result<Mask> left_out() const;
  /// The same of the ranks that have left this one out: its launches do nothing more.
  [[nodiscard]] Result<Mask> left_out_by() const;
  /// Ends the waits of launches that run, and those of later ones: the rank does nothing more.
  void abort() const;

 private:
  using Family = gpu::KernelFamily<headrace_moe_v1>;
  DeviceRank(const MoEConfig& config, Family family, gpu::Stream stream, gpu::PinnedMemory words)
      : config_(config), family_(std::move(family)), stream_(std::move(stream)), words_(std::move(words)) {}

  [[nodiscard]] Result<void> take_memory();
  [[nodiscard]] Result<gpu::DeviceMemory> zeros(std::uint64_t bytes) const;
  [[nodiscard]] Result<void> check_tokens(const MoETokens& tokens, const DeviceRouting& routing) const;
  [[nodiscard]] Result<void> check_rows(const MoERows& rows) const;
  [[nodiscard]] static Result<void> has_dispatch(const DeviceRouting& routing);
  [[nodiscard]] Result<void> check_combine(const MoEResults& results, const MoESums& sums,
                                           const DeviceRouting& routing, Halves halves) const;
  [[nodiscard]] int experts_named_by(const MoETokens& tokens) const {
    return tokens.replicas == nullptr ? config_.experts : tokens.replicas->experts;
  }
  [[nodiscard]] Result<void> joined() const;
  /// The ranks for which the word at address_of(rank) is not 0.
  template <class Address>
  [[nodiscard]] Result<Mask> read_words(const Address& address_of) const;
  [[nodiscard]] Result<void> launched(cuda::Outcome outcome, const char* operation) const;
  [[nodiscard]] headrace_moe_status_v1& status() const;
  /// Of tokens that are given, or of rows that come.
  template <class Rows>
  [[nodiscard]] ScaleLayout scales_of(const Rows& rows) const {
    return scale_layout(config_.scale_bytes, rows.scale_stride, rows.scale_unit_bytes,
                        rows.scale_unit_stride);
  }

  MoEConfig config_;
  Family family_;
  gpu::Stream stream_;  ///< for memory of its own
  gpu::PinnedMemory words_;
  gpu::DeviceMemory state_, active_;
  headrace_moe_rank_v1 rank_{};
  Mask members_ = 0;  ///< of the mask that was written last
  std::optional<MoEFailure> failure_;
  int named_experts_ = 0;  ///< by the tokens of the last dispatch
};

}  // namespace headrace::moe
