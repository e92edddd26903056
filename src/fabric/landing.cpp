// SPDX-License-Identifier: Apache-2.0
#include "fabric/landing.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace headrace::fabric {
namespace {

// The driver takes bytes of memory that is not pinned while the caller waits, so a worker gives it some at a
// time: other posts have their turn between two.
constexpr std::uint64_t landing_step_bytes = 1 << 20;

}  // namespace

void Landing::Free::operator()(std::byte* bytes) const { std::free(bytes); }

Result<std::shared_ptr<Landing>> Landing::make(Setup setup, std::shared_ptr<const gpu::Device> device) {
  HEADRACE_TRY(event, gpu::Event::make(std::move(device)));
  std::shared_ptr<Landing> made(new Landing(std::move(setup), std::move(event)));
  const auto room = static_cast<std::size_t>(made->memory().bytes);
  made->bytes_.reset(static_cast<std::byte*>(std::malloc(room)));
  if (made->bytes_ != nullptr) return made;
  return make_error(
      Code::exhausted,
      "a message into memory of a GPU comes into host memory first, and there is none for {} bytes", room);
}

/// At least one byte: nothing cannot be registered.
rail::Memory Landing::memory() const {
  return {reinterpret_cast<std::uintptr_t>(bytes_.get()),
          std::max<std::uint64_t>(setup_.bytes, 1),
          {},
          rail::Access::local};
}

void Landing::begin(std::uint64_t bytes) { left_ = length_ = bytes; }

Result<bool> Landing::step() {
  if (copying_) {
    HEADRACE_TRY(reached, event_.poll_reached());
    if (!reached) return false;
    copying_ = false;
  }
  if (*left_ == 0) return true;
  HEADRACE_TRY_VOID(copy_next());
  return false;
}

Result<void> Landing::copy_next() {
  const std::uint64_t done = length_ - *left_;
  if (done == 0) HEADRACE_TRY_VOID(setup_.identity->check_unchanged());
  const std::uint64_t bytes = std::min(*left_, landing_step_bytes);
  const gpu::Device& device = setup_.stream->device();
  const gpu::ContextGuard guard(device);
  HEADRACE_CUDA_TRY(device.driver(),
                    device.driver().memcpy_async(setup_.address + done,
                                                 reinterpret_cast<cuda::Address>(bytes_.get() + done),
                                                 static_cast<std::size_t>(bytes), setup_.stream->handle()),
                    "copy a message of {} bytes into memory of GPU {}", length_, device.ordinal());
  *left_ -= bytes;
  copying_ = true;
  return event_.record(setup_.stream->handle());
}

void Landing::wait() {
  if (!std::exchange(copying_, false)) return;
  static_cast<void>(setup_.stream->wait_idle());  // a GPU that has failed writes nothing any more
}

}  // namespace headrace::fabric
