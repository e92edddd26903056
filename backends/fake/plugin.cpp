// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/backend.hpp"

HEADRACE_EXPORT_BACKEND(headrace::fake::FakeBackend)
