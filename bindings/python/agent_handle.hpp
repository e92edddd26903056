// SPDX-License-Identifier: Apache-2.0
// An agent for Python. It may be closed while other threads are inside a call of it.
#pragma once

#include <headrace/agent.hpp>

#include "bindings/python/convert.hpp"

#include <memory>
#include <unordered_map>
#include <unordered_set>

namespace headrace::python {

/// Keeps the objects alive that were registered in one call, each until its region is deregistered.
struct HeldGroup {
  std::vector<std::shared_ptr<const void>> members;
};

class PyAgent {
 public:
  PyAgent(std::string name, AgentOptions options);
  ~PyAgent();
  PyAgent(const PyAgent&) = delete;
  PyAgent& operator=(const PyAgent&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool closed() const { return agent_ == nullptr; }
  /// Ends the agent. Calls that wait on other threads raise Canceled; the last of them frees it.
  void close();
  /// A descriptor that becomes readable when the agent is closed; for waits in an event loop.
  int closing_fd();

  /// Returns call(headrace::Agent&), called without the GIL. Raises invalid_argument if the agent is closed.
  template <class Call>
  auto call(Call&& call) const {
    std::shared_ptr<headrace::Agent> agent = open();
    return without_gil([agent = std::move(agent), &call]() mutable {
      auto answer = call(*agent);
      agent.reset();  // may end the agent, which waits for its threads: must be without the GIL
      return answer;
    });
  }
  /// The same for a call that returns a Result: returns its value, raises its error.
  template <class Call>
  auto ask(Call&& what) const {
    return take(call(std::forward<Call>(what)));
  }

  /// The agent, for an object that uses it as long as it lives. Raises invalid_argument if it is closed. The
  /// last reference goes without the GIL.
  [[nodiscard]] std::shared_ptr<headrace::Agent> shared() const { return open(); }

  std::shared_ptr<Callable> notification_callback, namespace_callback;
  std::unordered_map<std::uint32_t, std::pair<std::weak_ptr<HeldGroup>, std::size_t>> groups;

 private:
  [[nodiscard]] std::shared_ptr<headrace::Agent> open() const;

  HomeProcess home_;
  std::string name_;
  std::shared_ptr<headrace::Agent> agent_;  ///< null: closed. Access needs the GIL
  int closing_fd_ = -1;
};

/// Closes the open agents of this process; called when the interpreter ends.
void close_all_agents();

}  // namespace headrace::python
