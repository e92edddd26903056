// SPDX-License-Identifier: Apache-2.0
// Messages of users: what is sent, and where one is received. docs/decisions/0016, section 11.
#pragma once

#include "rail/region.hpp"

#include <cstdint>

namespace headrace::rail {

class Link;

/// Its memory stays as it is until `LinkEvents::sent`.
struct OutMessage {
  const LocalRegion* region = nullptr;  ///< null: a message of 0 bytes
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t token = 0;  ///< the caller's, for `sent` and `cancel_send`
};

/// Room for one message. Host memory; it is the engine's until `LinkEvents::received`.
struct Receive {
  const LocalRegion* region = nullptr;  ///< null: room for messages of 0 bytes
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t token = 0;     ///< the caller's, for `received` and `cancel_receive`
  const Link* from = nullptr;  ///< null: any peer
  bool again = false;          ///< it is posted again when `received` has returned ok
};

}  // namespace headrace::rail
