// SPDX-License-Identifier: Apache-2.0
// Two transports of this process, and host memory with fresh random bytes.
#pragma once

#include <headrace/compat/rdma_transport.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
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

}  // namespace headrace::test_compat
