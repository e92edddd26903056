// SPDX-License-Identifier: Apache-2.0
// Taking a peer's metadata into the record of its life.
#pragma once

#include "engine/peer_life.hpp"
#include "wire/metadata.hpp"

#include <cstdint>
#include <string>

namespace headrace::engine {

/// How metadata came.
enum class Origin {
  caller,  ///< the caller gave the bytes, or named the place from which they were fetched
  sender,  ///< the agent that it is about sent it unasked
};

/// What became of metadata that was taken in.
struct Taken {
  std::uint64_t left_out = 0;  ///< regions that the peer has revoked since
  std::string note;            ///< says so in a sentence; empty: everything was taken
};

/// Takes in a whole export, a part or an update, in any order: metadata that is older than what is held adds
/// what is not known yet, and brings nothing back. `metadata` is used up.
///   errors  not_found (an update of a later version than the one that is held), corrupt, invalid_argument (a
///           sender changes how it is reached)
Result<Taken> take_metadata(PeerLife& life, wire::Metadata& metadata, Origin origin = Origin::caller);

}  // namespace headrace::engine
