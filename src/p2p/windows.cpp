// SPDX-License-Identifier: Apache-2.0
#include "p2p/windows.hpp"

#include "base/errors.hpp"
#include "base/signal_text.hpp"

#include <headrace/device/window_v1.h>
#include <headrace/plugin/kernels/collectives_v1.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace headrace::p2p {
namespace {

using namespace std::chrono_literals;

// The memory for words of a rank: a line for each rank that signals, words of device windows, their handle.
constexpr std::uint64_t bytes_of_word = 64;
constexpr std::uint64_t device_words_at = bytes_of_word * HEADRACE_DEVICE_WINDOW_MOST_RANKS;
constexpr std::uint64_t handle_at = device_words_at + sizeof(headrace_device_words_v1);
constexpr std::uint64_t bytes_of_words = handle_at + sizeof(headrace_device_window_v1);
static_assert(HEADRACE_DEVICE_WINDOW_MOST_RANKS == HEADRACE_COLLECTIVES_MOST_RANKS);
constexpr auto between_sights_of_ranks = 10ms;  // of those that may be gone
constexpr int no_place = -1;

Error deregistered() {
  return make_error(Code::canceled, "the window has been deregistered while it waited");
}

std::size_t width_of(DType dtype) { return element_bytes(dtype); }

std::string limit_text(std::int64_t timeout_ns) {
  return timeout_ns % 1'000'000 == 0 ? fmt::format("{} ms", timeout_ns / 1'000'000)
                                     : fmt::format("{} us", timeout_ns / 1000);
}

/// An integer as its bits in 64.
std::uint64_t extended(std::uint64_t seen, DType dtype) {
  if (dtype != DType::int32) return seen;
  return static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(seen)});
}

}  // namespace

Windows::Windows(WindowParts parts)
    : parts_(std::move(parts)),
      device_(parts_.kernels->shared_device()),
      ordered_(device_, gpu::StreamWorks::Order::of_all),
      waits_(device_, gpu::StreamWorks::Order::of_streams) {}

void Windows::wait_all() {
  waits_.wait_all();
  ordered_.wait_all();
}

// --- opening and closing

/// A rank that fails says so, and no rank waits for it.
Result<void> Windows::open(Neighbours* neighbours, headrace_comm_window_v1& window,
                           const Deadline& deadline) {
  Window made;
  made.dtype = static_cast<DType>(window.elements.dtype);
  const auto mine = make_local(window, made);
  HEADRACE_TRY(texts, parts_.tensors->exchange(neighbours, mine, deadline));
  HEADRACE_TRY_VOID(read_cards(texts, window));
  HEADRACE_TRY_VOID(share(neighbours, window, made, deadline));
  // A GPU that cannot do this does nothing else either: then the window is not for kernels.
  if (const auto handle = make_handle(window, made)) window.device_window = reinterpret_cast<void*>(*handle);
  window.window = ++last_;
  windows_.emplace(last_, std::move(made));
  return {};
}

/// All that can fail on this rank alone.
Result<std::string> Windows::make_local(headrace_comm_window_v1& window, Window& made) {
  HEADRACE_TRY_VOID(prepare());
  headrace_comm_elements_v1& elements = window.elements;
  HEADRACE_TRY(words, gpu::ShareableMemory::allocate(device_, bytes_of_words));
  made.words.emplace(std::move(words));
  const std::uint64_t bytes = elements.count * width_of(made.dtype);
  if (elements.data == nullptr && bytes != 0) {
    HEADRACE_TRY(memory, gpu::ShareableMemory::allocate(device_, bytes));
    elements.data = reinterpret_cast<void*>(memory.address());
    made.made.emplace(std::move(memory));
  }
  return wire::ElementsCard{elements.count, made.dtype}.encode();
}

Result<void> Windows::prepare() {
  if (queues_) return {};
  HEADRACE_TRY(family, Family::of(parts_.kernels, HEADRACE_WINDOWS_FAMILY, HEADRACE_WINDOWS_FAMILY_VERSION));
  HEADRACE_TRY(words, WaitWords::make(device_));
  HEADRACE_TRY(stream, gpu::Stream::make(device_));
  const std::scoped_lock lock(mutex_);
  queues_.emplace(Queues{std::move(family), std::move(stream), std::move(words)});
  if (aborted_) queues_->words.abort(WaitWords::of_callers);
  return {};
}

/// All ranks find the same.
Result<void> Windows::read_cards(const std::vector<std::string>& texts,
                                 headrace_comm_window_v1& window) const {
  std::optional<DType> first;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    HEADRACE_TRY(card, wire::ElementsCard::decode(texts[rank]));
    window.counts[rank] = card.count;
    if (!first) first = card.dtype;
    if (card.dtype != *first)
      return make_error(Code::invalid_argument,
                        "rank {} registers {}, rank 0 {}: a window has the same type on all ranks", rank,
                        dtype_name(card.dtype), dtype_name(*first));
  }
  return {};
}

Result<void> Windows::share(Neighbours* neighbours, headrace_comm_window_v1& window, Window& made,
                            const Deadline& deadline) {
  const auto address = reinterpret_cast<std::uint64_t>(window.elements.data);
  const std::uint64_t bytes = window.elements.count * width_of(made.dtype);
  HEADRACE_TRY(elements, parts_.tensors->share(neighbours, address, bytes, deadline));
  made.elements = std::move(elements);
  auto signals = parts_.tensors->share(neighbours, made.words->address(), made.words->bytes(), deadline);
  if (!signals) {
    static_cast<void>(parts_.tensors->withdraw(neighbours, std::move(made.elements),
                                               Deadline::after(std::chrono::seconds(2))));
    return std::move(signals).error();
  }
  made.signals = *std::move(signals);
  std::ranges::copy(made.elements.places, window.places);
  return {};
}

Result<std::uint64_t> Windows::make_handle(const headrace_comm_window_v1& window, const Window& made) const {
  headrace_device_window_v1 handle{};
  handle.rank = static_cast<std::uint32_t>(parts_.rank);
  handle.size = static_cast<std::uint32_t>(parts_.size);
  for (std::size_t rank = 0; rank < made.signals.places.size(); ++rank) {
    handle.elements[rank] = window.places[rank];
    handle.bytes[rank] = window.counts[rank] * width_of(made.dtype);
    handle.words[rank] = made.signals.places[rank] + device_words_at;
  }
  handle.abort = queues_->words.abort_address(WaitWords::of_callers);
  handle.timeout_ns = parts_.timeout_ns;
  const std::uint64_t address = made.words->address() + handle_at;
  HEADRACE_TRY(stream, gpu::Stream::make(device_));
  const gpu::ContextGuard current(*device_);
  HEADRACE_CUDA_TRY(device_->driver(),
                    device_->driver().memcpy_async(address, reinterpret_cast<std::uint64_t>(&handle),
                                                   sizeof handle, stream.handle()),
                    "copy {} bytes to GPU {}", sizeof handle, device_->ordinal());
  HEADRACE_TRY_VOID(stream.wait_idle());
  return address;
}

Result<void> Windows::close(Neighbours* neighbours, std::uint64_t number, const Deadline& deadline) {
  HEADRACE_TRY(window, find(number));
  window->closing = true;
  abort_waiting(window, deregistered());
  HEADRACE_TRY_VOID(wait_for_works(*window, deadline));
  // Each rank drops what it maps; a rank takes its memory back when all others have.
  Result<void> words = parts_.tensors->withdraw(neighbours, std::move(window->signals), deadline);
  Result<void> elements = parts_.tensors->withdraw(neighbours, std::move(window->elements), deadline);
  windows_.erase(number);
  Result<std::string> mine = std::string();
  if (!words) mine = words.error();
  if (words && !elements) mine = elements.error();
  // A rank that goes on may run kernels that wait for the others, and drivers do not unmap beside them.
  if (auto all = parts_.tensors->exchange(neighbours, mine, deadline); !all) return std::move(all).error();
  return {};
}

Result<void> Windows::wait_for_works(const Window& window, const Deadline& deadline) {
  while (is_used(window)) {
    if (aborted_) return make_error(Code::canceled, "the communicator has ended");
    if (deadline.expired())
      return make_error(Code::timed_out, "operations of this rank on the window are under way");
    std::this_thread::sleep_for(1ms);  // the host makes progress on another thread
  }
  return {};
}

bool Windows::is_used(const Window& window) const {
  const std::scoped_lock lock(mutex_);
  return std::ranges::any_of(running_, [&](const auto& one) { return one.second == &window; }) ||
         std::ranges::any_of(waiting_, [&](const auto& one) { return one && one->window == &window; });
}

Result<Windows::Window*> Windows::find(std::uint64_t number) {
  const auto found = windows_.find(number);
  if (found != windows_.end() && !found->second.closing) return &found->second;
  return make_error(Code::invalid_argument,
                    "the window has been deregistered: register memory before the next operation");
}

// --- operations

Result<bool> Windows::issue(const Call& call, std::uint64_t work) {
  HEADRACE_TRY(window, find(call.window));
  const gpu::ContextGuard current(*device_);
  const auto operation = static_cast<CommOperation>(call.operation);
  if (operation == CommOperation::wait_signal) return launch_waiting(call, *window, work);
  if (auto lost = parts_.lost(call.peer)) return *std::move(lost);
  switch (operation) {
    case CommOperation::put:
    case CommOperation::get:
      return move(call, *window, work);
    case CommOperation::signal:
      return launch_signal(call, *window, work);
    case CommOperation::atomic_add:
      return launch_waiting(call, *window, work);
    default:
      return make_error(Code::not_supported, "p2p has no {} of windows", comm_operation_name(operation));
  }
}

Result<Windows::Place> Windows::place_of(const Call& call) {
  const cuda::DriverTable& driver = device_->driver();
  const auto caller = static_cast<cuda::Stream>(call.stream);
  cuda::CaptureStatus capture{};
  if (caller != nullptr)
    HEADRACE_CUDA_TRY(driver, driver.stream_is_capturing(caller, &capture), "look at the stream of a call");
  // A captured call is part of its stream: no stream outside of a capture is waited for, or joins later.
  if (capture != cuda::CaptureStatus::none) return Place{caller, true};
  if (call.async != 0) HEADRACE_TRY_VOID(ordered_.follow(queues_->stream.handle(), caller));
  const Place place{call.async != 0 ? queues_->stream.handle() : caller, false};
  HEADRACE_TRY_VOID(ordered_.follow_last(place.stream));
  return place;
}

/// The driver's copy: it takes any address, needs no multiprocessor, and is done when its stream goes on.
Result<bool> Windows::move(const Call& call, Window& window, std::uint64_t work) {
  const std::size_t width = width_of(window.dtype);
  const std::uint64_t bytes = call.elements.count * width;
  if (bytes == 0) return true;
  const std::uint64_t there =
      window.elements.places[static_cast<std::size_t>(call.peer)] + call.offset * width;
  const auto here = reinterpret_cast<std::uint64_t>(call.elements.data);
  const bool is_put = call.operation == HEADRACE_COMM_PUT;
  HEADRACE_TRY(place, place_of(call));
  const cuda::DriverTable& driver = device_->driver();
  HEADRACE_CUDA_TRY(driver,
                    driver.memcpy_async(is_put ? there : here, is_put ? here : there, bytes, place.stream),
                    "copy {} bytes {} rank {}", bytes, is_put ? "to" : "from", call.peer);
  return watch(window, work, place);
}

headrace_windows_word_v1 Windows::word_of(const Call& call, const Window& window) const {
  const auto peer = static_cast<std::size_t>(call.peer);
  const auto mine = static_cast<std::size_t>(parts_.rank);
  headrace_windows_word_v1 word{};
  word.struct_size = sizeof word;
  word.value = call.value;
  word.kind = call.kind;
  word.rank = static_cast<std::uint32_t>(parts_.rank);
  word.peer = static_cast<std::uint32_t>(call.peer);
  word.timeout_ns = -1;
  // A rank has a word at another one, with its own number.
  if (call.operation == HEADRACE_COMM_WAIT_SIGNAL) {
    word.word = window.signals.places[mine] + peer * bytes_of_word;
    word.timeout_ns = call.timeout_ns;
  } else if (call.operation == HEADRACE_COMM_SIGNAL) {
    word.word = window.signals.places[peer] + mine * bytes_of_word;
  } else {
    const std::size_t width = width_of(window.dtype);
    word.word = window.elements.places[peer] + call.offset * width;
    word.kind = static_cast<std::int32_t>(width);
  }
  return word;
}

Result<bool> Windows::launch_signal(const Call& call, Window& window, std::uint64_t work) {
  HEADRACE_TRY(place, place_of(call));
  const cuda::Outcome outcome =
      queues_->family.launch<&headrace_windows_v1::signal>(word_of(call, window), place.stream);
  HEADRACE_CUDA_TRY(device_->driver(), outcome, "launch a signal to rank {}", call.peer);
  return watch(window, work, place);
}

Result<bool> Windows::watch(Window& window, std::uint64_t work, const Place& place) {
  if (place.captured) return true;
  {
    const std::scoped_lock lock(mutex_);
    running_[work] = &window;
  }
  if (const auto added = ordered_.add(work, no_place, place.stream); !added) {
    const std::scoped_lock lock(mutex_);
    running_.erase(work);
    return added.error();
  }
  return false;
}

Result<bool> Windows::launch_waiting(const Call& call, Window& window, std::uint64_t work) {
  HEADRACE_TRY(place, take_place(call, window, work));
  if (auto started = start_waiting(call, window, work, place); !started) {
    free_place(place);
    return std::move(started).error();
  }
  return false;
}

Result<void> Windows::start_waiting(const Call& call, Window& window, std::uint64_t work, std::size_t place) {
  const bool waits = call.operation == HEADRACE_COMM_WAIT_SIGNAL;
  auto stream = static_cast<cuda::Stream>(call.stream);
  if (call.async != 0) stream = queues_->stream.handle();
  if (call.async != 0 && waits) {
    HEADRACE_TRY(own, queues_->words.stream(place));
    stream = own;
  }
  if (!waits) HEADRACE_TRY_VOID(ordered_.follow_last(stream));
  headrace_windows_word_v1 word = word_of(call, window);
  word.abort = queues_->words.abort_address(place);
  word.status = queues_->words.status_address(place);
  const cuda::Outcome outcome = waits
                                    ? queues_->family.launch<&headrace_windows_v1::wait_signal>(word, stream)
                                    : queues_->family.launch<&headrace_windows_v1::atomic_add>(word, stream);
  HEADRACE_CUDA_TRY(device_->driver(), outcome, "launch {} with rank {}",
                    comm_operation_name(static_cast<CommOperation>(call.operation)), call.peer);
  return (waits ? waits_ : ordered_).add(work, static_cast<int>(place), stream);
}

Result<std::size_t> Windows::take_place(const Call& call, const Window& window, std::uint64_t work) {
  if (call.stream != nullptr && call.async == 0) {
    cuda::CaptureStatus capture{};
    const cuda::DriverTable& driver = device_->driver();
    HEADRACE_CUDA_TRY(driver, driver.stream_is_capturing(static_cast<cuda::Stream>(call.stream), &capture),
                      "look at the stream of a call");
    if (capture != cuda::CaptureStatus::none)
      return make_error(Code::not_supported,
                        "a captured wait could not tell its end: captured graphs take put, get and signal");
  }
  const std::scoped_lock lock(mutex_);
  if (aborted_) return make_error(Code::canceled, "the communicator has ended");
  const auto free = std::ranges::find_if(waiting_, [](const auto& one) { return !one; });
  if (free == waiting_.end())
    return make_error(Code::exhausted,
                      "{} waits and atomic_add of this rank are under way, and there are no more places",
                      waiting_.size());
  free->emplace(Waiting{work, &window, call});
  const auto place = static_cast<std::size_t>(free - waiting_.begin());
  queues_->words.clear(place);
  return place;
}

void Windows::free_place(std::size_t place) {
  const std::scoped_lock lock(mutex_);
  waiting_[place].reset();
}

Result<void> Windows::wait_on(std::uint64_t work, cuda::Stream stream) {
  HEADRACE_TRY_VOID(ordered_.wait_on(work, stream));
  return waits_.wait_on(work, stream);
}

// --- ends

bool Windows::progress() {
  if (waits_.any() && next_look_.expired()) {
    next_look_ = Deadline::after(between_sights_of_ranks);
    end_in_vain();
  }
  const bool moved = end_ordered();
  return end_waiting() || moved;
}

bool Windows::end_ordered() {
  const auto ended = ordered_.take_ended();
  for (const auto& [work, note, result] : ended) {
    Result<void> told = result;
    {
      const std::scoped_lock lock(mutex_);
      running_.erase(work);
      auto* const waiting = note != no_place ? &waiting_[static_cast<std::size_t>(note)] : nullptr;
      if (waiting != nullptr && told) told = outcome(static_cast<std::size_t>(note), **waiting);
      if (waiting != nullptr) waiting->reset();
    }
    parts_.host.end(work, told);
  }
  return !ended.empty();
}

bool Windows::end_waiting() {
  const auto ended = waits_.take_ended();
  for (const auto& [work, note, result] : ended) {
    Result<void> told = result;
    {
      const std::scoped_lock lock(mutex_);
      auto& waiting = waiting_[static_cast<std::size_t>(note)];
      if (told) told = outcome(static_cast<std::size_t>(note), *waiting);
      waiting.reset();
    }
    parts_.host.end(work, told);
  }
  return !ended.empty();
}

Result<void> Windows::outcome(std::size_t place, const Waiting& waiting) const {
  const auto status = queues_->words.status(place);
  if (!status) return make_error(Code::backend_failed, "its kernel has ended and left no status");
  const Call& call = waiting.call;
  if (status->reason == HEADRACE_WINDOWS_DONE) {
    const bool adds = call.operation == HEADRACE_COMM_ATOMIC_ADD;
    *call.result = adds ? extended(status->seen, waiting.window->dtype) : status->seen;
    return {};
  }
  if (status->reason == HEADRACE_WINDOWS_TIMED_OUT)
    return make_error(Code::timed_out, "the signal of rank {} is {}, and {} was awaited for {}", status->peer,
                      status->seen, condition_text(call.kind, call.value), limit_text(call.timeout_ns));
  if (waiting.why) return *waiting.why;
  return make_error(Code::canceled, "the communicator has ended");
}

/// Waits for ranks that are gone end alone.
void Windows::end_in_vain() {
  const std::scoped_lock lock(mutex_);
  for (std::size_t place = 0; place < waiting_.size(); ++place) {
    auto& waiting = waiting_[place];
    if (!waiting || waiting->why) continue;
    const auto lost = parts_.lost(waiting->call.peer);
    if (!lost) continue;
    if (waiting->patience.is_never()) waiting->patience = Deadline::after(longest_last_words);
    if (!waiting->patience.expired()) continue;
    waiting->why = lost;
    queues_->words.abort(place);
  }
}

void Windows::abort_waiting(const Window* window, const Error& why) {
  const std::scoped_lock lock(mutex_);
  for (std::size_t place = 0; place < waiting_.size(); ++place) {
    auto& waiting = waiting_[place];
    if (!waiting || (window != nullptr && waiting->window != window)) continue;
    if (!waiting->why) waiting->why = why;
    queues_->words.abort(place);
  }
}

void Windows::abort() {
  aborted_ = true;
  {
    const std::scoped_lock lock(mutex_);
    if (queues_) queues_->words.abort(WaitWords::of_callers);
  }
  abort_waiting(nullptr, make_error(Code::canceled, "the communicator has ended"));
}

}  // namespace headrace::p2p
