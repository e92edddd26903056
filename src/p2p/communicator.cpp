// SPDX-License-Identifier: Apache-2.0
#include "p2p/communicator.hpp"

#include "base/comm_calls.hpp"
#include "p2p/copies.hpp"

#include <headrace/comm_call.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <tuple>
#include <utility>

namespace headrace::p2p {
namespace {

using namespace std::chrono_literals;

constexpr int most_ranks = HEADRACE_COLLECTIVES_MOST_RANKS;
constexpr std::uint32_t usual_blocks = 32;
constexpr auto between_looks = 10ms;       // at ranks that may be gone
constexpr auto longest_early_end = 10ms;   // from an abort until a kernel that runs has left
constexpr auto longest_last_message = 2s;  // of a rank that has left
constexpr auto longest_move = 20ms;        // until ranks that move elements of an early end are done
constexpr std::int64_t after_host_ns = 5'000'000'000;  // a kernel's deadline, if the host does not end it

Error why_ended() { return make_error(Code::canceled, "the communicator has ended"); }

Error lost(int rank, std::string_view how) {
  return make_error(Code::peer_lost, "rank {} is gone: {}", rank, how);
}

/// The first hint in which two ranks differ.
Result<void> compare(int rank, const wire::GpuCard& card, const wire::GpuCard& first) {
  const std::tuple<const char*, std::uint32_t, std::uint32_t> hints[] = {
      {"blocks", card.blocks, first.blocks},
      {"packet_bytes", card.packet_bytes, first.packet_bytes},
      {"chunk_bytes", card.chunk_bytes, first.chunk_bytes},
      {"slots", card.slots, first.slots},
      {"copy_bytes", card.copy_bytes, first.copy_bytes}};
  for (const auto& [name, mine, theirs] : hints)
    if (mine != theirs)
      return make_error(Code::invalid_argument,
                        "rank 0 has hint {} {}, rank {} has {}: give all ranks the same hints", name, theirs,
                        rank, mine);
  return {};
}

}  // namespace

// --- opening

Communicator::Communicator(Parts parts, const Setup& setup, const Settings& settings, Family family,
                           Words words, gpu::Stream stream)
    : parts_(std::move(parts)),
      host_(setup.host),
      name_(setup.name),
      rank_(setup.rank),
      size_(setup.size),
      settings_(settings),
      device_(parts_.kernels->shared_device()),
      family_(std::move(family)),
      words_(std::move(words)),
      stream_(std::move(stream)),
      works_(device_, gpu::StreamWorks::Order::of_all),
      channels_(rank_, size_, settings_),
      tensors_(rank_, size_, device_->ordinal(),
               {[this] { return why_no_call(); }, [this](int rank) { return why_lost(rank); }}),
      windows_({rank_, size_, setup.timeout_ns, parts_.kernels, host_, &tensors_,
                [this](int rank) { return why_lost(rank); }}) {
  launch_.struct_size = sizeof launch_;
  launch_.rank = static_cast<std::uint32_t>(rank_);
  launch_.abort = words_.abort_address();
}

Result<std::unique_ptr<Communicator>> Communicator::open(const Parts& parts, const Setup& setup) {
  if (setup.size > most_ranks)
    return make_error(Code::not_supported, "{} ranks: p2p has at most {}, of one host. Use backend nccl",
                      setup.size, most_ranks);
  HEADRACE_TRY(settings, Settings::read(setup));
  HEADRACE_TRY(family,
               Family::of(parts.kernels, HEADRACE_COLLECTIVES_FAMILY, HEADRACE_COLLECTIVES_FAMILY_VERSION));
  HEADRACE_TRY(words, Words::make(parts.kernels->shared_device()));
  HEADRACE_TRY(stream,
               gpu::Stream::make(parts.kernels->shared_device(),
                                 settings.high_priority ? gpu::Priority::high : gpu::Priority::normal));
  std::unique_ptr<Communicator> made(
      new Communicator(parts, setup, settings, std::move(family), std::move(words), std::move(stream)));
  const Meeting meeting(made->host_, setup.rank, setup.size,
                        comm_border::deadline_of(setup.meeting_timeout_ns));
  Result<void> connected = made->connect(meeting);
  meeting.end();  // until then others may map this rank's box
  if (!connected) return std::move(connected).error();
  return made;
}

Result<void> Communicator::connect(const Meeting& meeting) {
  HEADRACE_TRY(gpus, meeting.exchange("gpu", gpu_card()));
  HEADRACE_TRY_VOID(choose_shape(gpus));
  HEADRACE_TRY(boxes, meeting.exchange("box", make_box()));
  // No rank writes to a box before all boxes are mapped: where one cannot be, no rank opens.
  HEADRACE_TRY_VOID(meeting.exchange("mapped", map_boxes(boxes, meeting.deadline())));
  if (neighbours_) neighbours_->listen([this](int rank, const Saying& saying) { hear(rank, saying); });
  return {};
}

std::string Communicator::gpu_card() const {
  const wire::GpuCard card{settings_.blocks, settings_.packet_bytes, settings_.chunk_bytes,
                           settings_.slots,  settings_.copy_bytes,   device_->info().uuid};
  return card.encode();
}

Result<void> Communicator::choose_shape(const std::vector<std::string>& gpu_cards) {
  std::map<std::string, std::uint32_t> ranks_of;  // by GPU
  std::optional<wire::GpuCard> first;
  for (int rank = 0; rank < size_; ++rank) {
    HEADRACE_TRY(card, wire::GpuCard::decode(gpu_cards[static_cast<std::size_t>(rank)]));
    if (!first) first = card;
    HEADRACE_TRY_VOID(compare(rank, card, *first));
    ++ranks_of[card.gpu];
  }
  for (const auto& [gpu, ranks] : ranks_of) launch_.sharing = std::max(launch_.sharing, ranks);
  const int gpus = static_cast<int>(ranks_of.size());
  launch_.box.ranks = static_cast<std::uint32_t>(size_);
  launch_.box.packed_bytes = settings_.packet_bytes != 0 ? settings_.packet_bytes : packet_bytes_for(gpus);
  launch_.box.chunk_bytes = settings_.chunk_bytes;
  launch_.box.slots = settings_.slots;
  if (family_.table().box_bytes(&launch_.box) != 0) return {};
  return make_error(Code::invalid_argument,
                    "hints packet_bytes {}, chunk_bytes {}, slots {} make no box: the first two must be "
                    "multiples of 16, slots at least 2, and the box of {} ranks less than 4 GiB",
                    launch_.box.packed_bytes, settings_.chunk_bytes, settings_.slots, size_);
}

Result<std::string> Communicator::make_box() {
  const auto& table = family_.table();
  wire::BoxCard card;
  card.most_blocks = table.most_blocks(family_.kernels().set(), &launch_.box, launch_.sharing);
  if (card.most_blocks == 0)
    return make_error(Code::exhausted,
                      "GPU {} has {} multiprocessors, and {} ranks are on one GPU: their kernels wait for "
                      "one another and would not run at once",
                      device_->ordinal(), device_->info().multiprocessors, launch_.sharing);
  box_bytes_ = table.box_bytes(&launch_.box);
  channels_.set_end_bytes(table.box_bytes(&channels_.shape()));
  HEADRACE_TRY(box, gpu::ShareableMemory::allocate(device_, box_bytes_ + channels_.bytes()));
  launch_.boxes[rank_] = box.address();
  channels_.place(rank_, box.address() + box_bytes_);
  box_.emplace(std::move(box));
  if (size_ == 1) return card.encode();
  HEADRACE_TRY(neighbours, Neighbours::open(parts_.agent, name_, rank_, size_));
  neighbours_ = std::move(neighbours);
  HEADRACE_TRY(metadata, neighbours_->offer(*box_, device_->ordinal()));
  card.metadata = std::move(metadata);
  return card.encode();
}

Result<std::string> Communicator::map_boxes(const std::vector<std::string>& box_cards,
                                            const Deadline& deadline) {
  const std::uint64_t all_bytes = box_bytes_ + channels_.bytes();
  std::uint32_t most_blocks = ~std::uint32_t{0};
  for (int rank = 0; rank < size_; ++rank) {
    HEADRACE_TRY(card, wire::BoxCard::decode(box_cards[static_cast<std::size_t>(rank)]));
    most_blocks = std::min(most_blocks, card.most_blocks);
    if (rank == rank_) continue;
    const auto mapped = neighbours_->map(rank, card.metadata, all_bytes, device_->ordinal(), deadline);
    if (mapped) {
      launch_.boxes[rank] = neighbours_->box_of(rank);
      channels_.place(rank, launch_.boxes[rank] + box_bytes_);
      continue;
    }
    Error error = mapped.error();
    if (error.code == Code::not_supported)
      error.message += ". p2p needs GPUs of one host that reach one another's memory: use backend nccl";
    return std::move(error).within(
        fmt::format("GPU {} cannot map the box of rank {}", device_->ordinal(), rank));
  }
  HEADRACE_TRY_VOID(choose_blocks(most_blocks));
  return std::string();
}

Result<void> Communicator::choose_blocks(std::uint32_t most) {
  launch_.blocks = settings_.blocks != 0 ? settings_.blocks : std::min(usual_blocks, most);
  channels_.share(launch_.blocks);
  if (launch_.blocks <= most) return {};
  return make_error(Code::invalid_argument,
                    "hint blocks is {}: {} ranks on one GPU can have at most {} each, which wait for one "
                    "another and must run at once, and half of the slots",
                    settings_.blocks, launch_.sharing, most);
}

// --- calls

Result<bool> Communicator::issue(const Call& call, std::uint64_t work) {
  std::unique_lock<std::mutex> calls;
  if (!batch_) calls = std::unique_lock(calls_);
  if (stopping_) return why_ended();
  const gpu::ContextGuard current(*device_);
  if (is_message(static_cast<CommOperation>(call.operation))) return run_message(call, work);
  return run(call, work);
}

Result<bool> Communicator::run(const Call& call, std::uint64_t work) {
  HEADRACE_TRY(blocks, check_call(call));
  HEADRACE_TRY(place, place_of(call.stream, call.async != 0));
  if (const auto why = why_in_vain()) {
    host_.end(work, *why);
    return false;
  }
  const int status = take_status(place);
  const cuda::Outcome outcome = launch(call, place, blocks, status);
  if (outcome == cuda::Outcome::invalid_value) return refusal(call, outcome);
  last_number_ = call.number;
  if (outcome == cuda::Outcome::success) return watch(work, place, {status});
  host_.end(work, refusal(call, outcome));
  return false;
}

Result<std::uint32_t> Communicator::check_call(const Call& call) const {
  const auto operation = static_cast<CommOperation>(call.operation);
  const bool is_known = call.operation >= HEADRACE_COMM_ALL_REDUCE && call.operation <= HEADRACE_COMM_BARRIER;
  if (!is_known && operation != CommOperation::device_all_to_all_v_single)
    return make_error(Code::not_supported, "p2p has no {}", comm_operation_name(operation));
  std::uint32_t blocks = launch_.blocks;
  for (std::uint32_t i = 0; i < call.hint_count; ++i) {
    if (std::string_view(call.hints[i].name) != "blocks")
      return make_error(Code::invalid_argument, "its calls have the hint blocks alone, and {} is given",
                        call.hints[i].name);
    HEADRACE_TRY(wish, blocks_of_call(call.hints[i].value, launch_.blocks));
    blocks = wish;
  }
  return blocks;
}

Result<Communicator::Place> Communicator::place_of(void* stream, bool async) {
  const cuda::DriverTable& driver = device_->driver();
  const auto caller = static_cast<cuda::Stream>(stream);
  cuda::CaptureStatus capture{};
  if (caller != nullptr)
    HEADRACE_CUDA_TRY(driver, driver.stream_is_capturing(caller, &capture), "look at the stream of a call");
  // A captured call is part of its stream: no stream outside of a capture is waited for, or joins later.
  if (capture != cuda::CaptureStatus::none) return Place{caller, true};
  if (async) HEADRACE_TRY_VOID(works_.follow(stream_.handle(), caller));
  const Place place{async ? stream_.handle() : caller, false};
  // Two launches of one rank never run at once: GPU memory counts them.
  HEADRACE_TRY_VOID(works_.follow_last(place.stream));
  return place;
}

cuda::Outcome Communicator::launch(const Call& call, const Place& place, std::uint32_t blocks,
                                   int status) const {
  Call of_kernel = call;
  of_kernel.timeout_ns = limit_of_kernel(call.timeout_ns, place.captured);
  headrace_collective_v1 args = launch_;
  args.call = &of_kernel;
  args.blocks = blocks;
  args.status = words_.status_address(status);
  args.memories = tensors_.memories().data();
  args.memory_count = tensors_.memories().size();
  if (is_copied(args)) return launch_copied(args, place);
  return family_.launch<&headrace_collectives_v1::run>(args, place.stream);
}

/// The host ends what is late, and names the limit. Of replays it knows nothing.
std::int64_t Communicator::limit_of_kernel(std::int64_t timeout_ns, bool captured) {
  if (captured || timeout_ns < 0) return timeout_ns;
  return std::min(timeout_ns, INT64_MAX - after_host_ns) + after_host_ns;
}

bool Communicator::is_copied(const headrace_collective_v1& args) const {
  if (settings_.copy_bytes == 0 || size_ == 1) return false;
  if (args.memory_count != 0) return false;  // kernels write to registered memory of other ranks
  if (!has_elements_of(*args.call, settings_.copy_bytes)) return false;  // most calls: they need no plan
  return family_.table().copied_bytes(&args) >= settings_.copy_bytes;
}

cuda::Outcome Communicator::launch_copied(const headrace_collective_v1& args, const Place& place) const {
  headrace_collectives_copies_v1 copies{};
  copies.struct_size = sizeof copies;
  for (std::uint32_t step = 0; copies.is_last == 0; ++step) {
    const auto launched = static_cast<cuda::Outcome>(
        family_.table().copy_step(family_.kernels().set(), &args, step, &copies, place.stream));
    if (launched != cuda::Outcome::success) return launched;
    const cuda::Outcome queued = queue_copies(device_->driver(), copies, place.stream, place.captured);
    // The first step is under way, so the call can no longer be refused. It is the error of a kernel.
    if (queued == cuda::Outcome::invalid_value) return cuda::Outcome::illegal_address;
    if (queued != cuda::Outcome::success) return queued;
  }
  return cuda::Outcome::success;
}

int Communicator::take_status(const Place& place) {
  return place.captured ? Words::of_replays : Words::of_launch(launches_++);
}

bool Communicator::watch(std::uint64_t work, const Place& place, const Note& note) {
  if (place.captured) {
    captured_ = true;
    return true;
  }
  if (const auto added = works_.add(work, note.packed(), place.stream); !added) host_.end(work, added);
  return false;
}

// --- messages

Result<bool> Communicator::run_message(const Call& call, std::uint64_t work) {
  HEADRACE_TRY_VOID(comm_border::check_message(call, "p2p"));
  if (call.hint_count != 0)
    return make_error(Code::invalid_argument, "its messages have no hints, and {} is given",
                      call.hints[0].name);
  const Message message = message_of(call, work);
  if (!batch_) return run_messages({&message, 1});
  auto& others = batch_->messages;
  if (!others.empty() && (others[0].stream != message.stream || others[0].async != message.async))
    return make_error(Code::invalid_argument, "messages that belong together must be on one stream");
  others.push_back(message);
  return false;
}

void Communicator::group_start() { batch_.emplace(Batch{std::unique_lock(calls_), {}}); }

Result<void> Communicator::group_end() {
  const Batch batch = *std::exchange(batch_, std::nullopt);
  if (batch.messages.empty()) return {};
  if (stopping_) return why_ended();
  const gpu::ContextGuard current(*device_);
  HEADRACE_TRY(ended, run_messages(batch.messages));
  for (const Message& message : batch.messages)
    if (ended) host_.end(message.work, {}, message.peer);
  return {};
}

Result<bool> Communicator::run_messages(std::span<const Message> messages) {
  HEADRACE_TRY(place, place_of(messages[0].stream, messages[0].async));
  std::optional<Error> why = why_in_vain(messages);
  for (const auto& together : channels_.launches_of(messages)) {
    if (!why) why = launch_messages(together, place);
    for (const Message& message : together)
      if (why) host_.end(message.work, *why);
  }
  return place.captured && !why;
}

std::optional<Error> Communicator::launch_messages(std::span<const Message> messages, const Place& place) {
  const int status = take_status(place);
  const Channels::Places places = channels_.places_of(messages);
  headrace_collectives_messages_v1 args{};
  args.struct_size = sizeof args;
  args.box = channels_.shape();
  args.own_box = launch_.boxes[rank_];
  args.rank = launch_.rank;
  args.blocks = channels_.blocks();
  args.channel_count = static_cast<std::uint32_t>(places.channels.size());
  args.message_count = static_cast<std::uint32_t>(places.messages.size());
  args.channels = places.channels.data();
  args.messages = places.messages.data();
  args.abort = launch_.abort;
  args.status = words_.status_address(status);
  args.timeout_ns = limit_of_kernel(messages[0].timeout_ns, place.captured);
  const auto outcome = family_.launch<&headrace_collectives_v1::exchange_messages>(args, place.stream);
  if (outcome != cuda::Outcome::success)
    return cuda::driver_error(device_->driver(), outcome, "launch {} messages on GPU {}", messages.size(),
                              device_->ordinal());
  for (const Message& message : messages) {
    if (!place.captured) ++messages_with_[static_cast<std::size_t>(message.peer)];
    static_cast<void>(watch(message.work, place, {status, message.peer}));
  }
  return std::nullopt;
}

/// What is not the host's to check: whether there is such a reduction.
Error Communicator::refusal(const Call& call, cuda::Outcome outcome) const {
  const auto operation = comm_operation_name(static_cast<CommOperation>(call.operation));
  if (outcome != cuda::Outcome::invalid_value || !comm_border::reduces(call.operation) ||
      call.input_count == 0)
    return cuda::driver_error(device_->driver(), outcome, "launch {} on GPU {}", operation,
                              device_->ordinal());
  return make_error(Code::invalid_argument,
                    "{} has no meaning for {}: bit operations are for integers and bool, order is not for "
                    "complex numbers, scaling is not for bool, and a factor of integers is whole",
                    reduce_op_name(static_cast<ReduceOp::Kind>(call.reduction)),
                    dtype_name(static_cast<DType>(call.inputs[0].dtype)));
}

Result<void> Communicator::wait_on(std::uint64_t work, cuda::Stream stream) {
  HEADRACE_TRY_VOID(works_.wait_on(work, stream));
  return windows_.wait_on(work, stream);
}

bool Communicator::progress() {
  const bool moved = windows_.progress();
  return end_collectives() || moved;
}

bool Communicator::end_collectives() {
  if (gives_up_ && !stopping_) return false;  // the host ends the late work first
  if (is_moved_by_others()) return false;
  const auto ended = works_.take_ended();
  for (const auto& [work, packed, result] : ended) {
    const auto [status, peer] = Note::of(packed);
    if (peer >= 0) --messages_with_[static_cast<std::size_t>(peer)];
    const auto early = words_.early_end(status);
    failed_ = failed_ || early || words_.early_end(Words::of_replays);
    if (!result || !failed_)
      host_.end(work, result, peer);
    else if (early && early->code() != Code::canceled)
      host_.end(work, make_error(early->code(), "{}", early->text()));
    else
      host_.end(work, why_no_call().value_or(why_ended()));
  }
  if (works_.any() && next_look_.expired()) {
    next_look_ = Deadline::after(between_looks);
    end_in_vain();
  }
  return !ended.empty();
}

std::string Communicator::waits_for() {
  gives_up_ = true;
  words_.abort();  // a kernel that waits writes for whom, and leaves
  const Deadline deadline = Deadline::after(longest_early_end);
  bool left = false;
  while (true) {
    if (const auto early = words_.any_early_end()) {
      if (has_tensors_) std::this_thread::sleep_until(std::chrono::steady_clock::now() + longest_early_end);
      return early->text();
    }
    if (left || deadline.expired()) return "its GPU has not begun it, or moves its elements";
    left = works_.oldest_has_ended();
    std::this_thread::yield();
  }
}

// --- other ranks, and the end

std::optional<Error> Communicator::why_no_call() const {
  if (stopping_) return why_ended();
  if (const auto early = words_.early_end(Words::of_replays))
    return make_error(early->code(), "a replay of a captured call has ended early: {}", early->text());
  return std::nullopt;
}

std::optional<Error> Communicator::why_in_vain() const {
  if (auto no_call = why_no_call()) return no_call;
  for (int rank = 0; rank < size_; ++rank)
    if (auto lost = why_lost(rank)) return lost;
  return std::nullopt;
}

std::optional<Error> Communicator::why_in_vain(std::span<const Message> messages) const {
  if (auto no_call = why_no_call()) return no_call;
  for (const Message& message : messages)
    if (auto lost = why_lost(message.peer)) return lost;
  return std::nullopt;
}

std::optional<Error> Communicator::why_lost(int rank) const {
  if (!neighbours_) return std::nullopt;
  if (left_[static_cast<std::size_t>(rank)] != 0) return lost(rank, "it has left");
  if (neighbours_->is_gone(rank)) return lost(rank, "its process has ended, or it has left");
  return std::nullopt;
}

/// Ends the communicator if works that are under way wait for a rank that will not come. A rank that has left
/// has done its part of what it had called; messages with it may be on their last way.
void Communicator::end_in_vain() {
  const auto now = std::chrono::steady_clock::now();
  for (int rank = 0; neighbours_ && rank < size_ && !stopping_; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const std::uint64_t left = left_[at];
    if (left != 0 && left <= last_number_) return host_.ended(lost(rank, "it has left"));
    const bool is_missing = left != 0 ? messages_with_[at] != 0 : neighbours_->is_gone(rank);
    if (!is_missing) {
      missing_since_[at].reset();
      continue;
    }
    if (!missing_since_[at]) missing_since_[at] = now;
    if (now - *missing_since_[at] < (left != 0 ? longest_last_message : longest_last_words)) continue;
    return host_.ended(lost(rank, left != 0 ? "it has left" : "its process has ended"));
  }
}

/// A rank that gives up takes its places back, so others that have not begun to move do not begin.
bool Communicator::is_moved_by_others() {
  if (!has_tensors_ || !words_.any_early_end()) return false;
  if (quiet_at_.is_never()) quiet_at_ = Deadline::after(longest_move);
  return !quiet_at_.expired();
}

void Communicator::hear(int rank, const Saying& saying) {
  if (saying.kind == Saying::Kind::tensor_offered || saying.kind == Saying::Kind::tensor_mapped ||
      saying.kind == Saying::Kind::agreed)
    return tensors_.hear(rank, saying);
  if (saying.kind == Saying::Kind::left) {
    left_[static_cast<std::size_t>(rank)] = saying.number + 1;
    return;
  }
  if (stopping_ || told_.exchange(true)) return;
  host_.ended(make_error(Code::canceled, "{}", saying.text));  // before a work ends without this reason
  words_.abort();
  windows_.abort();
}

void Communicator::abort(std::string_view reason) {
  stopping_ = true;
  words_.abort();
  windows_.abort();
  if (neighbours_ && !told_) neighbours_->say({Saying::Kind::aborted, 0, std::string(reason)});
}

// --- registered tensors

Result<std::uint64_t> Communicator::tensor_register(const headrace_comm_elements_v1& tensor,
                                                    std::int64_t timeout_ns) {
  if (stopping_) return why_ended();
  const auto address = reinterpret_cast<std::uint64_t>(tensor.data);
  const std::uint64_t bytes = tensor.count * element_bytes(static_cast<DType>(tensor.dtype));
  has_tensors_ = true;
  auto added = tensors_.add(neighbours_.get(), address, bytes, comm_border::deadline_of(timeout_ns));
  if (!added) return end_for(std::move(added).error());
  return added;
}

Result<void> Communicator::tensor_deregister(std::uint64_t number, std::int64_t timeout_ns) {
  if (stopping_) return why_ended();
  auto removed = tensors_.remove(neighbours_.get(), number, comm_border::deadline_of(timeout_ns));
  if (!removed) return end_for(std::move(removed).error());
  return {};
}

Result<void> Communicator::window_open(headrace_comm_window_v1& window, std::int64_t timeout_ns) {
  if (stopping_) return why_ended();
  auto opened = windows_.open(neighbours_.get(), window, comm_border::deadline_of(timeout_ns));
  if (!opened) return end_for(std::move(opened).error());
  return {};
}

Result<void> Communicator::window_close(std::uint64_t number, std::int64_t timeout_ns) {
  if (stopping_) return why_ended();
  auto closed = windows_.close(neighbours_.get(), number, comm_border::deadline_of(timeout_ns));
  if (!closed) return end_for(std::move(closed).error());
  return {};
}

Result<bool> Communicator::window_issue(const headrace_comm_window_call_v1& call, std::uint64_t work) {
  if (stopping_) return why_ended();
  return windows_.issue(call, work);
}

/// Ranks that are late may be in the operation still, and succeed: then the ranks are no longer of one mind.
Error Communicator::end_for(Error error) {
  if (error.code == Code::timed_out || error.code == Code::peer_lost) host_.ended(error);
  return error;
}

Result<std::unique_ptr<Communicator>> Communicator::split(const Setup* setup) {
  if (stopping_) return why_ended();
  if (setup == nullptr) return std::unique_ptr<Communicator>();
  return open(parts_, *setup);
}

Result<std::unique_ptr<Communicator>> Communicator::shrink(const Setup& setup) {
  stopping_ = true;
  words_.abort();
  windows_.abort();
  return open(parts_, setup);
}

Communicator::~Communicator() {
  if (neighbours_) neighbours_->say({Saying::Kind::left, last_number_, {}});
  words_.abort();
  windows_.abort();
  works_.wait_all();
  windows_.wait_all();
  progress();                                              // the host hears of their ends
  if (captured_) static_cast<void>(device_->wait_idle());  // replays run on streams that nobody here knows
}

}  // namespace headrace::p2p
