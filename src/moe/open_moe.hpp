// SPDX-License-Identifier: Apache-2.0
// MoE::open with GPUs of the caller's choice: tests bring fakes.
#pragma once

#include "gpu/loaded_kernels.hpp"

#include <headrace/moe.hpp>

namespace headrace::moe {

///   gpus  asked only for a configuration with a device; outlives the MoE
[[nodiscard]] Result<MoE> open_moe(Agent& agent, const MoEConfig& config, gpu::LoadedKernels& gpus);

}  // namespace headrace::moe
