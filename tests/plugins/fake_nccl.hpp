// SPDX-License-Identifier: Apache-2.0
// A library with NCCL's interface for tests, over host memory: the ranks are threads of one process. The
// sources that include it say which version it is (HEADRACE_FAKE_NCCL_VERSION).
//
// Calls run on the streams of the fake CUDA driver, which the test hands over by fake_nccl_run_on: as with
// NCCL, a call holds up its stream until all ranks have come, and calls of a group do not wait for each
// other. Where NCCL may return ncclInProgress, or blocks, it does. A test scripts failures by fake_nccl_fail.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#define HEADRACE_FAKE_NCCL_API extern "C" __attribute__((visibility("default")))

#pragma GCC visibility push(hidden)  // a process may load several of these libraries
#include "base/small_float.hpp"
#include "vendor/nccl/types.hpp"

namespace headrace::nccl {

/// Queues work on a stream. It is called until it returns true.
using Enqueue = void (*)(Stream stream, std::function<bool()> work);

struct World;
struct Windows;

/// One rank's handle of a window.
struct WindowObject {
  std::shared_ptr<Windows> windows;
};

/// One rank.
struct Rank {
  std::shared_ptr<World> world;
  int rank = 0;
  std::uint64_t next = 0;  // number of the next collective
  std::uint64_t next_management = 0;
  std::function<bool()> pending;  // whether what goes on has ended
  bool aborted = false;
  bool freed = false;
  bool managed = false;  // a call is in it that no other one may come beside
  bool suspended = false;
  bool blocking = false;
  std::vector<double> factors;  // of the operations that it has made
  std::vector<std::unique_ptr<WindowObject>> windows;
};

struct CommObject {
  std::shared_ptr<Rank> rank;
};

enum class Kind { all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather, scatter };

struct Part {
  Kind kind{};
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t count = 0;
  DataType type{};
  ReduceOp op{};
  double factor = 1;
  int root = 0;
};

struct Collective {
  std::vector<std::optional<Part>> parts;
  int arrived = 0;
  bool dead = false;  // a rank has aborted it
  bool done = false;
};

struct Message {
  const std::byte* from;
  std::size_t bytes;
  bool taken = false;
};

/// What ranks give for a split or shrink.
struct Meeting {
  struct Seat {
    int color = 0, key = 0;
    Comm* made = nullptr;
    bool blocking = false;
  };
  std::map<int, Seat> seats;  // by rank
  std::size_t expected = 0;
  bool done = false;
};

/// Memory of all ranks, by rank.
struct Windows {
  struct Part {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  std::map<int, Part> parts;
};

struct World {
  int size = 0;
  int arrived = 0;
  std::map<std::uint64_t, Collective> collectives;
  std::map<std::pair<int, int>, std::vector<std::shared_ptr<Message>>> messages;  // by sender and receiver
  std::map<std::string, Meeting> meetings;
  std::map<std::string, int> gatherings;  // ranks that have come
  std::string growth;                     // the id by which it grows; empty: none
  int grown = 0;                          // ranks that have used it
  std::map<std::string, std::shared_ptr<Windows>> windows;
  std::map<std::pair<int, int>, int> signals;  // by sender and receiver, less those that were awaited
};

struct State {
  std::recursive_mutex mutex;
  Enqueue enqueue = nullptr;
  std::map<std::string, std::shared_ptr<World>> worlds;  // by id
  std::uint64_t ids = 0;
  std::map<std::string, std::pair<Outcome, int>> failures;  // of a function, and how many times
  std::map<std::string, int> calls;
  Outcome async_error = Outcome::success;
  bool holds_calls = false;
  bool has_symmetric_memory = true;
  std::string last_error;
  Config last_config;
  CollConfig last_call_config;
  std::map<std::string, std::string> texts;  // of the last configurations
};

inline State& state() {
  static auto& the = *new State;
  return the;
}

/// The calls of this thread since the outermost group_start, by stream.
struct Group {
  int depth = 0;
  std::vector<std::pair<Stream, std::function<bool()>>> works;
  std::vector<std::shared_ptr<Rank>> ranks;
};
inline Group& group() {
  thread_local Group the;
  return the;
}

// --- numbers

inline std::size_t width_of(DataType type) {
  switch (type) {
    case DataType::int32:
    case DataType::uint32:
    case DataType::float32:
      return 4;
    case DataType::int64:
    case DataType::uint64:
    case DataType::float64:
      return 8;
    case DataType::float16:
    case DataType::bfloat16:
      return 2;
    default:
      return 1;
  }
}

template <class T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void write(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

inline long double load(DataType type, const void* from) {
  switch (type) {
    case DataType::int8:
      return read<std::int8_t>(from);
    case DataType::uint8:
      return read<std::uint8_t>(from);
    case DataType::int32:
      return read<std::int32_t>(from);
    case DataType::uint32:
      return read<std::uint32_t>(from);
    case DataType::int64:
      return static_cast<long double>(read<std::int64_t>(from));
    case DataType::uint64:
      return static_cast<long double>(read<std::uint64_t>(from));
    case DataType::float16:
      return Float16::load(read<std::uint16_t>(from));
    case DataType::float32:
      return read<float>(from);
    case DataType::float64:
      return read<double>(from);
    case DataType::bfloat16:
      return BFloat16::load(read<std::uint16_t>(from));
    case DataType::float8_e4m3:
      return Float8E4M3::load(read<std::uint8_t>(from));
    default:
      return Float8E5M2::load(read<std::uint8_t>(from));
  }
}

inline void store(DataType type, void* to, long double value) {
  switch (type) {
    case DataType::int8:
      return write(to, static_cast<std::int8_t>(value));
    case DataType::uint8:
      return write(to, static_cast<std::uint8_t>(value));
    case DataType::int32:
      return write(to, static_cast<std::int32_t>(value));
    case DataType::uint32:
      return write(to, static_cast<std::uint32_t>(value));
    case DataType::int64:
      return write(to, static_cast<std::int64_t>(value));
    case DataType::uint64:
      return write(to, static_cast<std::uint64_t>(value));
    case DataType::float16:
      return write(to, Float16::store(static_cast<float>(value)));
    case DataType::float32:
      return write(to, static_cast<float>(value));
    case DataType::float64:
      return write(to, static_cast<double>(value));
    case DataType::bfloat16:
      return write(to, BFloat16::store(static_cast<float>(value)));
    case DataType::float8_e4m3:
      return write(to, Float8E4M3::store(static_cast<float>(value)));
    default:
      return write(to, Float8E5M2::store(static_cast<float>(value)));
  }
}

inline long double combine(ReduceOp op, long double a, long double b) {
  switch (op) {
    case ReduceOp::product:
      return a * b;
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::min:
      return std::min(a, b);
    default:
      return a + b;
  }
}

// --- collectives

/// The reduction of the elements from `first` on, of all ranks.
inline std::vector<std::byte> reduced(const Collective& one, std::size_t first, std::size_t count) {
  const Part& mine = *one.parts[0];
  const std::size_t width = width_of(mine.type);
  std::vector<std::byte> result(count * width);
  for (std::size_t i = 0; i < count; ++i) {
    long double sum = 0;
    for (std::size_t rank = 0; rank < one.parts.size(); ++rank) {
      const Part& part = *one.parts[rank];
      const long double value = load(part.type, part.from + (first + i) * width) * part.factor;
      sum = rank == 0 ? value : combine(part.op, sum, value);
    }
    if (mine.op == ReduceOp::avg) sum /= static_cast<long double>(one.parts.size());
    store(mine.type, result.data() + i * width, sum);
  }
  return result;
}

inline void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes) {
  if (bytes != 0) std::memmove(to, from, bytes);
}

inline void perform(const Collective& one) {
  const Part& mine = *one.parts[0];
  const std::size_t ranks = one.parts.size(), bytes = mine.count * width_of(mine.type);
  const auto root = static_cast<std::size_t>(mine.root);
  std::vector<std::vector<std::byte>> results(ranks);  // inputs may be outputs
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    auto& result = results[rank];
    const auto add = [&](const std::byte* from) { result.insert(result.end(), from, from + bytes); };
    switch (mine.kind) {
      case Kind::all_reduce:
        result = reduced(one, 0, mine.count);
        break;
      case Kind::reduce:
        if (rank == root) result = reduced(one, 0, mine.count);
        break;
      case Kind::reduce_scatter:
        result = reduced(one, rank * mine.count, mine.count);
        break;
      case Kind::broadcast:
        add(one.parts[root]->from);
        break;
      case Kind::all_gather:
        for (const auto& part : one.parts) add(part->from);
        break;
      case Kind::gather:
        for (const auto& part : one.parts)
          if (rank == root) add(part->from);
        break;
      case Kind::scatter:
        add(one.parts[root]->from + rank * bytes);
        break;
      case Kind::all_to_all:
        for (const auto& part : one.parts) add(part->from + rank * bytes);
        break;
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank)
    copy_bytes(results[rank].data(), one.parts[rank]->to, results[rank].size());
}

inline bool same_call(const Part& a, const Part& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.root == b.root;
}

/// A collective of one rank as work of a stream. A call that differs from that of another rank never ends, as
/// with NCCL.
inline std::function<bool()> collective_work(const std::shared_ptr<Rank>& rank, const Part& part) {
  const std::uint64_t number = rank->next++;
  return [rank, part, number, there = false]() mutable {
    const std::scoped_lock lock(state().mutex);
    if (rank->aborted) return true;
    Collective& one = rank->world->collectives[number];
    if (!there) {
      there = true;
      one.parts.resize(static_cast<std::size_t>(rank->world->size));
      one.parts[static_cast<std::size_t>(rank->rank)] = part;
      ++one.arrived;
    }
    if (one.done) return true;
    if (one.dead || one.arrived != rank->world->size) return false;
    for (const auto& other : one.parts)
      if (!same_call(*other, part)) return false;
    perform(one);
    one.done = true;
    return true;
  };
}

inline std::function<bool()> send_work(const std::shared_ptr<Rank>& rank, const std::byte* from,
                                       std::size_t bytes, int peer) {
  return [rank, peer, message = std::make_shared<Message>(Message{from, bytes}), there = false]() mutable {
    const std::scoped_lock lock(state().mutex);
    auto& queue = rank->world->messages[{rank->rank, peer}];
    if (rank->aborted) {
      std::erase(queue, message);
      return true;
    }
    if (!there) queue.push_back(message);
    there = true;
    return message->taken;
  };
}

inline std::function<bool()> recv_work(const std::shared_ptr<Rank>& rank, std::byte* to, std::size_t bytes,
                                       int peer) {
  return [rank, to, bytes, peer] {
    const std::scoped_lock lock(state().mutex);
    if (rank->aborted) return true;
    auto& queue = rank->world->messages[{peer, rank->rank}];
    if (queue.empty() || queue.front()->bytes != bytes) return false;
    copy_bytes(queue.front()->from, to, bytes);
    queue.front()->taken = true;
    queue.erase(queue.begin());
    return true;
  };
}

/// A put is done when its bytes and its signal are at the other rank.
inline std::function<bool()> put_work(const std::shared_ptr<Rank>& rank, const std::byte* from, std::byte* to,
                                      std::size_t bytes, int peer) {
  return [=] {
    const std::scoped_lock lock(state().mutex);
    if (rank->aborted) return true;
    copy_bytes(from, to, bytes);
    ++rank->world->signals[{rank->rank, peer}];
    return true;
  };
}

inline std::function<bool()> wait_signal_work(const std::shared_ptr<Rank>& rank,
                                              std::vector<AwaitedSignals> awaited) {
  return [rank, awaited = std::move(awaited)]() mutable {
    const std::scoped_lock lock(state().mutex);
    if (rank->aborted) return true;
    std::erase_if(awaited, [&](const AwaitedSignals& one) {
      int& come = rank->world->signals[{one.peer, rank->rank}];
      if (come < one.count) return false;
      come -= one.count;
      return true;
    });
    return awaited.empty();
  };
}

/// Whether bytes lie in a window of the rank.
inline bool is_registered(const Rank& rank, const std::byte* from, std::size_t bytes) {
  return std::any_of(rank.windows.begin(), rank.windows.end(), [&](const auto& one) {
    const Windows::Part& part = one->windows->parts.at(rank.rank);
    return from >= part.memory && from + bytes <= part.memory + part.bytes;
  });
}

// --- calls

/// Counts a call; the outcome that the test has scripted for it.
inline Outcome begin(const char* symbol) {
  State& all = state();
  const std::scoped_lock lock(all.mutex);
  ++all.calls[symbol];
  const auto failure = all.failures.find(symbol);
  if (failure == all.failures.end() || failure->second.second == 0) return Outcome::success;
  --failure->second.second;
  all.last_error = std::string(symbol) + " was told to fail";
  return failure->second.first;
}

/// Goes on by itself until it has been asked once.
inline void go_on(Rank& rank) {
  rank.pending = [asked = false]() mutable { return std::exchange(asked, true); };
}

/// Waits as a call of a blocking communicator does, if the test wants it: until an abort.
inline bool held(const std::shared_ptr<Rank>& rank) {
  while (true) {
    {
      const std::scoped_lock lock(state().mutex);
      if (rank->aborted) return true;
      if (!state().holds_calls) return false;
    }
    std::this_thread::yield();
  }
}

inline Outcome queue(const char* symbol, Comm comm, Stream stream,
                     const std::function<std::function<bool()>()>& make) {
  const Outcome scripted = begin(symbol);
  if (scripted != Outcome::success) return scripted;
  if (held(std::shared_ptr(comm->rank))) return Outcome::internal_error;
  if (comm->rank->suspended) return Outcome::invalid_usage;
  std::function<bool()> work;
  {
    const std::scoped_lock lock(state().mutex);
    work = make();
  }
  Group& mine = group();
  if (mine.depth == 0) {
    state().enqueue(stream, std::move(work));  // without the lock, which works take in the driver
    return Outcome::success;
  }
  mine.works.emplace_back(stream, std::move(work));
  mine.ranks.push_back(comm->rank);
  return Outcome::success;
}

inline Outcome collect(const char* symbol, Comm comm, Stream stream, Part part) {
  const auto own = static_cast<std::size_t>(part.op) - 5;
  if (static_cast<int>(part.op) > 4) {
    if (own >= comm->rank->factors.size()) return Outcome::invalid_argument;
    part.factor = comm->rank->factors[own];
    part.op = ReduceOp::sum;
  }
  return queue(symbol, comm, stream, [&] { return collective_work(comm->rank, part); });
}

inline Part part_of(Kind kind, const void* from, void* to, std::size_t count, DataType type,
                    ReduceOp op = ReduceOp::sum, int root = 0) {
  return {kind, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count, type, op, 1, root};
}

inline Comm new_comm(std::shared_ptr<World> world, int rank, bool blocking) {
  auto made = std::make_shared<Rank>();
  made->blocking = blocking;
  made->world = std::move(world);
  made->rank = rank;
  return new CommObject{std::move(made)};
}

inline void end_works(Rank& rank) {
  rank.aborted = true;
  for (auto& [number, one] : rank.world->collectives)
    if (!one.done && !one.parts.empty() && one.parts[static_cast<std::size_t>(rank.rank)]) one.dead = true;
}

/// Makes the communicators of a meeting that is complete: one for each color, in order of keys.
inline void make_all(Meeting& meeting) {
  std::map<int, std::map<int, Meeting::Seat>> colors;
  for (const auto& [rank, seat] : meeting.seats)
    if (seat.color != no_color) colors[seat.color][seat.key] = seat;
  for (auto& [color, seats] : colors) {
    auto world = std::make_shared<World>();
    world->size = world->arrived = static_cast<int>(seats.size());
    int number = 0;
    for (auto& [key, seat] : seats) *seat.made = new_comm(world, number++, seat.blocking);
  }
  meeting.done = true;
}

inline void meet(const std::shared_ptr<Rank>& rank, const std::string& what, std::size_t expected,
                 const Meeting::Seat& seat) {
  const std::string name = what + std::to_string(rank->next_management++);
  Meeting& meeting = rank->world->meetings[name];
  meeting.expected = expected;
  meeting.seats[rank->rank] = seat;
  if (meeting.seats.size() == expected) make_all(meeting);
  rank->pending = [world = rank->world, name] { return world->meetings[name].done; };
}

/// Waits for all ranks.
inline void gather(const std::shared_ptr<Rank>& rank, const std::string& what) {
  const std::string name = what + std::to_string(rank->next_management++);
  ++rank->world->gatherings[name];
  rank->pending = [world = rank->world, name] { return world->gatherings[name] == world->size; };
}

/// What a call returns that goes on: a communicator that blocks waits for its end here, without the lock.
inline Outcome join(const std::shared_ptr<Rank>& rank) {
  if (!rank->blocking) return Outcome::in_progress;
  const bool was_aborted = [&] {
    const std::scoped_lock lock(state().mutex);
    return rank->aborted;
  }();
  while (true) {
    {
      const std::scoped_lock lock(state().mutex);
      if (rank->freed || rank->aborted != was_aborted) return Outcome::internal_error;
      if (!rank->pending || rank->pending()) {
        rank->pending = nullptr;
        return Outcome::success;
      }
    }
    std::this_thread::yield();
  }
}

/// Makes a rank of a world that is whole when all have come.
inline std::shared_ptr<Rank> enter(const std::string& id, int size, int number, bool blocking, Comm* made) {
  auto& world = state().worlds[id];
  if (!world) world = std::make_shared<World>();
  world->size = size;
  ++world->arrived;
  *made = new_comm(world, number, blocking);
  const auto rank = (*made)->rank;
  rank->pending = [world] { return world->arrived == world->size; };
  return rank;
}

/// Whether a revoke or shrink may begin. `end_managing` ends it.
inline bool begin_managing(Rank& rank) {
  const std::scoped_lock lock(state().mutex);
  return !std::exchange(rank.managed, true);
}
inline void end_managing(Rank& rank) {
  const std::scoped_lock lock(state().mutex);
  rank.managed = false;
}

/// The size of the structure in this version.
constexpr std::size_t config_size =
    HEADRACE_FAKE_NCCL_VERSION >= 23100 ? sizeof(Config) : offsetof(Config, split_share) + 8;

/// A text of the caller, which goes after the call.
inline void keep(const char*& text, const std::string& name) {
  if (text != nullptr) text = (state().texts[name] = text).c_str();
}

inline bool is_valid(const Config* config) {
  if (config == nullptr) return true;
  Config& last = state().last_config = {};
  std::memcpy(static_cast<void*>(&last), config, std::min(config->size, sizeof(Config)));
  keep(last.net_name, "netName");
  keep(last.comm_name, "commName");
  return config->magic == 0xcafebeef && config->size == config_size &&
         config->version == HEADRACE_FAKE_NCCL_VERSION && (config->blocking == 0 || config->blocking == 1);
}

inline bool is_valid(const CollConfig* config) {
  const std::scoped_lock lock(state().mutex);
  state().last_call_config = *config;
  keep(state().last_call_config.algorithms, "algSelection");
  return config->magic == 0xcafebeef && config->size == sizeof(CollConfig) &&
         config->version == HEADRACE_FAKE_NCCL_VERSION;
}

}  // namespace headrace::nccl
#pragma GCC visibility pop

namespace fake = headrace::nccl;
using fake::Comm;
using fake::Config;
using fake::DataType;
using fake::Kind;
using fake::Outcome;
using fake::ReduceOp;
using fake::Stream;
using fake::UniqueId;

// --- scripts and questions of tests

HEADRACE_FAKE_NCCL_API void fake_nccl_run_on(fake::Enqueue enqueue) { fake::state().enqueue = enqueue; }
/// The next `times` calls of a function return this outcome and do nothing else.
HEADRACE_FAKE_NCCL_API void fake_nccl_fail(const char* symbol, Outcome outcome, int times) {
  const std::scoped_lock lock(fake::state().mutex);
  fake::state().failures[symbol] = {outcome, times};
}
HEADRACE_FAKE_NCCL_API void fake_nccl_set_async_error(Outcome outcome) {
  const std::scoped_lock lock(fake::state().mutex);
  fake::state().async_error = outcome;
}
/// Whether calls wait inside the library until their communicator is aborted.
HEADRACE_FAKE_NCCL_API void fake_nccl_hold_calls(bool hold) {
  const std::scoped_lock lock(fake::state().mutex);
  fake::state().holds_calls = hold;
}
/// Whether windows are registered; else the library says that they are, and gives none.
HEADRACE_FAKE_NCCL_API void fake_nccl_have_symmetric_memory(bool have) {
  const std::scoped_lock lock(fake::state().mutex);
  fake::state().has_symmetric_memory = have;
}
HEADRACE_FAKE_NCCL_API int fake_nccl_calls(const char* symbol) {
  const std::scoped_lock lock(fake::state().mutex);
  return fake::state().calls[symbol];
}
/// Those of the last communicator and of the last call that had one.
HEADRACE_FAKE_NCCL_API void fake_nccl_last_configs(Config* of_comm, fake::CollConfig* of_call) {
  const std::scoped_lock lock(fake::state().mutex);
  *of_comm = fake::state().last_config;
  *of_call = fake::state().last_call_config;
}

// --- NCCL

// NOLINTBEGIN(readability-identifier-naming): the names are those of NCCL

HEADRACE_FAKE_NCCL_API Outcome ncclGetVersion(int* version) {
  *version = HEADRACE_FAKE_NCCL_VERSION;
  return Outcome::success;
}
HEADRACE_FAKE_NCCL_API const char* ncclGetErrorString(Outcome outcome) {
  return outcome == Outcome::remote_error ? "remote process exited or there was a network error"
                                          : "an outcome of the fake";
}
HEADRACE_FAKE_NCCL_API const char* ncclGetLastError(Comm) { return fake::state().last_error.c_str(); }

HEADRACE_FAKE_NCCL_API Outcome ncclGetUniqueId(UniqueId* id) {
  const Outcome scripted = fake::begin("ncclGetUniqueId");
  if (scripted != Outcome::success) return scripted;
  const std::scoped_lock lock(fake::state().mutex);
  *id = {};
  const std::string name = "world " + std::to_string(fake::state().ids++);
  std::memcpy(id->bytes, name.c_str(), name.size());
  return Outcome::success;
}

HEADRACE_FAKE_NCCL_API Outcome ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank,
                                                      Config* config) {
  const Outcome scripted = fake::begin("ncclCommInitRankConfig");
  if (scripted != Outcome::success) return scripted;
  std::shared_ptr<fake::Rank> made;
  {
    const std::scoped_lock lock(fake::state().mutex);
    if (!fake::is_valid(config)) return Outcome::invalid_argument;
    made = fake::enter(id.bytes, ranks, rank, config->blocking == 1, comm);
  }
  return fake::join(made);
}

HEADRACE_FAKE_NCCL_API Outcome ncclCommGetAsyncError(Comm comm, Outcome* error) {
  const std::scoped_lock lock(fake::state().mutex);
  fake::Rank& rank = *comm->rank;
  *error = fake::state().async_error;
  if (rank.pending && !rank.pending())
    *error = Outcome::in_progress;
  else
    rank.pending = nullptr;
  return Outcome::success;
}

HEADRACE_FAKE_NCCL_API Outcome ncclCommCount(Comm comm, int* count) {
  *count = comm->rank->world->size;
  return Outcome::success;
}
HEADRACE_FAKE_NCCL_API Outcome ncclCommUserRank(Comm comm, int* rank) {
  *rank = comm->rank->rank;
  return Outcome::success;
}

/// What is registered, for a test that looks into the handle.
HEADRACE_FAKE_NCCL_API Outcome ncclCommRegister(const Comm comm, void* memory, std::size_t bytes,
                                                void** handle) {
  const Outcome scripted = fake::begin("ncclCommRegister");
  if (scripted != Outcome::success) return scripted;
  if (comm == nullptr || memory == nullptr || bytes == 0) return Outcome::invalid_argument;
  *handle = new std::pair(memory, bytes);
  return Outcome::success;
}
HEADRACE_FAKE_NCCL_API Outcome ncclCommDeregister(const Comm comm, void* handle) {
  const Outcome scripted = fake::begin("ncclCommDeregister");
  if (scripted != Outcome::success) return scripted;
  if (comm == nullptr || handle == nullptr) return Outcome::invalid_argument;
  delete static_cast<std::pair<void*, std::size_t>*>(handle);
  return Outcome::success;
}

HEADRACE_FAKE_NCCL_API Outcome ncclCommFinalize(Comm comm) {
  const Outcome scripted = fake::begin("ncclCommFinalize");
  if (scripted != Outcome::success) return scripted;
  const auto rank = comm->rank;
  {
    const std::scoped_lock lock(fake::state().mutex);
    fake::go_on(*rank);
  }
  return fake::join(rank);
}
HEADRACE_FAKE_NCCL_API Outcome ncclCommDestroy(Comm comm) {
  fake::begin("ncclCommDestroy");
  delete comm;
  return Outcome::success;
}
HEADRACE_FAKE_NCCL_API Outcome ncclCommAbort(Comm comm) {
  fake::begin("ncclCommAbort");
  {
    const std::scoped_lock lock(fake::state().mutex);
    fake::end_works(*comm->rank);
    comm->rank->freed = true;
  }
  delete comm;
  return Outcome::success;
}

HEADRACE_FAKE_NCCL_API Outcome ncclCommSplit(Comm comm, int color, int key, Comm* part, Config* config) {
  const Outcome scripted = fake::begin("ncclCommSplit");
  if (scripted != Outcome::success) return scripted;
  if (comm == nullptr) return Outcome::invalid_argument;  // it was aborted just now
  const auto rank = comm->rank;
  {
    const std::scoped_lock lock(fake::state().mutex);
    if (!fake::is_valid(config)) return Outcome::invalid_argument;
    fake::meet(rank, "split ", static_cast<std::size_t>(rank->world->size),
               {color, key, part, config != nullptr && config->blocking == 1});
  }
  return fake::join(rank);
}

HEADRACE_FAKE_NCCL_API Outcome ncclRedOpCreatePreMulSum(ReduceOp* op, void* scalar, DataType type,
                                                        fake::ScalarResidence, Comm comm) {
  const Outcome scripted = fake::begin("ncclRedOpCreatePreMulSum");
  if (scripted != Outcome::success) return scripted;
  const std::scoped_lock lock(fake::state().mutex);
  comm->rank->factors.push_back(static_cast<double>(fake::load(type, scalar)));
  *op = static_cast<ReduceOp>(4 + comm->rank->factors.size());
  return Outcome::success;
}
HEADRACE_FAKE_NCCL_API Outcome ncclRedOpDestroy(ReduceOp, Comm) { return fake::begin("ncclRedOpDestroy"); }

HEADRACE_FAKE_NCCL_API Outcome ncclAllReduce(const void* from, void* to, std::size_t count, DataType type,
                                             ReduceOp op, Comm comm, Stream stream) {
  return fake::collect("ncclAllReduce", comm, stream,
                       fake::part_of(Kind::all_reduce, from, to, count, type, op));
}
HEADRACE_FAKE_NCCL_API Outcome ncclBroadcast(const void* from, void* to, std::size_t count, DataType type,
                                             int root, Comm comm, Stream stream) {
  return fake::collect("ncclBroadcast", comm, stream,
                       fake::part_of(Kind::broadcast, from, to, count, type, ReduceOp::sum, root));
}
HEADRACE_FAKE_NCCL_API Outcome ncclReduce(const void* from, void* to, std::size_t count, DataType type,
                                          ReduceOp op, int root, Comm comm, Stream stream) {
  return fake::collect("ncclReduce", comm, stream,
                       fake::part_of(Kind::reduce, from, to, count, type, op, root));
}
HEADRACE_FAKE_NCCL_API Outcome ncclAllGather(const void* from, void* to, std::size_t count, DataType type,
                                             Comm comm, Stream stream) {
  return fake::collect("ncclAllGather", comm, stream, fake::part_of(Kind::all_gather, from, to, count, type));
}
HEADRACE_FAKE_NCCL_API Outcome ncclReduceScatter(const void* from, void* to, std::size_t count, DataType type,
                                                 ReduceOp op, Comm comm, Stream stream) {
  return fake::collect("ncclReduceScatter", comm, stream,
                       fake::part_of(Kind::reduce_scatter, from, to, count, type, op));
}
HEADRACE_FAKE_NCCL_API Outcome ncclSend(const void* from, std::size_t count, DataType type, int peer,
                                        Comm comm, Stream stream) {
  return fake::queue("ncclSend", comm, stream, [&] {
    return fake::send_work(comm->rank, static_cast<const std::byte*>(from), count * fake::width_of(type),
                           peer);
  });
}
HEADRACE_FAKE_NCCL_API Outcome ncclRecv(void* to, std::size_t count, DataType type, int peer, Comm comm,
                                        Stream stream) {
  return fake::queue("ncclRecv", comm, stream, [&] {
    return fake::recv_work(comm->rank, static_cast<std::byte*>(to), count * fake::width_of(type), peer);
  });
}

HEADRACE_FAKE_NCCL_API Outcome ncclGroupStart() {
  ++fake::group().depth;
  return Outcome::success;
}
HEADRACE_FAKE_NCCL_API Outcome ncclGroupEnd() {
  fake::Group& mine = fake::group();
  if (--mine.depth != 0) return Outcome::success;
  auto works = std::exchange(mine.works, {});
  auto ranks = std::exchange(mine.ranks, {});
  const Outcome scripted = fake::begin("ncclGroupEnd");
  if (scripted != Outcome::success) return scripted;
  std::map<Stream, std::vector<std::function<bool()>>> by_stream;
  for (auto& [stream, work] : works) by_stream[stream].push_back(std::move(work));
  for (auto& [stream, all] : by_stream)
    fake::state().enqueue(stream, [all = std::move(all)]() mutable {
      std::erase_if(all, [](auto& work) { return work(); });
      return all.empty();
    });
  Outcome outcome = Outcome::success;
  for (const auto& rank : ranks) {
    {
      const std::scoped_lock lock(fake::state().mutex);
      fake::go_on(*rank);
    }
    outcome = fake::join(rank);
  }
  return outcome;
}

#if HEADRACE_FAKE_NCCL_VERSION >= 22703
HEADRACE_FAKE_NCCL_API Outcome ncclCommShrink(Comm comm, int* excluded, int count, Comm* part, Config* config,
                                              int flags) {
  const Outcome scripted = fake::begin("ncclCommShrink");
  if (scripted != Outcome::success) return scripted;
  if (comm == nullptr) return Outcome::invalid_argument;  // it was aborted just now
  const auto rank = comm->rank;
  if (!fake::begin_managing(*rank)) return Outcome::internal_error;
  {
    const std::scoped_lock lock(fake::state().mutex);
    if (!fake::is_valid(config)) return Outcome::invalid_argument;
    if (flags == fake::shrink_abort) fake::end_works(*rank);
    std::string what = "shrink without";
    for (int i = 0; i < count; ++i) what += " " + std::to_string(excluded[i]);
    fake::meet(rank, what + ": ", static_cast<std::size_t>(rank->world->size - count),
               {0, rank->rank, part, config != nullptr && config->blocking == 1});
  }
  const Outcome outcome = fake::join(rank);
  fake::end_managing(*rank);
  return outcome;
}
#endif

#if HEADRACE_FAKE_NCCL_VERSION >= 22807
HEADRACE_FAKE_NCCL_API Outcome ncclCommRevoke(Comm comm, int) {
  fake::begin("ncclCommRevoke");
  if (!fake::begin_managing(*comm->rank)) return Outcome::internal_error;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it waits for the GPU
  fake::end_managing(*comm->rank);
  const std::scoped_lock lock(fake::state().mutex);
  fake::end_works(*comm->rank);
  fake::go_on(*comm->rank);
  return Outcome::in_progress;  // also of a communicator that blocks
}
HEADRACE_FAKE_NCCL_API Outcome ncclAlltoAll(const void* from, void* to, std::size_t count, DataType type,
                                            Comm comm, Stream stream) {
  return fake::collect("ncclAlltoAll", comm, stream, fake::part_of(Kind::all_to_all, from, to, count, type));
}
HEADRACE_FAKE_NCCL_API Outcome ncclGather(const void* from, void* to, std::size_t count, DataType type,
                                          int root, Comm comm, Stream stream) {
  return fake::collect("ncclGather", comm, stream,
                       fake::part_of(Kind::gather, from, to, count, type, ReduceOp::sum, root));
}
HEADRACE_FAKE_NCCL_API Outcome ncclScatter(const void* from, void* to, std::size_t count, DataType type,
                                           int root, Comm comm, Stream stream) {
  return fake::collect("ncclScatter", comm, stream,
                       fake::part_of(Kind::scatter, from, to, count, type, ReduceOp::sum, root));
}
#endif

#if HEADRACE_FAKE_NCCL_VERSION >= 22703
HEADRACE_FAKE_NCCL_API Outcome ncclCommWindowRegister(Comm comm, void* memory, std::size_t bytes,
                                                      fake::Window* window, int flags) {
  const Outcome scripted = fake::begin("ncclCommWindowRegister");
  if (scripted != Outcome::success) return scripted;
  if (comm == nullptr || memory == nullptr || bytes == 0 || flags != fake::window_symmetric ||
      reinterpret_cast<std::uintptr_t>(memory) % fake::window_alignment != 0)
    return Outcome::invalid_argument;
  const auto rank = comm->rank;
  *window = nullptr;
  {
    const std::scoped_lock lock(fake::state().mutex);
    if (!fake::state().has_symmetric_memory) return Outcome::success;
    const std::string name = "window " + std::to_string(rank->next_management);
    auto& windows = rank->world->windows[name];
    if (!windows) windows = std::make_shared<fake::Windows>();
    windows->parts[rank->rank] = {static_cast<std::byte*>(memory), bytes};
    rank->windows.push_back(std::make_unique<fake::WindowObject>(windows));
    *window = rank->windows.back().get();
    fake::gather(rank, "window ");
  }
  return fake::join(rank);
}
HEADRACE_FAKE_NCCL_API Outcome ncclCommWindowDeregister(Comm comm, fake::Window window) {
  const Outcome scripted = fake::begin("ncclCommWindowDeregister");
  if (scripted != Outcome::success) return scripted;
  const std::scoped_lock lock(fake::state().mutex);
  std::erase_if(comm->rank->windows, [window](const auto& one) { return one.get() == window; });
  return Outcome::success;
}
#endif

#if HEADRACE_FAKE_NCCL_VERSION >= 22902
HEADRACE_FAKE_NCCL_API Outcome ncclPutSignal(const void* from, std::size_t count, DataType type, int peer,
                                             fake::Window window, std::size_t offset, int signal, int context,
                                             unsigned flags, Comm comm, Stream stream) {
  const auto* const bytes_from = static_cast<const std::byte*>(from);
  const std::size_t bytes = count * fake::width_of(type);
  std::byte* to = nullptr;
  {
    const std::scoped_lock lock(fake::state().mutex);
    if (window == nullptr || signal != 0 || context != 0 || flags != 0) return Outcome::invalid_argument;
    const auto part = window->windows->parts.find(peer);
    if (part == window->windows->parts.end() || offset + bytes > part->second.bytes ||
        !fake::is_registered(*comm->rank, bytes_from, bytes))
      return Outcome::invalid_argument;
    to = part->second.memory + offset;
  }
  return fake::queue("ncclPutSignal", comm, stream,
                     [&] { return fake::put_work(comm->rank, bytes_from, to, bytes, peer); });
}
HEADRACE_FAKE_NCCL_API Outcome ncclWaitSignal(int count, fake::AwaitedSignals* awaited, Comm comm,
                                              Stream stream) {
  for (int i = 0; i < count; ++i)
    if (awaited[i].count <= 0 || awaited[i].signal != 0 || awaited[i].context != 0)
      return Outcome::invalid_argument;
  return fake::queue("ncclWaitSignal", comm, stream, [&] {
    return fake::wait_signal_work(comm->rank, {awaited, awaited + count});
  });
}
HEADRACE_FAKE_NCCL_API Outcome ncclGetPeerDevicePointer(fake::Window window, std::size_t offset, int peer,
                                                        void** address) {
  const Outcome scripted = fake::begin("ncclGetPeerDevicePointer");
  if (scripted != Outcome::success) return scripted;
  const std::scoped_lock lock(fake::state().mutex);
  *address = window->windows->parts.at(peer).memory + offset;
  return Outcome::success;
}
HEADRACE_FAKE_NCCL_API Outcome ncclCommGetUniqueId(Comm comm, UniqueId* id) {
  const Outcome scripted = fake::begin("ncclCommGetUniqueId");
  if (scripted != Outcome::success) return scripted;
  const std::scoped_lock lock(fake::state().mutex);
  fake::World& world = *comm->rank->world;
  if (!world.growth.empty()) return Outcome::invalid_usage;  // one at a time
  *id = {};
  world.growth = "growth " + std::to_string(fake::state().ids++);
  std::memcpy(id->bytes, world.growth.c_str(), world.growth.size());
  return Outcome::success;
}
/// Ranks that are inside give -1 as their rank, and the first of them the id; others give no communicator.
HEADRACE_FAKE_NCCL_API Outcome ncclCommGrow(Comm comm, int ranks, const UniqueId* id, int rank, Comm* made,
                                            Config* config) {
  const Outcome scripted = fake::begin("ncclCommGrow");
  if (scripted != Outcome::success) return scripted;
  std::shared_ptr<fake::Rank> waits;
  {
    const std::scoped_lock lock(fake::state().mutex);
    if (!fake::is_valid(config)) return Outcome::invalid_argument;
    const bool blocking = config != nullptr && config->blocking == 1;
    if (comm == nullptr) {
      if (id == nullptr || rank < 0 || rank >= ranks) return Outcome::invalid_argument;
      waits = fake::enter(id->bytes, ranks, rank, blocking, made);
    } else {
      fake::World& world = *comm->rank->world;
      const bool is_root = comm->rank->rank == 0;
      if (rank != -1 || is_root != (id != nullptr) || ranks <= world.size) return Outcome::invalid_argument;
      if (world.growth.empty() || (is_root && world.growth != id->bytes)) return Outcome::invalid_usage;
      const auto inside = fake::enter(world.growth, ranks, comm->rank->rank, blocking, made);
      if (++world.grown == world.size) world.growth.clear(), world.grown = 0;
      comm->rank->pending = inside->pending;
      waits = comm->rank;
    }
  }
  return fake::join(waits);
}
#endif

#if HEADRACE_FAKE_NCCL_VERSION >= 22907
HEADRACE_FAKE_NCCL_API Outcome ncclCommSuspend(Comm comm, int flags) {
  const Outcome scripted = fake::begin("ncclCommSuspend");
  if (scripted != Outcome::success) return scripted;
  if (flags != fake::suspend_memory || comm->rank->suspended) return Outcome::invalid_argument;
  const auto rank = comm->rank;
  {
    const std::scoped_lock lock(fake::state().mutex);
    rank->suspended = true;
    fake::gather(rank, "suspend ");
  }
  return fake::join(rank);
}
HEADRACE_FAKE_NCCL_API Outcome ncclCommResume(Comm comm) {
  const Outcome scripted = fake::begin("ncclCommResume");
  if (scripted != Outcome::success) return scripted;
  if (!comm->rank->suspended) return Outcome::invalid_argument;
  const auto rank = comm->rank;
  {
    const std::scoped_lock lock(fake::state().mutex);
    rank->suspended = false;
    fake::gather(rank, "resume ");
  }
  return fake::join(rank);
}
#endif

#if HEADRACE_FAKE_NCCL_VERSION >= 23100
HEADRACE_FAKE_NCCL_API Outcome ncclAllReduceConfig(const void* from, void* to, std::size_t count,
                                                   DataType type, ReduceOp op, Comm comm, Stream stream,
                                                   const fake::CollConfig* config) {
  if (!fake::is_valid(config)) return Outcome::invalid_argument;
  return ncclAllReduce(from, to, count, type, op, comm, stream);
}
HEADRACE_FAKE_NCCL_API Outcome ncclBroadcastConfig(const void* from, void* to, std::size_t count,
                                                   DataType type, int root, Comm comm, Stream stream,
                                                   const fake::CollConfig* config) {
  if (!fake::is_valid(config)) return Outcome::invalid_argument;
  return ncclBroadcast(from, to, count, type, root, comm, stream);
}
HEADRACE_FAKE_NCCL_API Outcome ncclReduceConfig(const void* from, void* to, std::size_t count, DataType type,
                                                ReduceOp op, int root, Comm comm, Stream stream,
                                                const fake::CollConfig* config) {
  if (!fake::is_valid(config)) return Outcome::invalid_argument;
  return ncclReduce(from, to, count, type, op, root, comm, stream);
}
HEADRACE_FAKE_NCCL_API Outcome ncclAllGatherConfig(const void* from, void* to, std::size_t count,
                                                   DataType type, Comm comm, Stream stream,
                                                   const fake::CollConfig* config) {
  if (!fake::is_valid(config)) return Outcome::invalid_argument;
  return ncclAllGather(from, to, count, type, comm, stream);
}
HEADRACE_FAKE_NCCL_API Outcome ncclReduceScatterConfig(const void* from, void* to, std::size_t count,
                                                       DataType type, ReduceOp op, Comm comm, Stream stream,
                                                       const fake::CollConfig* config) {
  if (!fake::is_valid(config)) return Outcome::invalid_argument;
  return ncclReduceScatter(from, to, count, type, op, comm, stream);
}
HEADRACE_FAKE_NCCL_API Outcome ncclAlltoAllConfig(const void* from, void* to, std::size_t count,
                                                  DataType type, Comm comm, Stream stream,
                                                  const fake::CollConfig* config) {
  if (!fake::is_valid(config)) return Outcome::invalid_argument;
  return ncclAlltoAll(from, to, count, type, comm, stream);
}
HEADRACE_FAKE_NCCL_API Outcome ncclGatherConfig(const void* from, void* to, std::size_t count, DataType type,
                                                int root, Comm comm, Stream stream,
                                                const fake::CollConfig* config) {
  if (!fake::is_valid(config)) return Outcome::invalid_argument;
  return ncclGather(from, to, count, type, root, comm, stream);
}
#endif

// NOLINTEND(readability-identifier-naming)
