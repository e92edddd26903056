// SPDX-License-Identifier: Apache-2.0
// Whether a backend can carry a request at all, by what is known without asking it.
#pragma once

#include "engine/backend_instance.hpp"
#include "engine/request_plan.hpp"

#include <cstddef>

namespace headrace::engine {

/// Whether the request's caller asked for this backend; true if none was named.
[[nodiscard]] bool is_asked_for(const BackendInstance& backend, const RequestPlan& plan);

/// `index`: the backend's among those that are open. Makes no link.
///   errors  not_supported, not_found (a region of the peer has gone); the text says why not
[[nodiscard]] Result<void> can_carry(const BackendInstance& backend, std::size_t index,
                                     const RequestPlan& plan);

}  // namespace headrace::engine
