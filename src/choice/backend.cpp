// SPDX-License-Identifier: Apache-2.0
#include "choice/backend.hpp"

#include "base/comm_entries.hpp"

#include <headrace/version.hpp>

#include <utility>
#include <vector>

namespace headrace::choice {
namespace {

using comm_border::guarded;

using Entries = comm_border::Entries<Communicator>;

Communicator& communicator(void* comm) { return Entries::of(comm); }

std::int32_t open(void* context, const headrace_comm_setup_v1* setup, void** comm, headrace_text_v1* why) {
  return guarded(why, [&]() -> Result<void> {
    HEADRACE_TRY(parts, static_cast<Backend*>(context)->parts_for(setup->device));
    return Entries::give(Communicator::open(parts, *setup), comm);
  });
}

void abort(void* comm, const char* reason, std::size_t length) {
  guarded(nullptr, [&]() -> Result<void> {
    communicator(comm).abort({reason, length});
    return {};
  });
}

std::int32_t split(void* comm, const std::int32_t* ranks, std::uint64_t count,
                   const headrace_comm_setup_v1* setup, void** part, headrace_text_v1* why) {
  return guarded(why, [&] {
    return Entries::give(communicator(comm).split({ranks, static_cast<std::size_t>(count)}, setup), part);
  });
}

std::int32_t shrink(void* comm, const std::int32_t* excluded, std::uint64_t count,
                    const headrace_comm_setup_v1* setup, void** part, headrace_text_v1* why) {
  return guarded(why, [&] {
    return Entries::give(communicator(comm).shrink({excluded, static_cast<std::size_t>(count)}, *setup),
                         part);
  });
}

std::int32_t wait_on(void* comm, std::uint64_t work, void* stream, headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).wait_on(work, stream); });
}

void group_start(void* comm) {
  guarded(nullptr, [&]() -> Result<void> {
    communicator(comm).group_start();
    return {};
  });
}

std::int32_t group_end(void* comm, headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).group_end(); });
}

void waits_for(void* comm, std::uint64_t work, headrace_text_v1* why) {
  guarded(nullptr, [&]() -> Result<void> {
    why->length = communicator(comm).waits_for(work).copy(why->data, why->capacity);
    return {};
  });
}

std::int32_t tensor_register(void* comm, const headrace_comm_elements_v1* tensor, std::int64_t timeout_ns,
                             std::uint64_t* registration, headrace_text_v1* why) {
  return guarded(why, [&]() -> Result<void> {
    HEADRACE_TRY(number, communicator(comm).tensor_register(*tensor, comm_border::deadline_of(timeout_ns)));
    *registration = number;
    return {};
  });
}

std::int32_t tensor_deregister(void* comm, std::uint64_t registration, std::int64_t timeout_ns,
                               headrace_text_v1* why) {
  return guarded(why, [&] {
    return communicator(comm).tensor_deregister(registration, comm_border::deadline_of(timeout_ns));
  });
}

std::int32_t suspend(void* comm, std::int64_t timeout_ns, headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).suspend(comm_border::deadline_of(timeout_ns)); });
}

std::int32_t resume(void* comm, std::int64_t timeout_ns, headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).resume(comm_border::deadline_of(timeout_ns)); });
}

std::int32_t init_handle(void* comm, const headrace_sink_v1* handle, headrace_text_v1* why) {
  return guarded(why, [&]() -> Result<void> {
    HEADRACE_TRY(mine, communicator(comm).handle());
    const std::string bytes = mine.encode();
    handle->append(handle->context, bytes.data(), bytes.size());
    return {};
  });
}

std::int32_t reconfigure(void* comm, const char* uuid, const headrace_bytes_v1* handles,
                         const headrace_comm_setup_v1* setup, void** made, headrace_text_v1* why) {
  return guarded(why, [&]() -> Result<void> {
    std::vector<RankHandle> ranks;
    for (int i = 0; i < setup->size; ++i) {
      HEADRACE_TRY(rank, RankHandle::decode({static_cast<const char*>(handles[i].data), handles[i].length}));
      ranks.push_back(std::move(rank));
    }
    return Entries::give(communicator(comm).reconfigure(uuid, ranks, *setup), made);
  });
}

std::int32_t window_open(void* comm, headrace_comm_window_v1* window, std::int64_t timeout_ns,
                         headrace_text_v1* why) {
  return guarded(why, [&]() -> Result<void> {
    HEADRACE_TRY(part, communicator(comm).with_windows());
    return part->window_open(*window, comm_border::deadline_of(timeout_ns));
  });
}

std::int32_t window_close(void* comm, std::uint64_t window, std::int64_t timeout_ns, headrace_text_v1* why) {
  return guarded(why, [&]() -> Result<void> {
    HEADRACE_TRY(part, communicator(comm).with_windows());
    return part->window_close(window, comm_border::deadline_of(timeout_ns));
  });
}

std::int32_t window_issue(void* comm, const headrace_comm_window_call_v1* call, std::uint64_t work,
                          headrace_text_v1* why) {
  return Entries::begun(why, [&]() -> Result<bool> {
    HEADRACE_TRY(part, communicator(comm).with_windows());
    return part->window_issue(*call, work);
  });
}

}  // namespace

Result<Parts> Backend::parts_for(int device) {
  std::unique_lock lock(mutex_);
  if (!driver_) {
    HEADRACE_TRY(driver, source_.driver());
    driver_ = driver;
  }
  lock.unlock();
  HEADRACE_TRY(gpu, gpu::Device::open(*driver_, device));
  return Parts{std::move(gpu), source_.candidates, source_.read_tuning};
}

headrace_comm_backend_v1 Backend::table() {
  headrace_comm_backend_v1 table = Entries::table(name_.c_str(), HEADRACE_VERSION, this);
  table.open = open;
  table.abort = abort;
  table.split = split;
  table.shrink = shrink;
  table.wait_on = wait_on;
  table.group_start = group_start;
  table.group_end = group_end;
  table.waits_for = waits_for;
  table.tensor_register = tensor_register;
  table.tensor_deregister = tensor_deregister;
  table.suspend = suspend;
  table.resume = resume;
  table.init_handle = init_handle;
  table.reconfigure = reconfigure;
  table.window_open = window_open;
  table.window_close = window_close;
  table.window_issue = window_issue;
  return table;
}

}  // namespace headrace::choice
