// SPDX-License-Identifier: Apache-2.0
// The family of kernels for operations of ranks whose GPUs map one another's memory.
#pragma once

#include "kernels/collectives/box.cuh"
#include "kernels/collectives/channel.cuh"
#include "kernels/collectives/copies.cuh"
#include "kernels/collectives/splits.cuh"
#include "kernels/common/family.hpp"

#include <headrace/plugin/kernels/collectives_v1.h>

#include <cstdint>
#include <optional>

namespace headrace::kernels::collectives {

extern const Family family;

/// The shape of a box with its defaults. None: it is not possible.
[[nodiscard]] std::optional<Shape> shape_of(const headrace_collectives_box_v1& box);
/// Whether the reduction is defined for the type.
[[nodiscard]] bool is_defined(int32_t dtype, int32_t reduction, double factor);
/// Whether kernels of its own reduce it: sums and averages of float32 and bfloat16.
[[nodiscard]] bool is_float_sum(const Reduction& how);
/// What the kernels are given for a call, and whether it travels as packets. None: the call is not possible.
struct Plan {
  Launch launch;
  bool is_packed;
  bool is_dense;   ///< in packets of 12 bytes
  bool is_direct;  ///< without a copy if all ranks can, else in chunks
  bool reduces;
  std::optional<Splits> splits;  ///< that lie in GPU memory
  std::uint32_t threads;         ///< of a block
  std::uint64_t longest;         ///< bytes of the longest part of any rank; 0: not known
};
[[nodiscard]] std::optional<Plan> plan_of(const headrace_collective_v1& args);
/// Divides it among blocks: as many as there may be, the same number on all ranks. Fewer may do for packets.
/// Sets the threads too.
void divide(Plan& plan, std::uint32_t blocks);
/// Whether it can go by copies.
[[nodiscard]] bool can_be_copied(const Plan& plan);
/// Step `step` of it by copies. None: there is no such step.
[[nodiscard]] std::optional<StepLaunch> step_of(const Plan& plan, std::uint32_t step);
/// The copies behind a step.
void list_copies(const StepLaunch& step, headrace_collectives_copies_v1& copies);
/// None: they are not possible.
[[nodiscard]] std::optional<MessagesLaunch> messages_of(const headrace_collectives_messages_v1& args);

}  // namespace headrace::kernels::collectives
