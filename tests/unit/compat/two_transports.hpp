// SPDX-License-Identifier: Apache-2.0
// Two transports of this process, and host memory with fresh random bytes.
#pragma once

#include <headrace/compat/rdma_transport.hpp>

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace headrace::test_compat {

using namespace headrace::compat;
using namespace std::chrono_literals;

/// Longer than any step of a test: a wait that needs it has failed.
inline constexpr auto long_enough = std::chrono::milliseconds(60'000);

inline std::vector<std::uint8_t> fresh(std::size_t count) {
  static std::mt19937_64 random{std::random_device{}()};
  std::vector<std::uint8_t> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

/// Ends a test that would wait for good.
inline commResult_t end_of(const CommFuture& future) {
  EXPECT_TRUE(future.wait(long_enough)) << "the operation does not end";
  return future.isReady() ? future.get() : commInProgress;
}

struct Block {
  explicit Block(std::vector<std::uint8_t> content)
      : bytes(std::move(content)), memory(bytes.data(), bytes.size(), 0) {}
  explicit Block(std::size_t count) : Block(std::vector<std::uint8_t>(count)) {}
  [[nodiscard]] RdmaRemoteBuffer remote() { return {bytes.data(), bytes.size(), memory.remoteKey()}; }

  std::vector<std::uint8_t> bytes;
  RdmaMemory memory;
};

struct TwoTransports {
  TwoTransports() {
    EXPECT_EQ(server.connect(client.bind()), commSuccess);
    EXPECT_EQ(client.connect(server.bind()), commSuccess);
  }
  RdmaTransport server{0};
  RdmaTransport client{0};
};

// --- another process

inline void say(int to, const std::string& text) {
  const auto length = static_cast<std::uint16_t>(text.size());
  if (::write(to, &length, 2) != 2 || ::write(to, text.data(), length) != length) std::abort();
}

inline std::string hear(int from) {
  std::uint16_t length = 0;
  if (::read(from, &length, 2) != 2) std::abort();
  std::string text(length, '\0');
  if (::read(from, text.data(), length) != length) std::abort();
  return text;
}

/// Until threads of earlier tests are gone: the thread sanitizer lets no child of several threads start one.
/// It has one of its own.
inline void wait_for_other_threads() {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  for (int i = 0; i < 5000 && threads() > 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// A fork of this process that runs `body(in, out)`. Made before any transport of a test.
struct PeerProcess {
  explicit PeerProcess(void (*body)(int in, int out)) {
    wait_for_other_threads();
    int to_peer[2], from_peer[2];
    if (::pipe(to_peer) != 0 || ::pipe(from_peer) != 0) std::abort();
    process = ::fork();
    if (process == 0) body(to_peer[0], from_peer[1]), ::_exit(0);
    ::close(to_peer[0]), ::close(from_peer[1]);
    to = to_peer[1];
    from = from_peer[0];
  }
  ~PeerProcess() {
    kill();
    ::close(to), ::close(from);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  void kill() {
    if (process > 0) ::kill(process, SIGKILL), ::waitpid(process, nullptr, 0);
    process = 0;
  }

  pid_t process = 0;
  int to = -1;
  int from = -1;
};

}  // namespace headrace::test_compat
