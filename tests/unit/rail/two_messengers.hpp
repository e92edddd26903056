// SPDX-License-Identifier: Apache-2.0
// Messages of users between two engines: each has its own bytes, and each end is checked against them.
#pragma once

#include "unit/rail/two_engines.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace headrace::rail::test_engines {

/// Sends from side 0, receives on side 1. Message i has the token i and bytes that no other has.
class Messages {
 public:
  Messages(EnginePair& engines, std::uint64_t bytes) : engines_(engines) {
    for (int side = 0; side < 2; ++side) {
      memory_[side].resize(bytes);
      auto registered = engines.sides[side].engine->register_memory(
          {reinterpret_cast<std::uintptr_t>(memory_[side].data()), bytes, {}, Access::local});
      EXPECT_TRUE(registered);
      region_[side] = std::move(*registered);
    }
    engines.sides[1].on_received = [this](const Side::Received& received) { look_at(received); };
    engines.sides[0].on_sent = [this](std::uint64_t token, Status) {
      std::memset(memory_[0].data() + sent_[token].offset, 0xDD, sent_[token].bytes);  // it is ours again
    };
  }

  Status send(std::uint64_t bytes) {
    const std::uint64_t token = sent_.size();
    sent_.push_back({used_[0], bytes});
    used_[0] += bytes;
    EXPECT_LE(used_[0], memory_[0].size());
    for (std::uint64_t i = 0; i < bytes; ++i) memory_[0][sent_[token].offset + i] = byte_of(token, i);
    return engines_.sides[0].link->send({&region_[0], sent_[token].offset, bytes, token});
  }
  Status receive(std::uint64_t bytes, const Link* from = nullptr, bool again = false) {
    const std::uint64_t token = rooms_.size();
    rooms_.push_back({used_[1], bytes});
    used_[1] += bytes;
    EXPECT_LE(used_[1], memory_[1].size());
    return engines_.sides[1].engine->post_receive(
        {&region_[1], rooms_[token].offset, bytes, token, from, again});
  }
  void cancel_send(std::uint64_t token, std::uint64_t now_ns) {
    engines_.sides[0].link->cancel_send(token, now_ns);
  }

  [[nodiscard]] std::size_t posted() const { return sent_.size(); }
  [[nodiscard]] bool all_sent() const { return engines_.sides[0].sends.size() == sent_.size(); }
  [[nodiscard]] Code code_of(std::uint64_t token) const {
    return engines_.sides[0].sends.at(token).first.code;
  }
  [[nodiscard]] const std::string& why_of(std::uint64_t token) const {
    return engines_.sides[0].sends.at(token).second;
  }
  [[nodiscard]] std::size_t sent_with(Code code) const {
    std::size_t count = 0;
    for (const auto& [token, end] : engines_.sides[0].sends) count += end.first.code == code ? 1 : 0;
    return count;
  }
  /// Nothing of them is left on either side.
  [[nodiscard]] bool nothing_held() const {
    return engines_.sides[0].link->held() == 0 && engines_.sides[1].link->held() == 0;
  }

  std::vector<std::uint64_t> arrived;  ///< tokens of the messages, in the order of their arrival

 private:
  struct Range {
    std::uint64_t offset, bytes;
  };
  static std::uint8_t byte_of(std::uint64_t token, std::uint64_t at) {
    return static_cast<std::uint8_t>(token * 31 + at * 7 + at / 255);
  }
  /// Which message it is, by its first bytes and its length: messages are sent in the order of their tokens.
  void look_at(const Side::Received& received) {
    if (!received.status.ok()) return;
    std::uint64_t token = arrived.empty() ? 0 : arrived.back() + 1;
    while (token < sent_.size() && !is(token, received)) ++token;  // those that failed are missing
    EXPECT_LT(token, sent_.size()) << "a message of " << received.bytes << " bytes that was not sent then";
    arrived.push_back(token);
  }
  [[nodiscard]] bool is(std::uint64_t token, const Side::Received& received) const {
    if (received.bytes != sent_[token].bytes || received.bytes > rooms_[received.token].bytes) return false;
    for (std::uint64_t i = 0; i < received.bytes; ++i)
      if (memory_[1][rooms_[received.token].offset + i] != byte_of(token, i)) return false;
    return true;
  }

  EnginePair& engines_;
  std::vector<std::uint8_t> memory_[2];
  LocalRegion region_[2];
  std::vector<Range> sent_, rooms_;
  std::uint64_t used_[2] = {0, 0};
};

}  // namespace headrace::rail::test_engines
