// SPDX-License-Identifier: Apache-2.0
// The backends of communicators by name.
#pragma once

#include "choice/backend.hpp"
#include "collectives/core.hpp"

#include <headrace/comm_backend.hpp>

#include <memory>
#include <string>
#include <vector>

namespace headrace::collectives {

/// What backend `auto` is made of on GPUs.
[[nodiscard]] choice::Source installed_choice();

/// Opens a communicator on the backend that CommOptions::backend names.
/// It is the first of that name: linked in, registered by the process, in a library.
///   errors  invalid_argument (rank, size, name), not_found (no such backend: which there are, the nearest
///   name,
///           where its library may lie), and those of the library and of the backend
[[nodiscard]] Result<std::shared_ptr<Comm::Core>> open_backend(const CommOptions& options);

/// What is known of a backend, which list_comm_backends() names.
[[nodiscard]] CommBackendInfo look_at_backend(const std::string& name);

}  // namespace headrace::collectives
