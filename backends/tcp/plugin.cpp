// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/backend.hpp"

HEADRACE_EXPORT_BACKEND(headrace::tcp::TcpBackend)
