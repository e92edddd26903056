// SPDX-License-Identifier: Apache-2.0
// The public face of windows.
#include <headrace/comm_window.hpp>

#include "base/errors.hpp"
#include "collectives/window_state.hpp"

#include <array>
#include <utility>

namespace headrace {

std::string_view window_access_name(WindowAccess access) noexcept {
  constexpr std::array names{"unified", "separate"};
  const auto index = static_cast<std::size_t>(access);
  return index < names.size() ? names[index] : "unknown";
}

Window::Window(std::unique_ptr<State> state) : state_(std::move(state)) {}
Window::Window(Window&&) noexcept = default;
Window& Window::operator=(Window&& other) noexcept {
  if (this != &other) {
    let_go();
    state_ = std::move(other.state_);
  }
  return *this;
}
Window::~Window() { let_go(); }
/// In a forked child it stays, as its communicator.
void Window::let_go() {
  if (state_ && state_->forked()) static_cast<void>(state_.release());
  state_.reset();
}

Result<void> Window::tensor_register(const Elements& tensor, std::shared_ptr<const void> owner) {
  return state_->open({tensor, false, std::move(owner)});
}

Result<Elements> Window::allocate(std::size_t count, DType dtype) {
  HEADRACE_TRY_VOID(state_->open({{nullptr, count, dtype}, true, nullptr}));
  return tensor();
}

Result<void> Window::tensor_deregister() { return state_->close(); }

Result<Elements> Window::tensor() const { return state_->tensor(); }

Result<Work> Window::put(const ConstElements& tensor, int dst_rank, std::size_t target_offset_nelems,
                         const WindowOptions& options) {
  return state_->put(tensor, dst_rank, target_offset_nelems, options);
}

Result<Work> Window::get(const Elements& tensor, int src_rank, std::size_t source_offset_nelems,
                         const WindowOptions& options) {
  return state_->get(tensor, src_rank, source_offset_nelems, options);
}

Result<Work> Window::signal(int peer_rank, const Signal& signal, const WindowOptions& options) {
  return state_->signal(peer_rank, signal, options);
}

Result<std::uint64_t> Window::wait_signal(int peer_rank, Timeout timeout) {
  return state_->wait_signal(peer_rank, std::nullopt, timeout);
}

Result<std::uint64_t> Window::wait_signal(int peer_rank, const SignalCondition& condition, Timeout timeout) {
  return state_->wait_signal(peer_rank, condition, timeout);
}

Result<std::int64_t> Window::atomic_add(int dst_rank, std::size_t target_offset_nelems, std::int64_t value,
                                        Timeout timeout) {
  return state_->atomic_add(dst_rank, target_offset_nelems, value, timeout);
}

Result<void> Window::flush(Timeout timeout) { return state_->flush(timeout); }

Result<RemoteTensor> Window::map_remote_tensor(int rank) { return state_->map(rank); }

Result<const headrace_device_window_v1*> Window::get_device_window() const { return state_->device_window(); }

Result<WindowAttr> Window::get_attr(int peer_rank) const { return state_->attr(peer_rank); }

}  // namespace headrace
