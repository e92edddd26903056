// SPDX-License-Identifier: Apache-2.0
// Taking a peer's metadata into the record of its life.
#pragma once

#include "engine/peer_life.hpp"
#include "wire/metadata.hpp"

namespace headrace::engine {

/// Takes in a whole export, a part or an update. `metadata` is used up. An older whole export that came late
/// changes nothing.
///   errors  not_found (an update of a later version than the one that is held), corrupt
Result<void> take_metadata(PeerLife& life, wire::Metadata& metadata);

}  // namespace headrace::engine
