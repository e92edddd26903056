// SPDX-License-Identifier: Apache-2.0
// The entries of a table (comm_v1.h) that backends answer alike, for a class of communicators.
#pragma once

#include "base/comm_border.hpp"

#include <cstdint>
#include <memory>
#include <utility>

namespace headrace::comm_border {

/// `Communicator` has `Result<bool> issue(call, work)`, whether the work has ended already, and
/// `bool progress()`, unless it has threads.
template <class Communicator>
struct Entries {
  static Communicator& of(void* comm) { return *static_cast<Communicator*>(comm); }

  /// Gives what was made to the host, which owns it then.
  static Result<void> give(Result<std::unique_ptr<Communicator>> made, void** comm) {
    if (!made) return std::move(made).error();
    *comm = made->release();
    return {};
  }

  /// What `issue` returns for `begin()`, a Result<bool>: whether the work has ended already.
  template <class Begin>
  static std::int32_t begun(headrace_text_v1* why, const Begin& begin) {
    bool done = false;
    const std::int32_t code = guarded(why, [&]() -> Result<void> {
      HEADRACE_TRY(ended, begin());
      done = ended;
      return {};
    });
    if (code != HEADRACE_OK) return code;
    return done ? HEADRACE_COMM_DONE : HEADRACE_COMM_BEGUN;
  }

  /// A table of a backend over GPUs with these entries; it adds the others.
  static headrace_comm_backend_v1 table(const char* name, const char* version, void* context) {
    headrace_comm_backend_v1 table{};
    table.struct_size = sizeof table;
    table.abi_major = HEADRACE_COMM_ABI_MAJOR;
    table.abi_minor = HEADRACE_COMM_ABI_MINOR;
    table.name = name;
    table.version = version;
    table.devices = HEADRACE_COMM_MOVES_CUDA_MEMORY;
    table.context = context;
    table.close = close;
    table.issue = issue;
    if constexpr (requires(Communicator& comm) { comm.progress(); }) table.progress = progress;
    return table;
  }

 private:
  static void close(void* comm) { delete &of(comm); }

  static std::int32_t issue(void* comm, const headrace_comm_call_v1* call, std::uint64_t work,
                            headrace_text_v1* why) {
    return begun(why, [&] { return of(comm).issue(*call, work); });
  }

  static std::int32_t progress(void* comm) {
    bool moved = false;
    guarded(nullptr, [&]() -> Result<void> {
      moved = of(comm).progress();
      return {};
    });
    return moved ? 1 : 0;
  }
};

}  // namespace headrace::comm_border
