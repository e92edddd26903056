// SPDX-License-Identifier: Apache-2.0
// The life of a communicator.
#include "bindings/torchcomms/comm.hpp"

#include "bindings/torchcomms/handle_text.hpp"
#include "bindings/torchcomms/store.hpp"

#include <headrace/version.hpp>

#include <comms/torchcomms/utils/StoreManager.hpp>
#include <comms/torchcomms/utils/Utils.hpp>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <variant>

namespace headrace::torchcomms_backend {
namespace {

/// Whether operations leave the memory alone once their call has returned.
bool leaves_memory(std::string_view backend) { return backend == "host" || backend == "fake"; }

/// Opens it with a store at MASTER_ADDR and MASTER_PORT, as torchcomms' own backends make it.
Comm meet_where_the_launcher_says(CommOptions options) {
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(*options.meeting_timeout);
  const auto store = std::make_shared<TorchStore>(tc::createPrefixStore("headrace", limit));
  options.store = store;
  Comm comm = take(Comm::open(options));
  // Rank 0 serves the store: it ends when all have read it, and before any of them makes the next one there.
  take(comm.barrier());
  store->close();
  take(comm.barrier());
  return comm;
}

/// The ranks of a list are in order; those of a set get one that is the same on all ranks.
std::vector<tc::InitHandle> in_order(const tc::ReconfigureOptions& given) {
  if (const auto* list = std::get_if<std::vector<tc::InitHandle>>(&given.handles)) return *list;
  const auto& set = std::get<std::unordered_set<tc::InitHandle>>(given.handles);
  std::vector<tc::InitHandle> handles(set.begin(), set.end());
  std::sort(handles.begin(), handles.end());
  return handles;
}

}  // namespace

HeadraceTorchComm::HeadraceTorchComm(Comm comm, at::Device device, const tc::CommOptions& options)
    : comm_(std::make_shared<Comm>(std::move(comm))),
      has_ranks_(true),
      ends_in_call_(leaves_memory(comm_->backend())),
      name_(comm_->name()),
      device_(device),
      options_(options) {
  options_.store = nullptr;
}

void HeadraceTorchComm::init(at::Device device, const std::string& name, const tc::CommOptions& options) {
  TORCH_CHECK(!comm_, "the communicator \"", name_, "\" is initialized already");
  TORCH_CHECK(device.is_cpu(), "the communicator is for ", device,
              ", and \"headrace\" takes tensors on the CPU: give torch.device(\"cpu\")");
  CommOptions open = open_options(name, options);
  open.meeting_timeout = options.timeout;
  if (!options.enable_reconfigure) std::tie(open.rank, open.size) = tc::query_ranksize();
  if (open.size == 1) {
    comm_ = std::make_shared<Comm>(take(Comm::open(open)));
  } else if (options.store) {
    open.store = std::make_shared<TorchStore>(options.store);
    comm_ = std::make_shared<Comm>(take(Comm::open(open)));
  } else {
    comm_ = std::make_shared<Comm>(meet_where_the_launcher_says(std::move(open)));
  }
  has_ranks_ = !options.enable_reconfigure;
  ends_in_call_ = leaves_memory(comm_->backend());
  name_ = name;
  device_ = device;
  options_ = options;
  options_.store = nullptr;
}

void HeadraceTorchComm::finalize() {
  TORCH_CHECK(comm_, "the communicator is not initialized");
  if (comm_->is_aborted()) return comm_->close();
  take(comm_->finalize());
}

std::shared_ptr<tc::TorchCommBackend> HeadraceTorchComm::split(const std::vector<int>& ranks,
                                                               const std::string& name,
                                                               const tc::CommOptions& options) {
  SplitOptions changes;
  changes.hints = comm_hints(options.hints);
  changes.timeout = options.timeout;
  auto child = take(ready().split(ranks, name, changes));
  if (!child) return nullptr;
  return std::shared_ptr<HeadraceTorchComm>(new HeadraceTorchComm(std::move(*child), device_, options));
}

void HeadraceTorchComm::abort() {
  if (!comm_) return;
  comm_->abort();
  hooks_->run();
}

tc::InitHandle HeadraceTorchComm::getInitHandle() const {
  TORCH_CHECK(comm_, "the communicator is not initialized");
  return handle_text(take(comm_->init_handle()));
}

WorkPtr HeadraceTorchComm::reconfigure(const tc::ReconfigureOptions& given) {
  TORCH_CHECK(comm_, "the communicator is not initialized");
  std::vector<std::string> handles;
  for (const tc::InitHandle& handle : in_order(given)) handles.push_back(handle_bytes(handle));
  SplitOptions changes;
  changes.hints = comm_hints(given.hints);
  changes.meeting_timeout = given.timeout;
  Comm comm = take(comm_->reconfigure(std::to_string(given.uuid), handles, changes));
  const auto former = std::exchange(comm_, std::make_shared<Comm>(std::move(comm)));
  has_ranks_ = true;
  hooks_->renew();
  former->close();
  return c10::make_intrusive<tc::TorchWorkCompleted>();
}

std::string_view HeadraceTorchComm::getBackendVersion() const { return HEADRACE_VERSION; }

void HeadraceTorchComm::setTimeout(std::chrono::milliseconds timeout) {
  ready().set_timeout(timeout);
  options_.timeout = timeout;
}

void HeadraceTorchComm::setHints(GivenHints hints) {
  take(ready().set_hints(comm_hints(hints)));
  for (auto& [name, value] : hints) options_.hints[name] = std::move(value);
}

Comm& HeadraceTorchComm::ready() const {
  TORCH_CHECK(comm_, "the communicator is not initialized");
  TORCH_CHECK(has_ranks_,
              "the communicator has no ranks yet: it was made with enable_reconfigure, so call reconfigure "
              "first");
  return *comm_;
}

void HeadraceTorchComm::ended(Result<Work> result) {
  if (!result && comm_->is_aborted()) hooks_->run();
  take(std::move(result));
}

}  // namespace headrace::torchcomms_backend
