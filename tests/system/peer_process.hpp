// SPDX-License-Identifier: Apache-2.0
// A peer in a process of its own (tests/system/programs/peer.cpp). A test kills it, stops it and starts it
// again.
#pragma once

#include "two_agents.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace headrace::test {

class PeerProcess {
 public:
  PeerProcess(const std::string& name, const std::string& backend, std::size_t bytes, std::uint64_t seed,
              const std::vector<std::string>& options = {}) {
    int out[2], in[2];
    EXPECT_EQ(::pipe2(out, O_CLOEXEC) | ::pipe2(in, O_CLOEXEC), 0);
    std::vector<std::string> words{(HEADRACE_TEST_BIN_DIR "/system_peer"), name, backend,
                                   std::to_string(bytes), std::to_string(seed)};
    words.insert(words.end(), options.begin(), options.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::vfork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    ::close(in[0]);
    out_ = out[0];
    in_ = in[1];
    std::uint64_t length = 0;
    if (read_all(&length, sizeof length)) {
      metadata_.resize(length);
      read_all(metadata_.data(), length);
    }
  }
  ~PeerProcess() { end(); }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  [[nodiscard]] const std::string& metadata() const { return metadata_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  /// Kills the process if it runs, and waits for its end.
  void end() {
    if (pid_ <= 0) return;
    ::close(in_);
    ::kill(pid_, SIGKILL);
    ::kill(pid_, SIGCONT);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    ::close(out_);
    pid_ = -1;
  }

  static unsigned char expected(std::size_t i, std::uint64_t seed) {
    return static_cast<unsigned char>((i * 2654435761u + seed * 40503u) >> 11);
  }

 private:
  bool read_all(void* bytes, std::size_t n) const {
    char* at = static_cast<char*>(bytes);
    while (n > 0) {
      const ssize_t got = ::read(out_, at, n);
      if (got <= 0) return false;
      at += got;
      n -= static_cast<std::size_t>(got);
    }
    return true;
  }

  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string metadata_;
};

}  // namespace headrace::test
