// SPDX-License-Identifier: Apache-2.0
// The handles of include/headrace/c/comm.h.
#pragma once

#include "handles.hpp"

#include <headrace/c/comm.h>
#include <headrace/comm.hpp>

struct headrace_comm {
  explicit headrace_comm(headrace::Comm opened)
      : comm(std::move(opened)), ranks(comm.ranks()), name(comm.name()) {}

  headrace::Comm comm;
  const std::vector<std::int32_t> ranks;
  const std::string name;
};

struct headrace_work {
  headrace::Work work;
};

struct headrace_batch {
  headrace::Batch batch;
};

struct headrace_all_gather {
  headrace::AllGatherHandle handle;
};

namespace headrace::c {

inline Elements output_of(const headrace_elements& given) {
  return {given.data, static_cast<std::size_t>(given.count), static_cast<DType>(given.dtype)};
}
inline ConstElements input_of(const headrace_elements& given) { return output_of(given); }

/// Calls `start`, which returns Result<Work>, and gives the work to a caller that asked for one.
template <class Start>
std::int32_t give_work(headrace_work** work, headrace_error** error, const Start& start) {
  if (work != nullptr) *work = nullptr;
  return guarded(error, [&]() -> Result<void> {
    // Made first: once the operation runs, it must not be lost for want of memory.
    std::unique_ptr<headrace_work> handle(work == nullptr ? nullptr : new headrace_work);
    Result<Work> started = start();
    if (!started) return std::move(started).error();
    if (!handle) return {};
    handle->work = std::move(*started);
    *work = handle.release();
    return {};
  });
}

/// The caller's store, for as long as its communicator opens.
Result<std::shared_ptr<CommStore>> store_of(const headrace_comm_store* given);

}  // namespace headrace::c
