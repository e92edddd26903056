// SPDX-License-Identifier: Apache-2.0
// Two agents of this process that know each other over one backend, and memory to move between them.
#pragma once

#include <headrace/headrace.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

namespace headrace::test {

inline std::string unique_name(const std::string& stem) {
  static std::atomic<int> count{0};
  return stem + "-" + std::to_string(::getpid()) + "-" + std::to_string(count.fetch_add(1));
}

template <class T>
T must(Result<T> result) {
  if (!result.ok()) {
    ADD_FAILURE() << code_name(result.code()) << ": " << result.error().message;
    std::abort();  // the test cannot continue; the sanitizer's stack names the caller
  }
  return std::move(result).value();
}
inline void must(const Result<void>& result) { ASSERT_TRUE(result.ok()) << result.error().message; }

/// Each run has other data; HEADRACE_TEST_SEED repeats the data of a run that failed.
inline std::uint64_t run_seed() {
  static const std::uint64_t seed = [] {
    const char* const given = std::getenv("HEADRACE_TEST_SEED");
    const std::uint64_t chosen =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::fprintf(stderr, "HEADRACE_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

inline std::vector<std::byte> random_bytes(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(run_seed() + seed);
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, n - i));
  }
  return bytes;
}

inline constexpr auto patience = std::chrono::seconds(30);

/// `here` is the initiator, `there` the owner.
struct TwoAgents {
  explicit TwoAgents(const std::string& backend, const std::map<std::string, std::string>& options = {})
      : here(must(Agent::open(unique_name("here"), {{backend}, "", "", options}))),
        there(must(Agent::open(unique_name("there"), {{backend}, "", "", options}))) {}

  /// Each agent imports the metadata of the other.
  void meet() {
    must(here.import_metadata(must(there.export_metadata())));
    must(there.import_metadata(must(here.export_metadata())));
  }

  Agent here;
  Agent there;
};

/// The backends that every test of agents runs over: those that carry host memory between agents. Their names
/// stand here, so that a test of one of them does not load the others.
inline std::vector<std::string> all_backends() { return {"fake", "shm", "tcp"}; }

/// Options with which a cancel can reach a post before it ends: the fake backend begins later.
inline std::map<std::string, std::string> slow_enough_to_cancel(const std::string& backend) {
  if (backend != "fake") return {};
  return {{"fake.faults", "delay:50us"}};
}

/// Cancels a request from another thread, once after each `post_comes`, at a random moment.
class Canceler {
 public:
  explicit Canceler(Request& request)
      : thread_([this, &request](const std::stop_token& stop) {
          std::mt19937_64 random(run_seed() + 63);
          for (int seen = 0; !stop.stop_requested();) {
            if (posts_.load() == seen) continue;
            ++seen;
            for (std::uint64_t spin = random() % 4000; spin != 0; --spin)
              std::atomic_signal_fence(std::memory_order_seq_cst);
            request.cancel();
          }
        }) {}
  void post_comes() { posts_.fetch_add(1); }
  void stop() { thread_ = {}; }

 private:
  std::atomic<int> posts_{0};
  std::jthread thread_;
};

}  // namespace headrace::test
