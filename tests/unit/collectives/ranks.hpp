// SPDX-License-Identifier: Apache-2.0
// The ranks of a communicator as threads of this process.
#pragma once

#include <headrace/comm.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace headrace::test {

inline std::string unique_comm_name() {
  static std::atomic<int> count{0};
  return "comm-" + std::to_string(::getpid()) + "-" + std::to_string(count.fetch_add(1));
}

/// Options of one rank; all ranks of a test share name and meeting place.
inline CommOptions rank_options(int rank, int size, const std::string& name) {
  CommOptions options;
  options.rank = rank;
  options.size = size;
  options.name = name;
  options.meeting = "memory:" + name;
  options.timeout = std::chrono::seconds(60);
  options.hints = {{"backends", "shm"}};
  return options;
}

template <class T>
T must(Result<T> result) {
  if (!result.ok()) {
    ADD_FAILURE() << code_name(result.code()) << ": " << result.error().message;
    std::abort();  // the test cannot continue; the sanitizer's stack names the caller
  }
  return std::move(result).value();
}
inline void must(const Result<void>& result) {
  if (!result.ok()) ADD_FAILURE() << code_name(result.code()) << ": " << result.error().message;
}
inline void ok(const Result<Work>& result) {
  if (!result.ok()) ADD_FAILURE() << code_name(result.code()) << ": " << result.error().message;
}

/// Runs `body` for each rank, each on a thread of its own.
inline void on_threads(int size, const std::function<void(int rank)>& body) {
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
}

/// The same with a communicator for each.
inline void with_ranks(int size, const std::function<void(Comm&)>& body,
                       const std::map<std::string, std::string>& hints = {}) {
  const std::string name = unique_comm_name();
  on_threads(size, [&](int rank) {
    CommOptions options = rank_options(rank, size, name);
    for (const auto& [hint, value] : hints) options.hints[hint] = value;
    Comm comm = must(Comm::open(options));
    body(comm);
  });
}

}  // namespace headrace::test
