// SPDX-License-Identifier: Apache-2.0
#include "backends/posix/backend.hpp"

HEADRACE_EXPORT_BACKEND(headrace::posix::PosixBackend)
