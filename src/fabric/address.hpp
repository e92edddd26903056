// SPDX-License-Identifier: Apache-2.0
// The bytes of addresses and descriptors. Both come from outside, so reading is bounded.
#pragma once

#include <headrace/fabric_memory.hpp>

#include "base/errors.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::fabric {

/// The NICs of one group, encoded: rail::Engine::connect takes it, and it names the link to that group.
using NicList = std::string;

struct AddressParts {
  std::string bytes;
  std::uint64_t fabric = 0;     ///< drawn when it was opened
  std::vector<NicList> groups;  ///< at least one
};
[[nodiscard]] std::shared_ptr<const AddressParts> make_address(std::uint64_t fabric,
                                                               std::vector<NicList> groups);
///   errors  corrupt, not_supported
[[nodiscard]] Result<std::shared_ptr<const AddressParts>> read_address(std::string_view bytes);

struct DescriptorParts {
  std::string bytes;
  FabricAccess access = FabricAccess::local;
  std::uint64_t length_bytes = 0;
  NicList owner;
  std::string keys;  ///< by NIC of the owner, for rail::Engine::load
};
/// `keys`: as rail::Engine::descriptor gives them. Both lists have one entry for each NIC.
[[nodiscard]] std::shared_ptr<const DescriptorParts> make_descriptor(FabricAccess access,
                                                                     std::uint64_t length_bytes,
                                                                     const NicList& owner,
                                                                     const std::string& keys);
///   errors  corrupt, not_supported
[[nodiscard]] Result<std::shared_ptr<const DescriptorParts>> read_descriptor(std::string_view bytes);

/// For people: the first NIC, and how many more there are.
[[nodiscard]] std::string name_of(const NicList& nics);

}  // namespace headrace::fabric
