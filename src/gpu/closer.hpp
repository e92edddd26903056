// SPDX-License-Identifier: Apache-2.0
// Closes mappings of other processes' memory on a thread of its own.
//
// The driver lets such a call wait until the kernels of this process have left, and a kernel may wait for
// what the caller would do next: a worker that closes memory of a dead peer would not hear the others.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::gpu {

///   threads  any
class Closer {
 public:
  Closer() = default;
  /// Returns when all is closed, so it waits as long as the driver does.
  ~Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;

  /// Holds an object whose destructor may wait: it runs on the thread of the closer when the last holder has
  /// let it go. The closer outlives all holders.
  template <class T>
  [[nodiscard]] std::shared_ptr<const T> hold(T object) {
    return std::shared_ptr<const T>(new T(std::move(object)),
                                    [this](const T* held) { close(std::shared_ptr<const T>(held)); });
  }

 private:
  void close(std::shared_ptr<const void> object);
  void run(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any given_;
  std::vector<std::shared_ptr<const void>> objects_;
  std::jthread thread_;  // from the first object on
};

}  // namespace headrace::gpu
