// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/backend.hpp"

HEADRACE_EXPORT_BACKEND(headrace::cuda_ipc::CudaIpcBackend)
