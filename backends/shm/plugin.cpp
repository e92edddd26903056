// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/backend.hpp"

HEADRACE_EXPORT_BACKEND(headrace::shm::ShmBackend)
