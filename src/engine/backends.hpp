// SPDX-License-Identifier: Apache-2.0
// The backends that this agent has open, in the order in which they were opened. A backend's place in that
// order is its index: in a region's handles, and in the mask of backends on the wire.
#pragma once

#include "engine/backend_instance.hpp"
#include "engine/plugin_host.hpp"
#include "wire/metadata.hpp"

#include <memory>
#include <optional>
#include <shared_mutex>
#include <vector>

namespace headrace::engine {

class Backends {
 public:
  /// Opens a backend that was found; it calls `events` from now on.
  ///   errors  invalid_argument (one of that name is open), exhausted (max_backends are), those of the
  ///   backend
  Result<BackendInstance*> open(const FoundBackend& found, const InstanceArgs& args, HostEvents& events);

  [[nodiscard]] std::vector<BackendInstance*> all() const;
  /// max_backends if it is not one of these.
  [[nodiscard]] std::size_t index(const BackendInstance& backend) const;
  /// As metadata has them.
  [[nodiscard]] std::vector<wire::Metadata::Backend> exported(bool connection_info) const;

  /// Ends every instance. The objects stay: a thread that runs progress may still hold one.
  void end();
  /// In a forked child: the instances are the parent's.
  void abandon();

 private:
  [[nodiscard]] Result<void> check_new(const std::string& name) const;

  struct Open {
    std::unique_ptr<BackendInstance> instance;
    std::string connection_info;
  };
  mutable std::shared_mutex mutex_;
  std::vector<Open> open_;
};

}  // namespace headrace::engine
