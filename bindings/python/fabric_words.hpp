// SPDX-License-Identifier: Apache-2.0
// Flags, watched words and queues of commands of a fabric for Python.
#pragma once

#include <headrace/fabric_commands.hpp>
#include <headrace/fabric_words.hpp>

#include "bindings/python/fabric_expectation.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace headrace::python {

class PyFabricFlag {
 public:
  PyFabricFlag(FabricFlag flag, std::shared_ptr<const void> keeper)
      : keeper_(std::move(keeper)), flag_(std::make_shared<FabricFlag>(std::move(flag))) {}
  ~PyFabricFlag() {
    without_gil([this] { home_.release(flag_); });  // of GPU memory it waits for the last store
  }
  PyFabricFlag(const PyFabricFlag&) = delete;
  PyFabricFlag& operator=(const PyFabricFlag&) = delete;
  [[nodiscard]] const FabricFlag& flag() const { return *flag_; }

 private:
  HomeProcess home_;
  std::shared_ptr<const void> keeper_;  ///< of the caller's memory; it goes after the flag
  std::shared_ptr<FabricFlag> flag_;
};

std::unique_ptr<PyFabricFlag> flag_of(const PyFabricExpectation& expectation,
                                      const std::optional<int>& device, nb::handle memory);

class PyFabricWatcher {
 public:
  PyFabricWatcher(FabricWatcher watcher, std::optional<int> device, std::shared_ptr<FabricHooks> hooks,
                  const std::shared_ptr<Callable>& callback)
      : watcher_(std::make_shared<FabricWatcher>(std::move(watcher))),
        device_(device),
        hooks_(std::move(hooks)),
        callback_(callback) {}
  ~PyFabricWatcher() {
    without_gil([this] { home_.release(watcher_); });
  }
  PyFabricWatcher(const PyFabricWatcher&) = delete;
  PyFabricWatcher& operator=(const PyFabricWatcher&) = delete;

  /// Raises in a forked child.
  [[nodiscard]] const FabricWatcher& watcher() const;
  [[nodiscard]] std::optional<int> device() const { return device_; }
  void stop();

 private:
  HomeProcess home_;
  std::shared_ptr<FabricWatcher> watcher_;
  std::optional<int> device_;
  std::shared_ptr<FabricHooks> hooks_;  ///< they own the callback
  std::weak_ptr<Callable> callback_;
};

class PyFabricCommandQueue {
 public:
  PyFabricCommandQueue(FabricCommandQueue queue, std::vector<std::uint32_t> units)
      : units_(std::move(units)), queue_(std::make_shared<FabricCommandQueue>(std::move(queue))) {}
  ~PyFabricCommandQueue() {
    without_gil([this] { home_.release(queue_); });
  }
  PyFabricCommandQueue(const PyFabricCommandQueue&) = delete;
  PyFabricCommandQueue& operator=(const PyFabricCommandQueue&) = delete;

  /// Raises in a forked child.
  [[nodiscard]] const FabricCommandQueue& queue() const;
  [[nodiscard]] std::uint64_t post(nb::handle write, nb::handle first, nb::handle count) const;
  void wait(std::uint64_t number) const;

 private:
  /// Raises if its commands are those of kernels.
  [[nodiscard]] const FabricCommandQueue& of_threads() const;

  HomeProcess home_;
  const std::vector<std::uint32_t> units_;  ///< of each write of the list
  std::shared_ptr<FabricCommandQueue> queue_;
};

}  // namespace headrace::python
