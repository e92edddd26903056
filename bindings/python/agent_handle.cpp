// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/agent_handle.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

namespace headrace::python {
namespace {

/// The open agents of this process. Access needs the GIL.
std::set<PyAgent*>& open_agents() {
  static std::set<PyAgent*>& the = *new std::set<PyAgent*>;
  return the;
}

}  // namespace

PyAgent::PyAgent(std::string name, AgentOptions options) : name_(name) {
  agent_ = std::make_shared<headrace::Agent>(
      take(without_gil([&] { return headrace::Agent::open(std::move(name), std::move(options)); })));
  open_agents().insert(this);
}

PyAgent::~PyAgent() {
  close();
  if (closing_fd_ >= 0) ::close(closing_fd_);
  free_laid_aside();
}

void PyAgent::close() {
  std::shared_ptr<headrace::Agent> agent = std::exchange(agent_, nullptr);
  if (!agent) return;
  open_agents().erase(this);
  std::shared_ptr<Callable> callbacks[] = {std::exchange(notification_callback, nullptr),
                                           std::exchange(namespace_callback, nullptr)};
  for (const auto& callback : callbacks)
    if (callback) callback->dropped = true;
  if (closing_fd_ >= 0 && home_.is_here()) (void)::eventfd_write(closing_fd_, 1);
  // Without the GIL: the close waits for the callback thread, which may need the GIL. Without `this`: a call
  // on another thread may hold the last reference to this object, and returns when the agent is closed.
  without_gil([&agent, home = home_] {
    if (home.is_here()) agent->close();
    home.release(agent);
    return true;
  });
  for (auto& callback : callbacks) callback.reset();
  free_laid_aside();
}

int PyAgent::closing_fd() {
  (void)open();
  if (closing_fd_ < 0) closing_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (closing_fd_ < 0) raise(Error{Code::exhausted, std::string("make an eventfd: ") + std::strerror(errno)});
  return closing_fd_;
}

std::shared_ptr<headrace::Agent> PyAgent::open() const {
  if (!agent_) raise(Error{Code::invalid_argument, "agent " + name_ + " is closed: open another"});
  if (!home_.is_here()) {
    raise(Error{
        Code::invalid_argument,
        "agent " + name_ + " belongs to the parent process: open an agent in this process, after the fork"});
  }
  return agent_;
}

void close_all_agents() {
  const std::set<PyAgent*> agents =
      open_agents();  // a copy: close() erases, and freeing Python objects may run any code
  for (PyAgent* agent : agents)
    if (open_agents().contains(agent)) agent->close();
}

}  // namespace headrace::python
