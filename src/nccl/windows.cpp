// SPDX-License-Identifier: Apache-2.0
#include "nccl/windows.hpp"

#include "base/errors.hpp"
#include "base/signal_text.hpp"
#include "gpu/allocation_info.hpp"
#include "gpu/device_memory.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace headrace::nccl {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t word_bytes = sizeof(std::uint64_t);
constexpr std::uint64_t staging_bytes = 4 << 20;
constexpr auto between_looks = 20us;

/// The first function of windows that the library lacks; null: it has all.
const Feature* missing_function(const std::vector<Feature>& all) {
  constexpr std::array needed{"ncclCommWindowRegister", "ncclCommWindowDeregister", "ncclPutSignal",
                              "ncclWaitSignal"};
  const auto at = std::ranges::find_if(all, [&](const Feature& feature) {
    return !feature.there && std::ranges::find(needed, feature.symbol) != needed.end();
  });
  return at == all.end() ? nullptr : &*at;
}

Error canceled() { return make_error(Code::canceled, "the communicator has ended"); }

std::string limit_text(std::int64_t timeout_ns) {
  return timeout_ns % 1'000'000 == 0 ? fmt::format("{} ms", timeout_ns / 1'000'000)
                                     : fmt::format("{} us", timeout_ns / 1000);
}

bool holds(std::int32_t comparison, std::uint64_t word, std::uint64_t value) {
  switch (comparison) {
    case HEADRACE_COMM_EQ:
      return word == value;
    case HEADRACE_COMM_NE:
      return word != value;
    case HEADRACE_COMM_LT:
      return word < value;
    case HEADRACE_COMM_LE:
      return word <= value;
    case HEADRACE_COMM_GT:
      return word > value;
    case HEADRACE_COMM_GE:
      return word >= value;
    default:
      return word > 0;
  }
}

}  // namespace

/// What a rank brings to the opening of a window, for memory that ranks exchange.
struct Windows::Card {
  std::uint64_t count = 0;
  std::int32_t dtype = 0;
  std::int32_t code = HEADRACE_OK;
  std::array<char, 240> why{};
};

Result<void> check_window_operation(const Library& library, CommOperation operation) {
  if (operation == CommOperation::atomic_add)
    return make_error(Code::not_supported, "NCCL has no atomic_add of windows: use backend p2p");
  const std::vector<Feature> all = features(library);
  const Feature* const missing = missing_function(all);
  if (missing == nullptr) return {};
  return needs_version(library, fmt::format("a window, by {},", missing->symbol), missing->since);
}

Windows::Windows(WindowParts parts)
    : parts_(std::move(parts)),
      puts_(static_cast<std::size_t>(parts_.size)),
      puts_awaited_(puts_.size()),
      works_(parts_.device, gpu::StreamWorks::Order::of_all) {}

// --- opening and closing

Result<void> Windows::open(headrace_comm_window_v1& window, const Deadline& deadline) {
  HEADRACE_TRY_VOID(check_window_operation(parts_.library, CommOperation::put));
  if (!parts_.device->info().shares_descriptors)
    return make_error(
        Code::not_supported,
        "GPU {} exports no memory by descriptor, and windows over NCCL need that: those of NVIDIA do",
        parts_.device->ordinal());
  HEADRACE_TRY_VOID(prepare());
  auto made = std::make_shared<OpenWindow>();
  made->dtype = static_cast<DType>(window.elements.dtype);
  Result<Card> mine = Card{window.elements.count, window.elements.dtype, HEADRACE_OK, {}};
  if (const auto local = make_local(window, *made); !local) mine = local.error();
  if (auto shared = share(mine, window, *made, deadline); !shared) {
    static_cast<void>(let_go(std::move(made), deadline));  // the first error is what the caller hears
    return shared;
  }
  connected_ = true;
  find_places(window, *made);
  window.window = ++last_;
  const std::scoped_lock lock(mutex_);
  windows_.emplace(last_, std::move(made));
  return {};
}

Result<void> Windows::share(const Result<Card>& mine, headrace_comm_window_v1& window, OpenWindow& made,
                            const Deadline& deadline) {
  HEADRACE_TRY(cards, meet(mine, deadline));
  HEADRACE_TRY_VOID(read_cards(cards, window));
  const auto registered = register_all(made, deadline);
  HEADRACE_TRY_VOID(meet(registered ? Result<Card>(Card{}) : registered.error(), deadline));
  return {};
}

/// A rank that goes on may run kernels that wait for the others, and drivers do not unmap beside them. A
/// split into no group waits for all ranks, and runs no kernel.
Result<void> Windows::let_go(std::shared_ptr<OpenWindow> window, const Deadline& deadline) {
  take_back(window->elements);
  take_back(window->words);
  if (!connected_) take_back(staging_);
  window.reset();
  return parts_.call("let go of a window", deadline, [this](Comm comm) {
    return parts_.library.table.comm_split(comm, no_color, 0, &no_part_, nullptr);
  });
}

/// All that can fail on this rank alone.
Result<void> Windows::make_local(headrace_comm_window_v1& window, OpenWindow& made) {
  const auto ranks = static_cast<std::size_t>(parts_.size);
  made.sent.resize(ranks);
  made.taken.resize(ranks);
  HEADRACE_TRY_VOID(allocate(made.words, 2 * ranks * word_bytes));
  HEADRACE_TRY(seen, gpu::PinnedMemory::allocate(parts_.device, ranks * word_bytes));
  made.seen = std::move(seen);
  if (staging_.bytes == 0) HEADRACE_TRY_VOID(allocate(staging_, staging_bytes));
  const std::uint64_t bytes = window.elements.count * element_bytes(made.dtype);
  if (window.elements.data != nullptr && bytes != 0) {
    HEADRACE_TRY_VOID(check_memory(window.elements, bytes));
    made.elements.address = reinterpret_cast<cuda::Address>(window.elements.data);
    made.elements.bytes = bytes;
    return {};
  }
  HEADRACE_TRY_VOID(allocate(made.elements, std::max<std::uint64_t>(bytes, 1)));
  if (bytes != 0) window.elements.data = reinterpret_cast<void*>(made.elements.address);
  return {};
}

Result<void> Windows::prepare() {
  if (queues_) return {};
  const std::size_t bytes = 2 * static_cast<std::size_t>(parts_.size + 1) * sizeof(Card);
  HEADRACE_TRY(stream, gpu::Stream::make(parts_.device));
  HEADRACE_TRY(reading, gpu::Stream::make(parts_.device));
  HEADRACE_TRY(exchanged, gpu::DeviceMemory::allocate(parts_.device, bytes));
  HEADRACE_TRY(pinned, gpu::PinnedMemory::allocate(parts_.device, bytes));
  queues_.emplace(Queues{std::move(stream), std::move(reading), std::move(exchanged), std::move(pinned)});
  return {};
}

/// NCCL registers memory of the virtual memory API alone, and would find out when other ranks wait already.
Result<void> Windows::check_memory(const headrace_comm_elements_v1& elements, std::uint64_t bytes) const {
  const auto address = reinterpret_cast<cuda::Address>(elements.data);
  HEADRACE_TRY(info, gpu::describe_allocation(*parts_.device, address));
  if (info.sharing != gpu::Sharing::descriptor)
    return make_error(
        Code::not_supported,
        "{} bytes at {:#x} are not of the virtual memory API, and NCCL registers no others: use "
        "Window::allocate, or memory of headrace.torch_tools.mem_allocator()",
        bytes, address);
  if ((address - info.base) % window_alignment != 0)
    return make_error(Code::invalid_argument,
                      "the elements begin {} bytes into their allocation: NCCL registers windows at "
                      "multiples of {}",
                      address - info.base, window_alignment);
  return {};
}

Result<void> Windows::allocate(Registered& memory, std::uint64_t bytes) const {
  HEADRACE_TRY(made, gpu::ShareableMemory::allocate(parts_.device, bytes));
  memory.address = made.address();
  memory.bytes = bytes;
  memory.made.emplace(std::move(made));
  return {};
}

Result<std::vector<Windows::Card>> Windows::meet(const Result<Card>& mine, const Deadline& deadline) {
  Card card = mine ? *mine : Card{};
  if (!mine) {
    card.code = static_cast<std::int32_t>(mine.code());
    mine.error().message.copy(card.why.data(), card.why.size() - 1);
  }
  HEADRACE_TRY(bytes, exchange(std::as_bytes(std::span(&card, 1)), false, deadline));
  std::vector<Card> cards(static_cast<std::size_t>(parts_.size));
  std::memcpy(cards.data(), bytes.data(), bytes.size());
  for (std::size_t rank = 0; rank < cards.size(); ++rank)
    if (cards[rank].code != HEADRACE_OK)
      return make_error(static_cast<Code>(cards[rank].code), "rank {}: {}", rank, cards[rank].why.data());
  return cards;
}

/// All ranks find the same.
Result<void> Windows::read_cards(const std::vector<Card>& cards, headrace_comm_window_v1& window) const {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    window.counts[rank] = cards[rank].count;
    if (cards[rank].dtype != cards[0].dtype)
      return make_error(Code::invalid_argument,
                        "rank {} registers {}, rank 0 {}: a window has the same type on all ranks", rank,
                        dtype_name(static_cast<DType>(cards[rank].dtype)),
                        dtype_name(static_cast<DType>(cards[0].dtype)));
  }
  return {};
}

Result<void> Windows::register_all(OpenWindow& made, const Deadline& deadline) {
  if (!connected_) HEADRACE_TRY_VOID(register_one(staging_, deadline));
  HEADRACE_TRY_VOID(register_one(made.elements, deadline));
  HEADRACE_TRY_VOID(register_one(made.words, deadline));
  return connected_ ? Result<void>() : first_put(made, deadline);
}

Result<void> Windows::register_one(Registered& memory, const Deadline& deadline) {
  const std::string what = fmt::format("register a window of {} bytes", memory.bytes);
  HEADRACE_TRY_VOID(parts_.call(what, deadline, [&](Comm comm) {
    return parts_.library.table.window_register(comm, reinterpret_cast<void*>(memory.address), memory.bytes,
                                                &memory.handle, window_symmetric);
  }));
  if (memory.handle != nullptr) return {};
  return make_error(
      Code::not_supported,
      "{}: NCCL says that it has, and gives no window. It needs GPUs that reach one another, and "
      "NCCL_CUMEM_ENABLE and NCCL_WIN_ENABLE not 0; NCCL_DEBUG=INFO tells why it has none",
      what);
}

void Windows::take_back(Registered& memory) {
  if (memory.handle == nullptr) return;
  static_cast<void>(parts_.call("deregister a window", Deadline::never(), [&](Comm comm) {
    return parts_.library.table.window_deregister(comm, memory.handle);
  }));
  memory.handle = nullptr;
}

Result<void> Windows::first_put(OpenWindow& made, const Deadline& deadline) {
  const auto rank = static_cast<std::uint64_t>(parts_.rank);
  const std::uint64_t next = (rank + 1) % puts_.size();
  // The word of this rank at the next one is 0 before and after.
  HEADRACE_TRY_VOID(put_known(made.words.address + (puts_.size() + next) * word_bytes, word_bytes,
                              static_cast<int>(next), made.words.handle, rank * word_bytes,
                              queues_->stream.handle(), deadline));
  return wait_idle(deadline);
}

void Windows::find_places(headrace_comm_window_v1& window, OpenWindow& made) const {
  made.places.resize(puts_.size());
  for (std::size_t rank = 0; rank < puts_.size(); ++rank) {
    void* place = nullptr;
    const auto ask = parts_.library.table.get_peer_pointer;
    if (rank == static_cast<std::size_t>(parts_.rank))
      place = reinterpret_cast<void*>(made.elements.address);
    else if (ask == nullptr ||
             ask(made.elements.handle, 0, static_cast<int>(rank), &place) != Outcome::success)
      place = nullptr;
    made.places[rank] = reinterpret_cast<std::uint64_t>(place);
  }
  std::ranges::copy(made.places, window.places);
}

Result<std::vector<std::byte>> Windows::exchange(std::span<const std::byte> mine, bool a_part_to_each,
                                                 const Deadline& deadline) {
  const gpu::ContextGuard current(*parts_.device);
  const std::size_t part = a_part_to_each ? mine.size() / puts_.size() : mine.size();
  const std::size_t bytes = part * puts_.size();
  const cuda::Stream stream = queues_->stream.handle();
  const cuda::Address from = queues_->exchanged.address(), to = from + mine.size();
  std::byte* const pinned = queues_->pinned.bytes().data();
  std::memcpy(pinned, mine.data(), mine.size());
  HEADRACE_TRY_VOID(copy(from, queues_->pinned.address(), mine.size(), stream));
  HEADRACE_TRY_VOID(parts_.call("exchange what the ranks bring", deadline, [&](Comm comm) {
    const Table& table = parts_.library.table;
    const auto collective = a_part_to_each ? table.all_to_all : table.all_gather;
    return collective(reinterpret_cast<const void*>(from), reinterpret_cast<void*>(to), part, DataType::uint8,
                      comm, stream);
  }));
  HEADRACE_TRY_VOID(copy(queues_->pinned.address() + mine.size(), to, bytes, stream));
  HEADRACE_TRY_VOID(wait_idle(deadline));
  return std::vector<std::byte>(pinned + mine.size(), pinned + mine.size() + bytes);
}

/// Not inside the driver: an abort, or the deadline, ends it.
Result<void> Windows::wait_idle(const Deadline& deadline) {
  while (true) {
    HEADRACE_TRY(idle, queues_->stream.poll_idle());
    if (aborted_) return canceled();
    if (idle) return {};
    if (deadline.expired()) {
      parts_.end_late();
      return make_error(Code::timed_out, "another rank has not come in time");
    }
    std::this_thread::sleep_for(between_looks);
  }
}

Result<void> Windows::close(std::uint64_t number, const Deadline& deadline) {
  HEADRACE_TRY(window, find(number));
  window->closing = true;
  end_waits_of(window.get(), make_error(Code::canceled, "the window has been deregistered while it waited"));
  HEADRACE_TRY_VOID(wait_for_works(*window, number, deadline));
  HEADRACE_TRY_VOID(wait_for_puts(deadline));
  {
    const std::scoped_lock lock(mutex_);
    windows_.erase(number);
  }
  return let_go(std::move(window), deadline);
}

Result<void> Windows::wait_for_works(const OpenWindow& window, std::uint64_t number,
                                     const Deadline& deadline) {
  while (true) {
    {
      const std::scoped_lock lock(mutex_);
      const bool in_use =
          std::ranges::any_of(running_, [&](const auto& one) { return one.second == number; });
      const bool is_read =
          std::ranges::any_of(reading_, [&](const auto& one) { return one.get() == &window; });
      if (!in_use && !is_read) return {};
    }
    if (aborted_) return canceled();
    if (deadline.expired())
      return make_error(Code::timed_out, "operations of this rank on the window are under way");
    std::this_thread::sleep_for(1ms);  // the host makes progress on another thread
  }
}

/// Each put is a signal of NCCL that comes after its bytes, so there are as many as ranks have put.
Result<void> Windows::wait_for_puts(const Deadline& deadline) {
  HEADRACE_TRY(bytes, exchange(std::as_bytes(std::span(puts_)), true, deadline));
  std::vector<std::uint64_t> come(puts_.size());
  std::memcpy(come.data(), bytes.data(), bytes.size());
  std::vector<AwaitedSignals> awaited;
  for (std::size_t rank = 0; rank < come.size(); ++rank)
    if (come[rank] != puts_awaited_[rank])
      awaited.push_back({static_cast<int>(come[rank] - puts_awaited_[rank]), static_cast<int>(rank), 0, 0});
  if (awaited.empty()) return {};
  const gpu::ContextGuard current(*parts_.device);
  HEADRACE_TRY_VOID(parts_.call("wait for what the others have put", deadline, [&](Comm comm) {
    return parts_.library.table.wait_signal(static_cast<int>(awaited.size()), awaited.data(), comm,
                                            queues_->stream.handle());
  }));
  puts_awaited_ = std::move(come);
  return wait_idle(deadline);
}

Result<std::shared_ptr<Windows::OpenWindow>> Windows::find(std::uint64_t number) {
  const std::scoped_lock lock(mutex_);
  const auto found = windows_.find(number);
  if (found != windows_.end() && !found->second->closing) return found->second;
  return make_error(Code::invalid_argument,
                    "the window has been deregistered: register memory before the next operation");
}

// --- operations

Result<bool> Windows::issue(const Call& call, std::uint64_t work) {
  const auto operation = static_cast<CommOperation>(call.operation);
  if (operation == CommOperation::atomic_add)
    HEADRACE_TRY_VOID(check_window_operation(parts_.library, operation));
  HEADRACE_TRY(window, find(call.window));
  if (aborted_) return canceled();
  const gpu::ContextGuard current(*parts_.device);
  if (operation == CommOperation::wait_signal) return wait_for_signal(call, std::move(window), work);
  if (operation != CommOperation::signal && call.elements.count == 0) return true;
  return queue(call, *window, work);
}

Result<cuda::Stream> Windows::stream_of(const Call& call) {
  const auto caller = static_cast<cuda::Stream>(call.stream);
  const cuda::DriverTable& driver = parts_.device->driver();
  cuda::CaptureStatus capture{};
  if (caller != nullptr)
    HEADRACE_CUDA_TRY(driver, driver.stream_is_capturing(caller, &capture), "look at the stream of a call");
  if (capture != cuda::CaptureStatus::none)
    return make_error(Code::not_supported,
                      "a put that NCCL captures waits at each replay for a captured wait of the other rank, "
                      "which windows do not make: use backend p2p in graphs");
  cuda::Stream stream = caller;
  if (call.async != 0) {
    stream = queues_->stream.handle();
    HEADRACE_TRY_VOID(works_.follow(stream, caller));
  }
  HEADRACE_TRY_VOID(works_.follow_last(stream));
  return stream;
}

Result<bool> Windows::queue(const Call& call, OpenWindow& window, std::uint64_t work) {
  HEADRACE_TRY(stream, stream_of(call));
  HEADRACE_TRY_VOID(run(call, window, stream));
  {
    const std::scoped_lock lock(mutex_);
    running_[work] = call.window;
  }
  if (const auto added = works_.add(work, 0, stream); !added) {
    const std::scoped_lock lock(mutex_);
    running_.erase(work);
    return added.error();
  }
  return false;
}

Result<void> Windows::run(const Call& call, OpenWindow& window, cuda::Stream stream) {
  if (call.operation == HEADRACE_COMM_GET) return get(call, window, stream);
  return call.operation == HEADRACE_COMM_PUT ? put(call, window, stream) : signal(call, window, stream);
}

Result<void> Windows::get(const Call& call, const OpenWindow& window, cuda::Stream stream) const {
  const std::size_t width = element_bytes(window.dtype);
  const std::uint64_t place = window.places[static_cast<std::size_t>(call.peer)];
  if (place == 0)
    return make_error(Code::not_supported,
                      "NCCL has no get, and this GPU does not map the elements of rank {}: let it put",
                      call.peer);
  return copy(reinterpret_cast<cuda::Address>(call.elements.data), place + call.offset * width,
              call.elements.count * width, stream);
}

Result<void> Windows::put(const Call& call, const OpenWindow& window, cuda::Stream stream) {
  const std::size_t width = element_bytes(window.dtype);
  const auto from = reinterpret_cast<cuda::Address>(call.elements.data);
  const std::uint64_t bytes = call.elements.count * width, to = call.offset * width;
  if (is_known(from, bytes))
    return put_known(from, bytes, call.peer, window.elements.handle, to, stream, Deadline::never());
  for (std::uint64_t at = 0; at < bytes; at += staging_bytes) {
    const std::uint64_t chunk = std::min(staging_bytes, bytes - at);
    HEADRACE_TRY_VOID(copy(staging_.address, from + at, chunk, stream));
    HEADRACE_TRY_VOID(put_known(staging_.address, chunk, call.peer, window.elements.handle, to + at, stream,
                                Deadline::never()));
  }
  return {};
}

/// This rank alone changes its word at the other one, so that it knows the sum.
Result<void> Windows::signal(const Call& call, OpenWindow& window, cuda::Stream stream) {
  if (call.kind != HEADRACE_COMM_SIGNAL_ADD)
    return make_error(Code::not_supported,
                      "over NCCL a signal adds and does not set, because the other rank alone knows what it "
                      "has taken: use backend p2p");
  const auto peer = static_cast<std::size_t>(call.peer);
  const cuda::Address word = window.words.address + (puts_.size() + peer) * word_bytes;
  const cuda::DriverTable& driver = parts_.device->driver();
  const std::uint64_t sum = window.sent[peer] + call.value;
  HEADRACE_CUDA_TRY(driver, driver.stream_write_value_64(stream, word, sum, cuda::write_value_default),
                    "write a signal for rank {}", call.peer);
  HEADRACE_TRY_VOID(put_known(word, word_bytes, call.peer, window.words.handle,
                              static_cast<std::uint64_t>(parts_.rank) * word_bytes, stream,
                              Deadline::never()));
  window.sent[peer] = sum;
  return {};
}

Result<void> Windows::put_known(cuda::Address from, std::uint64_t bytes, int peer, Window window,
                                std::uint64_t at, cuda::Stream stream, const Deadline& deadline) {
  HEADRACE_TRY_VOID(
      parts_.call(fmt::format("put {} bytes to rank {}", bytes, peer), deadline, [&](Comm comm) {
        return parts_.library.table.put_signal(reinterpret_cast<const void*>(from), bytes, DataType::uint8,
                                               peer, window, at, 0, 0, 0, comm, stream);
      }));
  ++puts_[static_cast<std::size_t>(peer)];
  return {};
}

bool Windows::is_known(cuda::Address from, std::uint64_t bytes) const {
  const std::scoped_lock lock(mutex_);
  return std::ranges::any_of(windows_, [&](const auto& one) {
    const Registered& elements = one.second->elements;
    return !one.second->closing && from >= elements.address &&
           from + bytes <= elements.address + elements.bytes;
  });
}

Result<void> Windows::copy(cuda::Address to, cuda::Address from, std::uint64_t bytes,
                           cuda::Stream stream) const {
  const cuda::DriverTable& driver = parts_.device->driver();
  HEADRACE_CUDA_TRY(driver, driver.memcpy_async(to, from, bytes, stream), "copy {} bytes on GPU {}", bytes,
                    parts_.device->ordinal());
  return {};
}

Result<bool> Windows::wait_for_signal(const Call& call, std::shared_ptr<OpenWindow> window,
                                      std::uint64_t work) {
  if (call.async == 0)
    return make_error(Code::not_supported, "a wait for a signal does not run on a stream over NCCL");
  const std::scoped_lock lock(mutex_);
  waiting_.push_back({work, std::move(window), call, comm_border::deadline_of(call.timeout_ns)});
  return false;
}

Result<void> Windows::wait_on(std::uint64_t work, cuda::Stream stream) {
  return works_.wait_on(work, stream);
}

// --- ends

bool Windows::progress() {
  const bool moved = end_queued();
  return end_waits() || moved;
}

bool Windows::end_queued() {
  const auto ended = works_.take_ended();
  for (const auto& [work, note, result] : ended) {
    {
      const std::scoped_lock lock(mutex_);
      running_.erase(work);
    }
    parts_.host.end(work, result);
  }
  return !ended.empty();
}

/// Nothing here waits for a stream: a read is begun, and what it brought is looked at when it is done.
bool Windows::end_waits() {
  std::vector<std::pair<std::uint64_t, Result<void>>> ended;
  {
    const std::scoped_lock lock(mutex_);
    if (waiting_.empty() && reading_.empty()) return false;
    Result<bool> read = false;
    if (!reading_.empty()) read = queues_->reading.poll_idle();
    if (read && *read) {
      reading_.clear();
      ended = take_satisfied();
    }
    if (read && reading_.empty() && !waiting_.empty())
      if (const auto begun = begin_read(); !begun) read = begun.error();
    if (!read) ended = take_all(read.error());
  }
  for (const auto& [work, result] : ended) parts_.host.end(work, result);
  return !ended.empty();
}

/// With the lock.
Windows::EndedWaits Windows::take_satisfied() {
  EndedWaits ended;
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    const auto result = waiting.is_read ? outcome(waiting) : std::nullopt;
    if (result) ended.emplace_back(waiting.work, *result);
    return result.has_value();
  });
  return ended;
}

/// With the lock.
Windows::EndedWaits Windows::take_all(const Error& why) {
  EndedWaits ended;
  for (const Waiting& waiting : waiting_) ended.emplace_back(waiting.work, why);
  waiting_.clear();
  return ended;
}

/// With the lock.
std::optional<Result<void>> Windows::outcome(const Waiting& waiting) {
  const Call& call = waiting.call;
  OpenWindow& window = *waiting.window;
  const auto peer = static_cast<std::size_t>(call.peer);
  std::uint64_t word = 0;
  std::memcpy(&word, window.seen.bytes().data() + peer * word_bytes, word_bytes);
  word -= window.taken[peer];
  if (holds(call.kind, word, call.value)) {
    if (call.kind == HEADRACE_COMM_TAKE) ++window.taken[peer];
    *call.result = word;
    return Result<void>();
  }
  if (!waiting.deadline.expired()) return std::nullopt;
  return make_error(Code::timed_out, "the signal of rank {} is {}, and {} was awaited for {}", call.peer,
                    word, condition_text(call.kind, call.value), limit_text(call.timeout_ns));
}

/// With the lock. The windows stay until it is done, also those that close.
Result<void> Windows::begin_read() {
  const gpu::ContextGuard current(*parts_.device);
  for (Waiting& waiting : waiting_) {
    waiting.is_read = true;
    if (std::ranges::find(reading_, waiting.window) != reading_.end()) continue;
    HEADRACE_TRY_VOID(copy(waiting.window->seen.address(), waiting.window->words.address,
                           puts_.size() * word_bytes, queues_->reading.handle()));
    reading_.push_back(waiting.window);
  }
  return {};
}

void Windows::end_waits_of(const OpenWindow* window, const Error& why) {
  EndedWaits ended;
  {
    const std::scoped_lock lock(mutex_);
    std::erase_if(waiting_, [&](const Waiting& waiting) {
      const bool ends = window == nullptr || waiting.window.get() == window;
      if (ends) ended.emplace_back(waiting.work, why);
      return ends;
    });
  }
  for (const auto& [work, result] : ended) parts_.host.end(work, result);
}

void Windows::abort() {
  aborted_ = true;
  end_waits_of(nullptr, canceled());
}

}  // namespace headrace::nccl
