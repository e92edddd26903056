// SPDX-License-Identifier: Apache-2.0
// The caller's handle of a request.
#include <headrace/request.hpp>

#include "engine/transfer.hpp"

#include <array>

namespace headrace {

std::string_view state_name(RequestState state) noexcept {
  constexpr std::array<std::string_view, 7> names{"prepared", "posted",   "canceling", "done",
                                                  "failed",   "canceled", "captured"};
  return names[static_cast<std::size_t>(state)];
}

Status Request::post() { return transfer_->post(nullptr); }
Status Request::post(const PostOptions& options) { return transfer_->post(&options); }
RequestState Request::poll() { return transfer_->poll(); }
RequestState Request::state() const { return transfer_->state(); }
Status Request::wait(Timeout timeout) { return transfer_->wait(timeout); }
void Request::cancel() { transfer_->cancel(); }
Result<void> Request::set_indices(const PageIndices& indices, void* stream) {
  return transfer_->set_indices(indices, stream);
}
Result<std::uint64_t> Request::check() { return transfer_->check(); }
Error Request::error() const { return transfer_->error(); }
RequestTimes Request::times() const { return transfer_->times(); }
std::string Request::explain() const { return transfer_->explain(); }
std::string Request::backend() const { return transfer_->backend(); }
Result<CostEstimate> Request::cost() const { return transfer_->cost(); }
std::vector<PartInfo> Request::parts() const { return transfer_->parts(); }
void Request::on_done(std::function<void(Status)> done) { transfer_->on_done(std::move(done)); }
Result<int> Request::event_fd() { return transfer_->event_fd(); }
Op Request::op() const { return transfer_->op(); }
std::uint64_t Request::pages() const { return transfer_->pages(); }
std::uint64_t Request::bytes() const { return transfer_->bytes(); }
std::string_view Request::peer() const { return transfer_->peer(); }

}  // namespace headrace
