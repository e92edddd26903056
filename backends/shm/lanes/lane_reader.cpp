// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/lanes/lane_reader.hpp"

#include "backends/shm/regions.hpp"

#include <algorithm>

namespace headrace::shm {
namespace {

constexpr std::uint32_t looks_a_check = 1024;

}  // namespace

void LaneReader::begin(const Transfer& transfer) {
  transfer_ = &transfer;
  state_ = State::good;
  outcome_ = {};
  patience_ = {};
  for (Group& group : groups_) group.count = 0;
}

bool LaneReader::check(const Group& group) {
  finish_streaming();
  host_link::copies_before_later_loads();
  const std::span<const PageRun> runs(group.runs.data(), group.count);
  if (outcome_ = check_interrupted(*transfer_); !outcome_.status.ok()) return false;
  outcome_ = check_live(*transfer_, runs);
  return outcome_.status.ok();
}

void LaneReader::publish_asked(const Group& group) {
  for (std::size_t i = 0; i < group.count; ++i) {
    const PageRun& run = group.runs[i];
    lane_->run(asked_ + i) = {Handles::remote(run.remote_region).region_id(), 0, run.remote_offset,
                              run.bytes};
  }
  asked_ += group.count;
  lane_->words().asked.store(asked_);  // before the loads of `state` in needs_call()
}

/// The lane has no server: the reader must call one.
bool LaneReader::needs_call() {
  LaneState idle = LaneState::idle;
  if (lane_->words().state.load() != idle) return false;  // polled: no locked access
  return lane_->words().state.compare_exchange_strong(idle, LaneState::called);
}

std::uint64_t LaneReader::available() {
  if (given_ == consumed_) {
    given_ = lane_->words().given.load(std::memory_order_acquire);
    if (given_ == consumed_) return 0;
    if (given_ - consumed_ > lane_ring_bytes)
      given_ = consumed_ + lane_ring_bytes;  // a lie: the ring holds no more
    patience_ = {};
  }
  return given_ - consumed_;
}

std::uint64_t LaneReader::copy(const PageRun& run, std::uint64_t done, std::uint64_t there) {
  const std::uint64_t bytes = std::min({there, run.bytes - done, lane_chunk_bytes});
  std::byte* const to = Handles::region(run.local_region).base + run.local_offset + done;
  copy_bytes(to, lane_->ring(consumed_), bytes, transfer_->mode);
  consumed_ += bytes;
  if (consumed_ - published_ >= lane_publish_bytes) publish_consumed();
  return bytes;
}

void LaneReader::publish_consumed() {
  if (published_ == consumed_) return;
  lane_->words().consumed.store(consumed_, std::memory_order_release);
  published_ = consumed_;
}

/// False: the read ends here, with an outcome or for attach to continue.
bool LaneReader::keep_waiting() {
  publish_consumed();
  LaneState now = lane_->words().state.load(std::memory_order_acquire);
  if (now == LaneState::refused) return false;
  if (patience_.is_long() || ++looks_ % looks_a_check == 0)
    if (outcome_ = check_interrupted(*transfer_); !outcome_.status.ok()) return false;
  if (patience_.is_long()) {
    const std::uint64_t waited = patience_.waited_ns();
    if (now == LaneState::called && waited > limits_.answer_ns &&
        lane_->words().state.compare_exchange_strong(now, LaneState::idle)) {
      state_ = State::unanswered;
      return false;
    }
    if (waited > limits_.stall_ns) return false;
  }
  patience_.wait();
  return true;
}

LaneEnd LaneReader::stopped(PagePosition reached) {
  finish_streaming();
  LaneWords& words = lane_->words();
  if (state_ == State::unanswered) {
    // There is no server, so its words are ours: we withdraw the runs that we asked for.
    words.taken_runs.store(asked_, std::memory_order_release);
    consumed_ = given_ = words.given.load(std::memory_order_acquire);
    publish_consumed();
  } else {
    state_ = State::spoiled;
  }
  return {.outcome = std::move(outcome_),
          .complete = false,
          .reached = reached,
          .refused_region = words.refused_region.load(std::memory_order_acquire)};
}

}  // namespace headrace::shm
