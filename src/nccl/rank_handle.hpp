// SPDX-License-Identifier: Apache-2.0
// One rank as Communicator::reconfigure takes it.
#pragma once

#include "base/errors.hpp"
#include "vendor/nccl/types.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace headrace::nccl {

struct RankHandle {
  std::uint64_t communicator = 0;  ///< the same on its ranks
  int rank = 0, size = 1;          ///< in it
  UniqueId id = {};                ///< of a new communicator, if this rank comes first
  std::optional<UniqueId> growth;  ///< of this one with more ranks

  [[nodiscard]] std::string encode() const;
  ///   errors  invalid_argument (it is none)
  [[nodiscard]] static Result<RankHandle> decode(std::string_view bytes);
};

/// How many of these ranks, the first ones, are a whole communicator that can grow by the others; 0: none.
[[nodiscard]] int ranks_that_grow(std::span<const RankHandle> handles);

}  // namespace headrace::nccl
