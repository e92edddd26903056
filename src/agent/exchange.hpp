// SPDX-License-Identifier: Apache-2.0
// Metadata between agents: by direct socket and through a store.
#pragma once

#include <headrace/agent.hpp>

#include "engine/engine.hpp"

namespace headrace {

class Exchange {
 public:
  static Result<std::unique_ptr<Exchange>> open(engine::Engine& engine, const std::string& listen, const std::string& store, const std::map<std::string, std::string>& options);
  virtual ~Exchange() = default;

  [[nodiscard]] virtual std::string listen_address() const = 0;
  virtual Result<ImportReport> fetch(const std::string& address, Deadline deadline, const std::string& label) = 0;
  virtual Result<void> send(const std::string& address, const ExportOptions& options, Deadline deadline) = 0;
  virtual Result<void> publish(const ExportOptions& options, const std::string& label) = 0;
  virtual Result<void> unpublish() = 0;
  virtual Result<ImportReport> find(const std::string& peer, Deadline deadline, const std::string& label) = 0;
  virtual Result<std::vector<std::string>> list(Deadline deadline) = 0;
  virtual Result<void> watch(std::function<void(const PeerEvent&)> event) = 0;
};

}  // namespace headrace
