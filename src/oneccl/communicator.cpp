// SPDX-License-Identifier: Apache-2.0
#include "oneccl/communicator.hpp"

#include "base/start_thread.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

namespace headrace::oneccl {
namespace {

using namespace std::chrono_literals;
using comm_border::deadline_of;

constexpr auto longest_leave = 100ms;  // until a closing communicator leaves a thread behind
constexpr auto refusal_stays = 500ms;  // in the store, which ends with rank 0, for the others to read it
constexpr char is_id = '+';            // before the answer of rank 0; else its error follows
constexpr char is_error = '-';

std::string process_key(int rank) { return fmt::format("process/{}", rank); }

bool moves_message(std::int32_t operation) {
  return operation == HEADRACE_COMM_SEND || operation == HEADRACE_COMM_RECV;
}

Result<UniqueId> id_in(std::string_view answer) {
  if (!answer.starts_with(is_id))
    return make_error(Code::not_supported, "rank 0 says: {}",
                      answer.substr(std::min<std::size_t>(1, answer.size())));
  UniqueId id{};
  answer.remove_prefix(1);
  if (answer.size() != sizeof id)
    return make_error(Code::corrupt, "rank 0 gave an id of {} bytes, and {} are expected", answer.size(),
                      sizeof id);
  std::memcpy(&id, answer.data(), sizeof id);
  return id;
}

}  // namespace

struct Communicator::Shared {
  Shared(const Library& its_library, const comm_border::Host& its_host)
      : library(its_library), host(its_host) {}

  /// Ends a work, unless the communicator is over: its caller has its elements back then.
  void end(std::uint64_t work, const StagedCall& call, Outcome outcome) {
    const std::scoped_lock lock(mutex);
    if (over || works.erase(work) == 0) return;
    if (outcome == Outcome::success) {
      call.give_back();
      host.end(work, {});
    } else {
      host.end(work, library_error(library, outcome, "run it"));
    }
  }

  const Library library;
  const comm_border::Host host;  // used while it is not over
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;              // aborted or closed
  Comm comm = nullptr;            // of the library
  std::optional<Outcome> joined;  // what the library said when it made it
  std::set<std::uint64_t> works;  // under way
  int threads = 0;                // that have not ended
};

/// A thread that runs tasks in their order. The thread ends once the lane is destroyed and the task that it
/// runs has returned.
class Communicator::Lane {
 public:
  static Result<std::unique_ptr<Lane>> start(const std::shared_ptr<Shared>& shared) {
    auto queue = std::make_shared<Queue>();
    {
      const std::scoped_lock lock(shared->mutex);
      ++shared->threads;
    }
    auto thread = start_thread("headrace-ccl", [shared, queue] { serve(*shared, *queue); });
    if (!thread) {
      const std::scoped_lock lock(shared->mutex);
      --shared->threads;
      return std::move(thread).error();
    }
    thread->detach();
    return std::unique_ptr<Lane>(new Lane(std::move(queue)));
  }
  ~Lane() {
    const std::scoped_lock lock(queue_->mutex);
    queue_->closed = true;
    queue_->changed.notify_one();
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void add(std::function<void()> task) {
    const std::scoped_lock lock(queue_->mutex);
    queue_->tasks.push_back(std::move(task));
    queue_->changed.notify_one();
  }

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool closed = false;

    /// Waits for a task; null: there will be none.
    std::function<void()> take() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return closed || !tasks.empty(); });
      if (tasks.empty()) return {};
      std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      return task;
    }
  };

  explicit Lane(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

  static void serve(Shared& shared, Queue& queue) {
    while (const std::function<void()> task = queue.take()) task();
    const std::scoped_lock lock(shared.mutex);
    --shared.threads;
    shared.changed.notify_all();
  }

  const std::shared_ptr<Queue> queue_;
};

Communicator::Communicator(const Parts& parts, const Setup& setup)
    : parts_(parts),
      host_(setup.host),
      place_{setup.rank, setup.size},
      shared_(std::make_shared<Shared>(parts.library, host_)) {}

// --- how the ranks come together

Result<std::unique_ptr<Communicator>> Communicator::open(const Parts& parts, const Setup& setup) {
  if (setup.hint_count != 0)
    return make_error(Code::invalid_argument, "backend oneccl has no hints, and {} is given",
                      setup.hints[0].name);
  const Deadline deadline = deadline_of(setup.meeting_timeout_ns);
  std::unique_ptr<Communicator> made(new Communicator(parts, setup));
  HEADRACE_TRY(id, made->meet(deadline));
  HEADRACE_TRY_VOID(made->connect(id, deadline));
  return made;
}

Result<UniqueId> Communicator::meet(const Deadline& deadline) const {
  if (place_.size == 1) return make_id(deadline);
  HEADRACE_TRY_VOID(host_.set(process_key(place_.rank), parts_.process));
  if (place_.rank != 0) {
    const auto answer = host_.wait_for("unique_id", deadline, "rank 0 has not given the unique id");
    if (!answer) return answer.error();
    return id_in(*answer);
  }
  auto id = make_id(deadline);
  if (id) {
    HEADRACE_TRY_VOID(host_.set("unique_id", is_id + std::string(id->bytes, sizeof id->bytes)));
    return id;
  }
  HEADRACE_TRY_VOID(host_.set("unique_id", is_error + id.error().message));
  std::this_thread::sleep_for(refusal_stays);
  return id;
}

Result<UniqueId> Communicator::make_id(const Deadline& deadline) const {
  std::map<std::string, int> rank_of{{parts_.process, 0}};
  for (int rank = 1; rank < place_.size; ++rank) {
    const std::string missing = fmt::format("rank {} has not come", rank);
    HEADRACE_TRY(process, host_.wait_for(process_key(rank), deadline, missing));
    const auto [at, is_new] = rank_of.emplace(process, rank);
    if (!is_new)
      return make_error(Code::not_supported,
                        "ranks {} and {} are in one process, and oneCCL needs a process for each rank: start "
                        "processes, or use backend host",
                        at->second, rank);
  }
  UniqueId id{};
  const Outcome outcome = parts_.library.table.get_unique_id(&id);
  if (outcome != Outcome::success) return library_error(parts_.library, outcome, "make the unique id");
  return id;
}

Result<void> Communicator::connect(const UniqueId& id, const Deadline& deadline) {
  HEADRACE_TRY(lane, lane_of(HEADRACE_COMM_BARRIER, -1));
  lane->add([shared = shared_, id, place = place_] {
    Comm comm = nullptr;
    const Outcome outcome =
        shared->library.table.comm_init_rank(&comm, static_cast<std::size_t>(place.size), id, place.rank);
    const std::scoped_lock lock(shared->mutex);
    shared->comm = comm;
    shared->joined = outcome;
    shared->changed.notify_all();
  });
  std::unique_lock lock(shared_->mutex);
  while (!shared_->joined && !deadline.expired()) shared_->changed.wait_for(lock, 10ms);
  if (!shared_->joined) return make_error(Code::timed_out, "another rank has not joined in time");
  if (*shared_->joined != Outcome::success) {
    shared_->comm = nullptr;
    return library_error(parts_.library, *shared_->joined, "join the other ranks");
  }
  return {};
}

// --- calls

Result<Communicator::Lane*> Communicator::lane_of(std::int32_t operation, std::int32_t peer) {
  std::pair<std::int32_t, std::int32_t> key(HEADRACE_COMM_BARRIER, -1);
  if (moves_message(operation)) key = {operation, peer};
  const std::scoped_lock lock(lanes_mutex_);
  std::unique_ptr<Lane>& lane = lanes_[key];
  if (!lane) {
    HEADRACE_TRY(started, Lane::start(shared_));
    lane = std::move(started);
  }
  return lane.get();
}

Result<bool> Communicator::issue(const Call& call, std::uint64_t work) {
  HEADRACE_TRY(reduction, check_call(call));
  HEADRACE_TRY(lane, lane_of(call.operation, call.peer));
  auto staged = std::make_shared<StagedCall>(call, reduction, place_);
  {
    const std::scoped_lock lock(shared_->mutex);
    if (shared_->over) return make_error(Code::canceled, "the communicator has ended");
    shared_->works.insert(work);
  }
  lane->add([shared = shared_, staged, work, comm = shared_->comm] {
    {
      const std::scoped_lock lock(shared->mutex);
      if (shared->over) return;
    }
    const Outcome outcome = staged->run(shared->library.table, comm);
    shared->end(work, *staged, outcome);
  });
  return false;
}

// --- ends

/// The library cannot tell the other ranks: they are late, and end by their time limits.
void Communicator::abort() {
  const std::scoped_lock lock(shared_->mutex);
  shared_->over = true;
  for (const std::uint64_t work : shared_->works)
    host_.end(work, make_error(Code::canceled, "the communicator has ended"));
  shared_->works.clear();
}

Communicator::~Communicator() {
  lanes_.clear();
  std::unique_lock lock(shared_->mutex);
  shared_->over = true;
  const bool quiet = shared_->changed.wait_for(lock, longest_leave, [this] { return shared_->threads == 0; });
  if (quiet && shared_->comm != nullptr) shared_->library.table.comm_destroy(shared_->comm);
}

}  // namespace headrace::oneccl
