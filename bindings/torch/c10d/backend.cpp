// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/c10d/backend.hpp"

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>

#include <set>
#include <utility>

namespace headrace::torch_group {
namespace {

/// Backends whose operations leave the memory alone once their call has returned. Others may be silent when
/// they are aborted.
bool leaves_memory(std::string_view backend) { return backend == "host" || backend == "fake"; }

bool is_profiled() { return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value(); }

/// "headrace:all_reduce", which stays in place: profilers read it after the group has gone.
const char* title_of(const std::string& backend, const char* name) {
  static std::mutex mutex;
  static auto& titles = *new std::set<std::string>;
  const std::scoped_lock lock(mutex);
  return titles.insert(backend + ":" + name).first->c_str();
}

/// A function of headrace._torch.compiled. With the GIL.
py::object maker(const char* name) { return py::module_::import("headrace._torch.compiled").attr(name); }

BackendPtr made(const py::object& backend) {
  return backend.is_none() ? nullptr : backend.cast<BackendPtr>();
}

c10d::ErrorType error_type_of(Code code) {
  switch (code) {
    case Code::ok:
      return c10d::ErrorType::SUCCESS;
    case Code::timed_out:
      return c10d::ErrorType::TIMEOUT;
    case Code::peer_lost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

}  // namespace

std::shared_ptr<Comm> comm_of(const py::object& object) {
  const auto address = object.attr("_capsule")().cast<py::capsule>();
  PyObject* const held = py::object(object).release().ptr();
  return {address.get_pointer<Comm>(), [held](Comm*) {
            if (Py_IsInitialized() == 0) return;
            const py::gil_scoped_acquire gil;
            Py_DECREF(held);
          }};
}

GroupBackend::GroupBackend(py::object comm, c10::intrusive_ptr<GroupOptions> options)
    : c10d::Backend(comm.attr("get_rank")().cast<int>(), comm.attr("get_size")().cast<int>()),
      comm_(comm_of(comm)),
      options_(std::move(options)),
      comm_object_(comm.ptr()),
      nothing_outlasts_calls_(leaves_memory(comm_->backend())) {}

void GroupBackend::setTimeout(std::chrono::milliseconds timeout) {
  comm_->set_timeout(timeout);
  options_->timeout = timeout;
}

c10d::ErrorType GroupBackend::getError() {
  if (!comm_->is_aborted()) return c10d::ErrorType::SUCCESS;
  const auto later = comm_->barrier();  // of an aborted communicator: the reason, at once
  return error_type_of(later ? Code::canceled : later.error().code);
}

void GroupBackend::abort() { comm_->abort(); }

void GroupBackend::shutdown() {
  if (comm_->is_aborted()) return;
  static_cast<void>(comm_->finalize());  // an error is that of an operation, whose work has it
}

BackendPtr GroupBackend::split(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                               const std::vector<int>& ranks,
                               const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const py::gil_scoped_acquire gil;
  return made(maker("split")(comm(), ranks, options_of(opts)));
}

BackendPtr GroupBackend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                               const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank,
                               const int& size) {
  const py::gil_scoped_acquire gil;
  return made(maker("merge")(store, rank, size, options_of(opts)));
}

BackendPtr GroupBackend::shrink(const std::vector<int64_t>& ranks_to_exclude, int /*shrink_flags*/,
                                const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const py::gil_scoped_acquire gil;
  return made(maker("shrink")(comm(), ranks_to_exclude, options_of(opts)));
}

c10::intrusive_ptr<GroupOptions> GroupBackend::options_of(
    const c10::intrusive_ptr<c10d::Backend::Options>& given) const {
  auto options = c10::make_intrusive<GroupOptions>(*options_);
  if (!given) return options;
  options->timeout = given->timeout;
  options->group_name = given->group_name;
  if (const auto* ours = dynamic_cast<const GroupOptions*>(given.get())) options->hints = ours->hints;
  return options;
}

// --- what it does not have

std::shared_ptr<c10::Allocator> GroupBackend::getMemAllocator() {
  TORCH_CHECK(false, "\"", getBackendName(),
              "\" has no allocator of its own: ranks of one host share memory that the communicator has, and "
              "tensors lie anywhere");
}

at::Tensor GroupBackend::allocateTensor(long /*size*/, at::TensorOptions /*options*/) {
  TORCH_CHECK(false, "\"", getBackendName(),
              "\" has no memory of its own for tensors: give any tensor on the CPU, as torch.empty makes");
}

void GroupBackend::suspend() {
  TORCH_CHECK(false, "\"", getBackendName(),
              "\" cannot be suspended: it has no memory of a GPU to give back. Call shutdown to end it");
}

void GroupBackend::resume() {
  TORCH_CHECK(false, "\"", getBackendName(), "\" cannot be resumed, because it is never suspended");
}

std::unordered_map<std::string, uint64_t> GroupBackend::getMemoryStats() {
  TORCH_CHECK(false, "\"", getBackendName(),
              "\" counts no memory of GPUs: it has none. Hint lane_bytes says what it takes of the host's");
}

// --- several operations as one

void GroupBackend::startCoalescing() {
  const std::scoped_lock lock(coalesced_mutex_);
  coalesced_.clear();  // torch leaves out endCoalescing after an exception
  coalescing_ = true;
}

WorkPtr GroupBackend::endCoalescing() {
  const std::scoped_lock lock(coalesced_mutex_);
  coalescing_ = false;
  const auto all = c10::make_intrusive<GroupWork>(c10d::OpType::COALESCED);
  for (const auto& work : std::exchange(coalesced_, {})) all->add_all(*work);
  return all;
}

// --- how operations begin

bool GroupBackend::ends_in_call(const Operation& operation) const {
  return !operation.async && nothing_outlasts_calls_ && !coalescing_.load(std::memory_order_relaxed) &&
         !is_profiled();
}

c10::intrusive_ptr<GroupWork> GroupBackend::begin(const Operation& operation, Tensors& tensors) {
  const char* title = is_profiled() ? title_of(options_->backend, operation.name) : nullptr;
  return c10::make_intrusive<GroupWork>(comm_, operation.type, title, std::move(tensors));
}

WorkPtr GroupBackend::begun(c10::intrusive_ptr<GroupWork> work) {
  work->seal();
  if (coalescing_) {
    const std::scoped_lock lock(coalesced_mutex_);
    if (coalescing_) coalesced_.push_back(work);
  }
  return work;
}

Timeout GroupBackend::limit_of(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) return {};  // torch writes -1 ms for none
  return timeout;
}

}  // namespace headrace::torch_group
