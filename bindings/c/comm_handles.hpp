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

/// The caller's store, for as long as its communicator opens.
Result<std::shared_ptr<CommStore>> store_of(const headrace_comm_store* given);

}  // namespace headrace::c
