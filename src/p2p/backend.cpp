// SPDX-License-Identifier: Apache-2.0
#include "p2p/backend.hpp"

#include "base/comm_entries.hpp"

#include <headrace/version.hpp>

#include <utility>

namespace headrace::p2p {
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

std::int32_t split(void* comm, const std::int32_t*, std::uint64_t, const headrace_comm_setup_v1* setup,
                   void** part, headrace_text_v1* why) {
  return guarded(why, [&] { return Entries::give(communicator(comm).split(setup), part); });
}

std::int32_t shrink(void* comm, const std::int32_t*, std::uint64_t, const headrace_comm_setup_v1* setup,
                    void** part, headrace_text_v1* why) {
  return guarded(why, [&] { return Entries::give(communicator(comm).shrink(*setup), part); });
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

std::int32_t wait_on(void* comm, std::uint64_t work, void* stream, headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).wait_on(work, static_cast<cuda::Stream>(stream)); });
}

void waits_for(void* comm, std::uint64_t, headrace_text_v1* why) {
  guarded(nullptr, [&]() -> Result<void> {
    why->length = communicator(comm).waits_for().copy(why->data, why->capacity);
    return {};
  });
}

std::int32_t tensor_register(void* comm, const headrace_comm_elements_v1* tensor, std::int64_t timeout_ns,
                             std::uint64_t* registration, headrace_text_v1* why) {
  return guarded(why, [&]() -> Result<void> {
    HEADRACE_TRY(number, communicator(comm).tensor_register(*tensor, timeout_ns));
    *registration = number;
    return {};
  });
}

std::int32_t tensor_deregister(void* comm, std::uint64_t registration, std::int64_t timeout_ns,
                               headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).tensor_deregister(registration, timeout_ns); });
}

std::int32_t window_open(void* comm, headrace_comm_window_v1* window, std::int64_t timeout_ns,
                         headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).window_open(*window, timeout_ns); });
}

std::int32_t window_close(void* comm, std::uint64_t window, std::int64_t timeout_ns, headrace_text_v1* why) {
  return guarded(why, [&] { return communicator(comm).window_close(window, timeout_ns); });
}

std::int32_t window_issue(void* comm, const headrace_comm_window_call_v1* call, std::uint64_t work,
                          headrace_text_v1* why) {
  return Entries::begun(why, [&] { return communicator(comm).window_issue(*call, work); });
}

}  // namespace

Source Source::installed() { return {gpu::GpuSource::installed(), "cuda_ipc"}; }

Backend::Backend(std::string name, Source source)
    : name_(std::move(name)), kernels_(std::move(source.gpus)), agent_(std::move(source.agent)) {
  agent_.backends = {source.agent_backend};
  agent_.options[source.agent_backend + ".courier"] = "off";  // it would hold up what waits for a whole GPU
}

Result<Parts> Backend::parts_for(int device) {
  HEADRACE_TRY(kernels, kernels_.on(device));
  return Parts{std::move(kernels), agent_};
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
  table.window_open = window_open;
  table.window_close = window_close;
  table.window_issue = window_issue;
  return table;
}

headrace_comm_backend_v1 installed_table() {
  static auto& the = *new Backend(backend_name, Source::installed());
  return the.table();
}

}  // namespace headrace::p2p
