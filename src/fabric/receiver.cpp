// SPDX-License-Identifier: Apache-2.0
#include "fabric/receiver.hpp"

namespace headrace::fabric {

Result<void> Receiver::start() {
  for (std::size_t index = 0; index < works_.size(); ++index) {
    if (auto posted = post(index); !posted) {
      stop();
      return posted;
    }
  }
  return {};
}

Result<void> Receiver::post(std::size_t index) {
  FabricWork work;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return {};
    HEADRACE_TRY(posted, core_->receive_again({pool_->memory(), pool_->offset_of(index), pool_->bytes_each}));
    work = works_[index] = std::move(posted);
  }
  work.on_done([self = shared_from_this(), index](Status status) { self->ended(index, status); });
  return {};
}

/// On the callback thread.
void Receiver::ended(std::size_t index, Status status) {
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    bytes = static_cast<std::size_t>(works_[index].bytes());
    works_[index] = {};
  }
  if (!status.ok()) return;  // stopped, or the fabric is closed
  try {
    received_(pool_->bytes_of(index).first(bytes));
  } catch (...) {
    static_cast<void>(post(index));  // one that throws is told, and the buffer receives again
    throw;
  }
  static_cast<void>(post(index));
}

void Receiver::stop() {
  std::vector<FabricWork> works;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    works = works_;
  }
  for (const FabricWork& work : works)
    if (work) work.cancel();
}

}  // namespace headrace::fabric
