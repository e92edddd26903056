// SPDX-License-Identifier: Apache-2.0
// Two fabrics of one process over sockets, and memory of both with fresh random bytes.
#pragma once

#include <headrace/fabric.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace headrace::test_fabric {

using namespace std::chrono_literals;

/// Longer than any step of a test: a wait that needs it has failed.
inline constexpr auto long_enough = std::chrono::seconds(60);

template <class T>
T value_of(Result<T> result) {
  EXPECT_TRUE(result) << result.error().message;
  if (!result) std::abort();  // what follows has no meaning
  return std::move(result).value();
}

inline Fabric open_at(std::vector<std::string> nics, FabricSpin spin = FabricSpin::brief) {
  FabricOptions options;
  options.groups.push_back({.nics = std::move(nics)});
  options.spin = spin;
  return value_of(Fabric::open(options));
}

/// Expects that the call was refused with that code, and that its sentence has the words.
template <class T>
void expect_refused(const Result<T>& result, Code code, const std::string& words) {
  ASSERT_FALSE(result) << "expected a refusal: " << words;
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(words), std::string::npos) << result.error().message;
}

inline std::vector<std::uint8_t> random_bytes(std::size_t count, std::mt19937_64& random) {
  std::vector<std::uint8_t> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

struct Block {
  Block(Fabric& fabric, std::vector<std::uint8_t> content, FabricAccess access)
      : bytes(std::move(content)),
        memory(value_of(
            fabric.register_memory({.address = bytes.data(), .length_bytes = bytes.size()}, access))) {}
  std::vector<std::uint8_t> bytes;
  FabricMemory memory;
};

struct TwoFabrics {
  explicit TwoFabrics(std::size_t block_bytes = 1 << 20, std::uint64_t seed = std::random_device()())
      : random(seed) {
    ::testing::Test::RecordProperty("seed", std::to_string(seed));
    here_block = std::make_unique<Block>(here, random_bytes(block_bytes, random), FabricAccess::local);
    there_block = std::make_unique<Block>(there, random_bytes(block_bytes, random), FabricAccess::writable);
  }
  [[nodiscard]] FabricDescriptor target() const { return there_block->memory.descriptor(); }

  std::mt19937_64 random;
  std::unique_ptr<Block> here_block, there_block;  // they outlive the fabrics, whose posts may not have ended
  Fabric here = open_at({"127.0.0.1", "127.0.0.2"});
  Fabric there = open_at({"127.0.0.1", "127.0.0.2"});
};

inline void expect_done(const Result<FabricWork>& work) {
  ASSERT_TRUE(work) << work.error().message;
  const Status status = work->wait(long_enough);
  EXPECT_TRUE(status.ok()) << work->error().message;
  EXPECT_EQ(work->state(), RequestState::done);
}

}  // namespace headrace::test_fabric
