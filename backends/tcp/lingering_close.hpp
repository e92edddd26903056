// SPDX-License-Identifier: Apache-2.0
// Closing a socket so that the last words arrive: a plain close while the peer's bytes lie unread makes the
// kernel send a reset, which may overtake what we said.
#pragma once

#include "base/unique_fd.hpp"

#include <memory>

namespace headrace::tcp {

struct Context;
class IoThread;

/// Says that nothing more will come, throws away what the peer still sends, and closes at its end or after a
/// second. Then `held` is let go.
void close_lingering(IoThread& thread, UniqueFd fd, const Context& context,
                     std::shared_ptr<const void> held = {});

}  // namespace headrace::tcp
