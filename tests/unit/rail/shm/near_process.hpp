// SPDX-License-Identifier: Apache-2.0
// Another process of this host with a NIC, for one test: it ends when it is killed.
#pragma once

#include "unit/rail/shm/two_nics.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace headrace::rail::shm::test_nics {

class NearProcess {
 public:
  /// `body` opens a NIC, calls `say`, and goes on for ever.
  explicit NearProcess(const std::function<void()>& body) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      said_by_child = ends[1];
      body();
      ::_exit(0);
    }
    ::close(ends[1]);
    std::array<char, 512> said;
    const ssize_t n = ::read(ends[0], said.data(), said.size());
    ::close(ends[0]);
    const std::string all(said.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    address = all.substr(0, all.find(' '));
    key = all.substr(std::min(all.size(), address.size() + 1));
  }
  ~NearProcess() {
    send(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  NearProcess(const NearProcess&) = delete;
  NearProcess& operator=(const NearProcess&) = delete;

  /// In the child: tells where its NIC and its memory are.
  static void say(const NearNic& nic) {
    const std::string says = nic.nic->address() + " " + nic.registered.key;
    if (::write(said_by_child, says.data(), says.size()) != static_cast<ssize_t>(says.size())) ::_exit(1);
  }
  void send(int signal) const { ::kill(pid_, signal); }
  /// Waits for the end of the process, and leaves it to the destructor.
  void wait_for_end() const {
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
  }

  std::string address, key;

 private:
  static inline int said_by_child = -1;
  pid_t pid_ = -1;
};

}  // namespace headrace::rail::shm::test_nics
