// SPDX-License-Identifier: Apache-2.0
#include "gpu/closer.hpp"

#include "base/start_thread.hpp"

namespace headrace::gpu {

Closer::~Closer() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void Closer::close(std::shared_ptr<const void> object) {
  {
    const std::scoped_lock lock(mutex_);
    if (!thread_.joinable()) {
      auto thread =
          start_thread<std::jthread>("hr-closer", [this](const std::stop_token& stop) { run(stop); });
      if (!thread) return;  // closed here, late rather than never
      thread_ = std::move(*thread);
    }
    objects_.push_back(std::move(object));
  }
  given_.notify_one();
}

void Closer::run(const std::stop_token& stop) {
  for (;;) {
    std::vector<std::shared_ptr<const void>> objects;
    {
      std::unique_lock lock(mutex_);
      static_cast<void>(given_.wait(lock, stop, [this] { return !objects_.empty(); }));
      objects.swap(objects_);
    }
    if (objects.empty()) return;  // asked to stop
  }
}

}  // namespace headrace::gpu
