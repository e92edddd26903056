// SPDX-License-Identifier: Apache-2.0
// The agent behind a communicator and those split from it, and their mail from ranks on other hosts.
#pragma once

#include "collectives/assembly.hpp"

#include <headrace/agent.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::collectives {

class Station {
 public:
  /// `local`: all ranks are on this host, so no port need be open to others.
  [[nodiscard]] static Result<std::shared_ptr<Station>> open(const std::string& name,
                                                             const std::vector<std::string>& backends,
                                                             bool local);
  ~Station();
  Station(const Station&) = delete;
  Station& operator=(const Station&) = delete;

  [[nodiscard]] Agent& agent() { return agent_; }

  /// Passes each notification that begins with `mailbox`, without these 8 bytes, to `taken`, on the agent's
  /// callback thread. It must be quick and call nothing of this object.
  void listen(std::uint64_t mailbox, std::function<void(std::string_view)> taken);
  /// When it returns, the function is not running and is not called again.
  void stop_listening(std::uint64_t mailbox);
  /// Cards of ranks that put a communicator together.
  [[nodiscard]] AssemblyMail& assembly_mail() { return assembly_mail_; }
  /// The notification that carries a piece of one.
  [[nodiscard]] static std::string mail_of_assemblies(std::string_view piece);
  /// Each communicator enters and leaves; the agent is closed with the last one. Returns whether it was.
  void enter() { ++users_; }
  bool leave();

 private:
  explicit Station(Agent agent) : agent_(std::move(agent)) {}
  void hand_over(const std::string& peer, std::string_view payload);

  std::atomic<int> users_{0};
  std::mutex mutex_;
  std::map<std::uint64_t, std::function<void(std::string_view)>> listeners_;
  AssemblyMail assembly_mail_;
  Agent agent_;  // its callback thread ends before the listeners go
};

}  // namespace headrace::collectives
