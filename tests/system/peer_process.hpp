// SPDX-License-Identifier: Apache-2.0
// A peer in a process of its own (tests/system/programs/peer.cpp). A test kills it, stops it and starts it
// again.
#pragma once

#include "peer_greeting.hpp"
#include "two_agents.hpp"

#include "support/child_ending.hpp"
#include "support/plugin_memory.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>

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
    pid_ = ::vfork();  // NOLINT(bugprone-unsafe-functions): the child only executes a program
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
    PeerGreeting greeting;
    if (!read_all(&greeting, sizeof greeting)) return;
    metadata_.resize(greeting.metadata_bytes);
    read_all(metadata_.data(), metadata_.size());
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const std::size_t margin = greeting.memory[i].margin_bytes;
      whole_[i] = mapped(greeting.memory[i], bytes / 2 + 2 * margin);
      memory_[i] = whole_[i].subspan(margin, bytes / 2);
    }
  }
  ~PeerProcess() { end(); }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  [[nodiscard]] const std::string& metadata() const { return metadata_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Its two regions, that from `allocate` first, as it sees them itself: also while it is stopped and once
  /// it was killed, until `end`. No backend has a part in this.
  [[nodiscard]] const std::array<std::span<std::byte>, 2>& memory() const { return memory_; }
  /// The same with the bytes before and behind the regions, which are not registered.
  [[nodiscard]] const std::array<std::span<std::byte>, 2>& whole_memory() const { return whole_; }
  /// Returns once the order is sent. `obeyed` waits until it is carried out; false: the peer has ended.
  void give(PeerOrder order) const { EXPECT_EQ(::write(in_, &order, sizeof order), ssize_t{sizeof order}); }
  [[nodiscard]] bool obeyed() const {
    char answer = 0;
    return read_all(&answer, sizeof answer) && answer == peer_done;
  }
  void signal(int number) {
    if (number == SIGKILL) killed_ = true;
    ::kill(pid_, number);
  }
  /// Kills it if need be, and waits for it: nothing of it runs any more. Its memory stays mapped here. A peer
  /// that has ended otherwise is a failure of the test.
  void kill() {
    if (pid_ <= 0) return;
    int status = 0;
    if (!killed_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      ADD_FAILURE() << "the peer " << ending_text(status) << " before the test ended it";
    } else {
      ::kill(pid_, SIGKILL);
      ::kill(pid_, SIGCONT);
      ::waitpid(pid_, &status, 0);
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the peer " << ending_text(status);
    }
    ::close(in_);
    ::close(out_);
    pid_ = -1;
  }
  /// The same, and gives up its memory.
  void end() {
    kill();
    for (auto& bytes : whole_)
      if (!bytes.empty()) ::munmap(bytes.data(), bytes.size());
    whole_ = memory_ = {};
  }

  /// What its regions hold in a row before a test writes to them.
  static std::vector<std::byte> first_bytes(std::size_t bytes, std::uint64_t seed) {
    std::vector<std::byte> pattern(bytes);
    fill_pattern(pattern, seed);
    return pattern;
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

  /// The file behind the peer's memory, mapped here as well.
  [[nodiscard]] std::span<std::byte> mapped(const PeerGreeting::Place& place, std::size_t bytes) const {
    const std::string path = "/proc/" + std::to_string(pid_) + "/fd/" + std::to_string(place.descriptor);
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, place.offset);
    if (file >= 0) ::close(file);
    if (at == MAP_FAILED) {
      ADD_FAILURE() << "the peer's memory cannot be mapped from " << path << ": " << std::strerror(errno);
      std::abort();  // a test that does not see the peer's memory shows nothing
    }
    return {static_cast<std::byte*>(at), bytes};
  }

  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::atomic<bool> killed_ = false;
  std::string metadata_;
  std::array<std::span<std::byte>, 2> whole_, memory_;
};

/// Whether the first word of a page is there, while the page may be written. This is a race on purpose: it
/// decides when a test strikes, and nothing else.
__attribute__((no_sanitize("thread"))) inline bool has_begun(const std::byte* page,
                                                             const std::byte* expected) {
  return *reinterpret_cast<const volatile std::uint64_t*>(page) ==
         *reinterpret_cast<const std::uint64_t*>(expected);
}

/// Strikes a peer, from a thread of its own, at a moment that does not depend on the speed of the machine:
/// when a page of a post has begun to arrive, or the post has ended without it.
class Striker {
 public:
  /// `page` holds other bytes than `expected` before the post.
  Striker(const Request& request, const std::byte* page, const std::byte* expected,
          std::function<void()> strike)
      : thread_([this, &request, page, expected, strike = std::move(strike)] {
          while (!has_begun(page, expected) && !post_ended_) std::this_thread::yield();
          was_posted_ = request.state() == RequestState::posted;
          strike();
        }) {}
  ~Striker() { post_ended_ = true; }
  Striker(const Striker&) = delete;
  Striker& operator=(const Striker&) = delete;

  /// After the post has ended so. Waits for the thread, and tells whether the strike ended the post.
  bool ended_the_post(Status status) {
    post_ended_ = true;
    thread_.join();
    return was_posted_ && status.code == Code::peer_lost;
  }

 private:
  std::atomic<bool> post_ended_ = false, was_posted_ = false;
  std::jthread thread_;
};

}  // namespace headrace::test
