// SPDX-License-Identifier: Apache-2.0
#include "fabric/staged_message.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace headrace::fabric {
namespace {

// The driver takes bytes of memory that is not pinned while the caller waits, so a worker gives it some at a
// time: other posts have their turn between two.
constexpr std::uint64_t staged_step_bytes = 1 << 20;

}  // namespace

void StagedMessage::Free::operator()(std::byte* bytes) const { std::free(bytes); }

Result<std::shared_ptr<StagedMessage>> StagedMessage::make(Setup setup,
                                                           std::shared_ptr<const gpu::Device> device) {
  HEADRACE_TRY(event, gpu::Event::make(std::move(device)));
  return std::shared_ptr<StagedMessage>(new StagedMessage(std::move(setup), std::move(event)));
}

/// At least one byte: nothing cannot be registered.
Result<void> StagedMessage::take_memory() {
  const std::uint64_t room = std::max<std::uint64_t>(setup_.bytes, 1);
  bytes_.reset(static_cast<std::byte*>(std::malloc(static_cast<std::size_t>(room))));
  if (bytes_ == nullptr)
    return make_error(Code::exhausted,
                      "a message {} memory of a GPU passes through host memory, and there is none for {} "
                      "bytes: send it in several messages",
                      goes_out() ? "out of" : "into", room);
  region.memory = {reinterpret_cast<std::uintptr_t>(bytes_.get()), room, {}, rail::Access::local};
  return {};
}

void StagedMessage::begin(std::uint64_t bytes) {
  state_ = State::copies;
  left_ = length_ = bytes;
}

Result<bool> StagedMessage::step() {
  if (copying_) {
    HEADRACE_TRY(reached, event_.poll_reached());
    if (!reached) return false;
    copying_ = false;
  }
  if (left_ > 0) {
    HEADRACE_TRY_VOID(copy_next());
    return false;
  }
  state_ = State::over;
  return true;
}

Result<void> StagedMessage::copy_next() {
  const std::uint64_t done = length_ - left_;
  if (done == 0) HEADRACE_TRY_VOID(setup_.identity->check_unchanged());
  const std::uint64_t bytes = std::min(left_, staged_step_bytes);
  const cuda::Address gpu = setup_.address + done;
  const auto host = reinterpret_cast<cuda::Address>(bytes_.get() + done);
  const gpu::Device& device = setup_.stream->device();
  const gpu::ContextGuard guard(device);
  HEADRACE_CUDA_TRY(device.driver(),
                    device.driver().memcpy_async(goes_out() ? host : gpu, goes_out() ? gpu : host,
                                                 static_cast<std::size_t>(bytes), setup_.stream->handle()),
                    "copy a message of {} bytes {} memory of GPU {}", length_, goes_out() ? "out of" : "into",
                    device.ordinal());
  left_ -= bytes;
  copying_ = true;
  return event_.record(setup_.stream->handle());
}

void StagedMessage::wait() {
  if (!std::exchange(copying_, false)) return;
  static_cast<void>(setup_.stream->wait_idle());  // a GPU that has failed writes nothing any more
}

}  // namespace headrace::fabric
