// SPDX-License-Identifier: Apache-2.0
// A backend whose ranks are threads of one process: all_reduce (sum of int32), broadcast, barrier, send and
// recv. Ranks meet in the host's store, where rank 0 leaves the address of what they share. Each call is done
// by the rank that comes last, which ends the works of all.
#include <headrace/plugin/comm_v1.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

std::int32_t refuse(headrace_text_v1* why, std::int32_t code, std::string_view text) {
  why->length = std::min(text.size(), why->capacity);
  text.copy(why->data, why->length);
  return code;
}

/// What one rank gave to a call.
struct Given {
  const headrace_comm_host_v1* host = nullptr;
  std::uint64_t work = 0;
  headrace_comm_elements_v1 input{}, output{};

  void end(std::int32_t code = HEADRACE_OK, std::string_view text = {}, int source = -1) const {
    host->end(host->context, work, code, text.data(), text.size(), source);
  }
};

/// A call of all ranks.
struct Meeting {
  std::int32_t operation = 0, root = 0;
  std::vector<Given> given;
};

struct Message {
  int source, destination;
  std::uint32_t tag;
  Given given;
};

std::size_t bytes_of(const headrace_comm_elements_v1& elements) {
  return elements.count * sizeof(std::int32_t);
}

/// What the ranks of a communicator share.
class Group {
 public:
  explicit Group(int size) : ranks_(static_cast<std::size_t>(size)) {}

  void join(int rank, const headrace_comm_host_v1* host) {
    const std::scoped_lock lock(mutex_);
    ranks_[static_cast<std::size_t>(rank)] = host;
  }
  void leave(int rank) { join(rank, nullptr); }

  std::int32_t collective(const headrace_comm_call_v1& call, Given given, headrace_text_v1* why) {
    const std::scoped_lock lock(mutex_);  // so that no rank closes while it is told of an end
    if (ended_) return refuse(why, HEADRACE_CANCELED, "it has ended");
    Meeting& meeting = meetings_[call.number];
    meeting.operation = call.operation;
    meeting.root = call.peer;
    meeting.given.push_back(given);
    if (meeting.given.size() < ranks_.size()) return HEADRACE_COMM_BEGUN;
    run(meeting);
    for (const Given& one : meeting.given) one.end();
    meetings_.erase(call.number);
    return HEADRACE_COMM_BEGUN;
  }

  void message(const Message& mine, bool is_send) {
    const std::scoped_lock lock(mutex_);
    std::deque<Message>& others = is_send ? receives_ : sends_;
    const auto fits = [&](const Message& other) {
      const Message &to = is_send ? other : mine, &from = is_send ? mine : other;
      return to.destination == from.destination && to.tag == from.tag &&
             (to.source == -1 || to.source == from.source);
    };
    const auto at = std::find_if(others.begin(), others.end(), fits);
    if (at == others.end()) return (is_send ? sends_ : receives_).push_back(mine);
    const Message other = *at;
    others.erase(at);
    const Message &to = is_send ? other : mine, &from = is_send ? mine : other;
    if (from.given.input.count > 0)
      std::memcpy(to.given.output.data, from.given.input.data, bytes_of(from.given.input));
    from.given.end();
    to.given.end(HEADRACE_OK, {}, from.source);
  }

  void abort(std::string_view reason) {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(ended_, true)) return;
    for (const auto* host : ranks_)
      if (host != nullptr) host->ended(host->context, HEADRACE_CANCELED, reason.data(), reason.size());
    for (const auto& [number, meeting] : std::exchange(meetings_, {}))
      for (const Given& one : meeting.given) one.end(HEADRACE_CANCELED, reason);
    for (auto* list : {&sends_, &receives_})
      for (const Message& one : std::exchange(*list, {})) one.given.end(HEADRACE_CANCELED, reason);
  }

 private:
  void run(Meeting& meeting) {
    if (meeting.operation == HEADRACE_COMM_BARRIER) return;
    const std::size_t count = meeting.given.front().input.count;
    std::vector<std::int32_t> result(count);
    if (meeting.operation == HEADRACE_COMM_BROADCAST) {
      for (const Given& one : meeting.given)
        if (one.host == ranks_[static_cast<std::size_t>(meeting.root)])
          std::copy_n(static_cast<const std::int32_t*>(one.input.data), count, result.begin());
    } else {
      for (const Given& one : meeting.given)
        for (std::size_t i = 0; i < count; ++i)
          result[i] += static_cast<const std::int32_t*>(one.input.data)[i];
    }
    for (const Given& one : meeting.given)
      std::copy_n(result.begin(), count, static_cast<std::int32_t*>(one.output.data));
  }

  std::mutex mutex_;
  std::vector<const headrace_comm_host_v1*> ranks_;
  std::map<std::uint64_t, Meeting> meetings_;
  std::deque<Message> sends_, receives_;
  bool ended_ = false;
};

struct Comm {
  std::shared_ptr<Group> group;
  const headrace_comm_host_v1* host;
  int rank;
};

void append(void* context, const void* bytes, std::size_t length) {
  static_cast<std::string*>(context)->append(static_cast<const char*>(bytes), length);
}

/// The group that rank 0 has made: its address is the value of a key. Rank 0 keeps it until all have joined.
std::int32_t find_group(const headrace_comm_setup_v1& setup, std::shared_ptr<Group>& group,
                        headrace_text_v1* why) {
  const headrace_comm_host_v1& host = *setup.host;
  if (setup.rank == 0) {
    group = std::make_shared<Group>(setup.size);
    if (setup.size == 1) return HEADRACE_OK;
    const auto address = reinterpret_cast<std::uintptr_t>(&group);
    if (const auto code = host.set(host.context, "group", &address, sizeof address, why)) return code;
  }
  std::string found;
  const headrace_sink_v1 sink{sizeof sink, &found, append};
  while (setup.rank != 0) {
    const std::int32_t code = host.get(host.context, "group", &sink, why);
    if (code == HEADRACE_OK) break;
    if (code != HEADRACE_NOT_FOUND) return code;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (setup.rank != 0) {
    std::uintptr_t address = 0;
    std::memcpy(&address, found.data(), sizeof address);
    group = *reinterpret_cast<const std::shared_ptr<Group>*>(address);
    return host.set(host.context, ("joined " + std::to_string(setup.rank)).c_str(), "1", 1, why);
  }
  for (int rank = 1; rank < setup.size; ++rank) {
    const std::string key = "joined " + std::to_string(rank);
    std::int32_t code = HEADRACE_NOT_FOUND;
    while ((code = host.get(host.context, key.c_str(), &sink, why)) == HEADRACE_NOT_FOUND)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (code != HEADRACE_OK) return code;
  }
  return HEADRACE_OK;
}

std::int32_t open(void*, const headrace_comm_setup_v1* setup, void** comm, headrace_text_v1* why) {
  if (setup->hint_count > 0) return refuse(why, HEADRACE_INVALID_ARGUMENT, "it has no hints");
  std::shared_ptr<Group> group;
  if (const auto code = find_group(*setup, group, why)) return code;
  group->join(setup->rank, setup->host);
  *comm = new Comm{std::move(group), setup->host, setup->rank};
  return HEADRACE_OK;
}

void close(void* handle) {
  const std::unique_ptr<Comm> comm(static_cast<Comm*>(handle));
  comm->group->leave(comm->rank);
}

std::int32_t issue(void* handle, const headrace_comm_call_v1* call, std::uint64_t work,
                   headrace_text_v1* why) {
  const Comm& comm = *static_cast<Comm*>(handle);
  Given given{comm.host, work, {}, {}};
  if (call->input_count > 0) given.input = call->inputs[0];
  if (call->output_count > 0) given.output = call->outputs[0];
  for (const auto* one : {&given.input, &given.output})
    if (one->data != nullptr && one->dtype != HEADRACE_INT32)
      return refuse(why, HEADRACE_NOT_SUPPORTED, "it moves int32 alone");
  switch (call->operation) {
    case HEADRACE_COMM_ALL_REDUCE:
      if (call->reduction != HEADRACE_COMM_SUM) return refuse(why, HEADRACE_NOT_SUPPORTED, "it only adds");
      [[fallthrough]];
    case HEADRACE_COMM_BROADCAST:
    case HEADRACE_COMM_BARRIER:
      return comm.group->collective(*call, given, why);
    case HEADRACE_COMM_SEND:
      comm.group->message({comm.rank, call->peer, call->tag, given}, true);
      return HEADRACE_COMM_BEGUN;
    case HEADRACE_COMM_RECV:
      comm.group->message({call->peer, comm.rank, call->tag, given}, false);
      return HEADRACE_COMM_BEGUN;
    default:
      return refuse(why, HEADRACE_NOT_SUPPORTED, "it has no such operation");
  }
}

void abort(void* handle, const char* reason, std::size_t length) {
  static_cast<Comm*>(handle)->group->abort({reason, length});
}

std::int32_t split(void*, const std::int32_t*, std::uint64_t count, const headrace_comm_setup_v1* setup,
                   void** part, headrace_text_v1* why) {
  return count == 0 ? static_cast<std::int32_t>(HEADRACE_OK) : open(nullptr, setup, part, why);
}

headrace_comm_backend_v1 threads_table() {
  headrace_comm_backend_v1 table{};
  table.struct_size = sizeof table;
  table.abi_major = HEADRACE_COMM_ABI_MAJOR;
  table.abi_minor = HEADRACE_COMM_ABI_MINOR;
  table.name = "threads";
  table.version = "1.2";
  table.devices = HEADRACE_COMM_MOVES_HOST_MEMORY;
  table.open = open;
  table.close = close;
  table.issue = issue;
  table.abort = abort;
  table.split = split;
  return table;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const headrace_comm_backend_v1* headrace_comm_v1_table() {
  static const headrace_comm_backend_v1 table = threads_table();
  return &table;
}
