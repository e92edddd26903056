// SPDX-License-Identifier: Apache-2.0
#include "base/errors.hpp"
#include "compat/registration.hpp"

#include <utility>

namespace headrace::compat {
namespace {

MemoryRange range_of(const void* buf, std::size_t len, int device, MemoryKind kind) {
  if (buf == nullptr || len == 0)
    throw std::invalid_argument(
        fmt::format("a RdmaMemory of {} bytes at {} has no memory: give an address and a length", len, buf));
  return {.address = const_cast<void*>(buf),
          .length_bytes = len,
          .kind = kind,
          .device = kind == MemoryKind::vram ? device : -1};
}

}  // namespace

RdmaMemory::RdmaMemory(const void* buf, std::size_t len, int cuda_dev, MemoryKind kind)
    : buf_(buf), len_(len), device_(cuda_dev) {
  const auto range = range_of(buf, len, cuda_dev, kind);
  registration_ = segment_of(buf, len);
  reused_ = registration_ != nullptr;
  if (reused_) return;
  auto made = Registration::make(range);
  if (!made) throw std::runtime_error(made.error().message);
  registration_ = *std::move(made);
}

RdmaMemory::RdmaMemory(RdmaMemory&& other) noexcept
    : buf_(std::exchange(other.buf_, nullptr)),
      len_(std::exchange(other.len_, 0)),
      device_(std::exchange(other.device_, -1)),
      reused_(std::exchange(other.reused_, false)),
      registration_(std::move(other.registration_)) {}

RdmaMemory::~RdmaMemory() noexcept {
  // Views may keep the registration, and the caller frees the memory next.
  if (registration_ && !reused_) registration_->drop();
}

std::string RdmaMemory::remoteKey() const {
  return registration_ ? write_key(registration_->endpoint(), registration_->memory()) : std::string();
}

bool RdmaMemory::contains(const void* buf, std::size_t len) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(buf_);
  const auto asked = reinterpret_cast<std::uintptr_t>(buf);
  return asked >= begin && asked - begin <= len_ && len <= len_ - (asked - begin);
}

std::size_t RdmaMemory::offset_of(const void* buf, std::size_t length) const {
  if (!contains(buf, length))
    throw std::out_of_range(fmt::format("{} bytes at {} are outside of the memory, which has {} bytes at {}",
                                        length, buf, len_, buf_));
  return reinterpret_cast<std::uintptr_t>(buf) - reinterpret_cast<std::uintptr_t>(buf_);
}

RdmaMemory::View::View(const RdmaMemory& parent, std::size_t offset, std::size_t length)
    : parent_(&parent), registration_(parent.registration_), data_(nullptr), length_(length) {
  if (offset > parent.len_ || length > parent.len_ - offset)
    throw std::invalid_argument(
        fmt::format("{} bytes from byte {} on are outside of the memory, which has {} bytes", length, offset,
                    parent.len_));
  data_ = static_cast<const std::byte*>(parent.buf_) + offset;
}

bool RdmaMemory::View::isParentValid() const { return registration_ && !registration_->dropped(); }

}  // namespace headrace::compat
