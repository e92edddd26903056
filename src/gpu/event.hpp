// SPDX-License-Identifier: Apache-2.0
// A mark in a stream: other streams wait for it, the host asks for it, times are measured between two.
#pragma once

#include "gpu/device.hpp"

#include <chrono>
#include <memory>

namespace headrace::gpu {

enum class Timing { off, on };

class Event {
 public:
  [[nodiscard]] static Result<Event> make(std::shared_ptr<const Device> device, Timing timing = Timing::off);
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;
  ~Event();

  [[nodiscard]] cuda::Event handle() const noexcept { return event_; }

  /// Records the mark after the work that the stream holds.
  [[nodiscard]] Result<void> record(cuda::Stream stream) const;
  /// Makes later work on `stream` wait for the mark.
  [[nodiscard]] Result<void> hold_back(cuda::Stream stream) const;
  /// Whether the stream has reached the mark.
  [[nodiscard]] Result<bool> poll_reached() const;
  [[nodiscard]] Result<void> wait_reached() const;
  /// The time from an earlier mark to this one; both with timing, both reached.
  [[nodiscard]] Result<std::chrono::nanoseconds> since(const Event& earlier) const;

 private:
  Event(std::shared_ptr<const Device> device, cuda::Event event)
      : device_(std::move(device)), event_(event) {}

  std::shared_ptr<const Device> device_;
  cuda::Event event_;
};

}  // namespace headrace::gpu
