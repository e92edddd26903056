// SPDX-License-Identifier: Apache-2.0
#include "nccl/operation.hpp"

#include "base/comm_calls.hpp"

#include <headrace/comm_call.hpp>

#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

namespace headrace::nccl {
namespace {

using Elements = headrace_comm_elements_v1;

std::size_t bytes_of(const Elements& elements) {
  return elements.count * element_bytes(static_cast<DType>(elements.dtype));
}
std::byte* at(void* data, std::size_t offset) { return static_cast<std::byte*>(data) + offset; }

/// One call. Elements that are only moved are bytes, so every type is moved.
class Queued {
 public:
  Queued(const Place& place, const headrace_comm_call_v1& call, const Reduction& reduction)
      : place_(place), table_(place.library.table), call_(call), reduction_(reduction) {}

  Outcome run();

 private:
  [[nodiscard]] const Elements& input(std::size_t index = 0) const { return call_.inputs[index]; }
  [[nodiscard]] const Elements& output(std::size_t index = 0) const { return call_.outputs[index]; }
  [[nodiscard]] bool is_root() const { return call_.peer == place_.rank; }
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(place_.size); }
  [[nodiscard]] std::size_t numbers_of(const Elements& elements) const {
    return elements.count * reduction_.parts;
  }

  Outcome send(const void* from, std::size_t bytes, int peer) {
    return bytes == 0 ? Outcome::success
                      : table_.send(from, bytes, DataType::int8, peer, place_.comm, place_.stream);
  }
  Outcome recv(void* to, std::size_t bytes, int peer) {
    return bytes == 0 ? Outcome::success
                      : table_.recv(to, bytes, DataType::int8, peer, place_.comm, place_.stream);
  }
  /// Calls a function of the library, or that of the same operation that takes a configuration.
  template <class Plain, class Configured, class... Args>
  Outcome collective(Plain plain, Configured configured, Args... args) const {
    if (place_.config == nullptr) return plain(args..., place_.comm, place_.stream);
    return configured(args..., place_.comm, place_.stream, place_.config);
  }
  Outcome broadcast(const void* from, void* to, std::size_t bytes, int root) {
    return collective(table_.broadcast, table_.broadcast_config, from, to, bytes, DataType::int8, root);
  }
  Outcome reduce_to(int root, const void* from, void* to, std::size_t count) {
    return collective(table_.reduce, table_.reduce_config, from, to, count, reduction_.type, reduction_.op,
                      root);
  }

  /// Calls each(rank) for all ranks as one operation.
  template <class Each>
  Outcome for_each_rank(const Each& each) {
    if (const Outcome started = table_.group_start(); !is_fine(started)) return started;
    Outcome first = Outcome::success;
    for (int rank = 0; rank < place_.size && is_fine(first); ++rank) first = each(rank);
    const Outcome ended = table_.group_end();
    return is_fine(first) ? ended : first;
  }

  Outcome all_reduce();
  Outcome reduce();
  Outcome reduce_scatter();
  Outcome reduce_scatter_single();
  Outcome all_gather();
  Outcome all_to_all();
  Outcome all_to_all_single();
  Outcome all_to_all_v_single();
  Outcome gather();
  Outcome gather_single();
  Outcome scatter();
  Outcome barrier();

  const Place& place_;
  const Table& table_;
  const headrace_comm_call_v1& call_;
  const Reduction& reduction_;
};

Outcome Queued::all_reduce() {
  return collective(table_.all_reduce, table_.all_reduce_config, input().data, output().data,
                    numbers_of(input()), reduction_.type, reduction_.op);
}

Outcome Queued::reduce() { return reduce_to(call_.peer, input().data, output().data, numbers_of(input())); }

/// Counts may differ, and the lists lie anywhere.
Outcome Queued::reduce_scatter() {
  return for_each_rank([this](int rank) {
    const Elements& part = input(static_cast<std::size_t>(rank));
    return reduce_to(rank, part.data, rank == place_.rank ? output().data : nullptr, numbers_of(part));
  });
}

Outcome Queued::reduce_scatter_single() {
  return collective(table_.reduce_scatter, table_.reduce_scatter_config, input().data, output().data,
                    numbers_of(output()), reduction_.type, reduction_.op);
}

/// As broadcasts: whether lists happen to lie in a row differs from rank to rank, and all must call the same.
Outcome Queued::all_gather() {
  return for_each_rank([this](int rank) {
    const Elements& part = output(static_cast<std::size_t>(rank));
    return broadcast(rank == place_.rank ? input().data : part.data, part.data, bytes_of(part), rank);
  });
}

Outcome Queued::all_to_all() {
  return for_each_rank([this](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    const Outcome sent = send(input(index).data, bytes_of(input(index)), rank);
    return is_fine(sent) ? recv(output(index).data, bytes_of(output(index)), rank) : sent;
  });
}

Outcome Queued::all_to_all_single() {
  const std::size_t part = bytes_of(input()) / ranks();
  if (table_.all_to_all != nullptr)
    return collective(table_.all_to_all, table_.all_to_all_config, input().data, output().data, part,
                      DataType::int8);
  return for_each_rank([&](int rank) {
    const std::size_t offset = static_cast<std::size_t>(rank) * part;
    const Outcome sent = send(at(input().data, offset), part, rank);
    return is_fine(sent) ? recv(at(output().data, offset), part, rank) : sent;
  });
}

Outcome Queued::all_to_all_v_single() {
  const std::size_t width = element_bytes(static_cast<DType>(input().dtype));
  std::size_t sent_bytes = 0, received_bytes = 0;
  return for_each_rank([&](int rank) {
    const std::size_t out = call_.input_splits[rank] * width, in = call_.output_splits[rank] * width;
    Outcome outcome = send(at(input().data, sent_bytes), out, rank);
    if (is_fine(outcome)) outcome = recv(at(output().data, received_bytes), in, rank);
    sent_bytes += out;
    received_bytes += in;
    return outcome;
  });
}

Outcome Queued::gather() {
  return for_each_rank([this](int rank) {
    Outcome outcome = Outcome::success;
    if (rank == call_.peer) outcome = send(input().data, bytes_of(input()), rank);
    if (!is_root() || !is_fine(outcome)) return outcome;
    const Elements& part = output(static_cast<std::size_t>(rank));
    return recv(part.data, bytes_of(part), rank);
  });
}

Outcome Queued::gather_single() {
  const std::size_t part = bytes_of(input());
  void* const whole = is_root() ? output().data : nullptr;
  if (table_.gather != nullptr)
    return collective(table_.gather, table_.gather_config, input().data, whole, part, DataType::int8,
                      call_.peer);
  return for_each_rank([&](int rank) {
    Outcome outcome = Outcome::success;
    if (rank == call_.peer) outcome = send(input().data, part, rank);
    if (!is_root() || !is_fine(outcome)) return outcome;
    return recv(at(whole, static_cast<std::size_t>(rank) * part), part, rank);
  });
}

Outcome Queued::scatter() {
  return for_each_rank([this](int rank) {
    Outcome outcome = Outcome::success;
    if (is_root()) {
      const Elements& part = input(static_cast<std::size_t>(rank));
      outcome = send(part.data, bytes_of(part), rank);
    }
    if (rank != call_.peer || !is_fine(outcome)) return outcome;
    return recv(output().data, bytes_of(output()), rank);
  });
}

/// An all_reduce of one byte: NCCL has no barrier.
Outcome Queued::barrier() {
  return collective(table_.all_reduce, table_.all_reduce_config, place_.scratch, place_.scratch, 1,
                    DataType::uint8, ReduceOp::max);
}

Outcome Queued::run() {
  switch (call_.operation) {
    case HEADRACE_COMM_ALL_REDUCE:
      return all_reduce();
    case HEADRACE_COMM_BROADCAST:
      return broadcast(input().data, output().data, bytes_of(input()), call_.peer);
    case HEADRACE_COMM_REDUCE:
      return reduce();
    case HEADRACE_COMM_ALL_GATHER:
    case HEADRACE_COMM_ALL_GATHER_V:
      return all_gather();
    case HEADRACE_COMM_ALL_GATHER_SINGLE:
      return collective(table_.all_gather, table_.all_gather_config, input().data, output().data,
                        bytes_of(input()), DataType::int8);
    case HEADRACE_COMM_REDUCE_SCATTER:
    case HEADRACE_COMM_REDUCE_SCATTER_V:
      return reduce_scatter();
    case HEADRACE_COMM_REDUCE_SCATTER_SINGLE:
      return reduce_scatter_single();
    case HEADRACE_COMM_ALL_TO_ALL:
      return all_to_all();
    case HEADRACE_COMM_ALL_TO_ALL_SINGLE:
      return all_to_all_single();
    case HEADRACE_COMM_ALL_TO_ALL_V_SINGLE:
      return all_to_all_v_single();
    case HEADRACE_COMM_GATHER:
      return gather();
    case HEADRACE_COMM_GATHER_SINGLE:
      return gather_single();
    case HEADRACE_COMM_SCATTER:
      return scatter();
    case HEADRACE_COMM_BARRIER:
      return barrier();
    case HEADRACE_COMM_SEND:
      return send(input().data, bytes_of(input()), call_.peer);
    default:
      return recv(output().data, bytes_of(output()), call_.peer);
  }
}

/// Whether a function of the library that takes a configuration does it.
bool is_configured(int operation) {
  switch (operation) {
    case HEADRACE_COMM_ALL_TO_ALL:
    case HEADRACE_COMM_ALL_TO_ALL_V_SINGLE:
    case HEADRACE_COMM_GATHER:
    case HEADRACE_COMM_SCATTER:
    case HEADRACE_COMM_SEND:
    case HEADRACE_COMM_RECV:
      return false;
    default:
      return true;
  }
}

}  // namespace

Result<std::shared_ptr<const KeptConfig>> config_of(const Library& library,
                                                    const headrace_comm_call_v1& call) {
  if (call.hint_count == 0) return std::shared_ptr<const KeptConfig>();
  Hints hints;
  for (std::uint32_t i = 0; i < call.hint_count; ++i) hints[call.hints[i].name] = call.hints[i].value;
  HEADRACE_TRY(config, CallConfig::make(library, std::move(hints)));
  if (!is_configured(call.operation))
    return make_error(Code::not_supported, "{} is sends and receives, which take no hints, and {} is given",
                      comm_operation_name(static_cast<CommOperation>(call.operation)), call.hints[0].name);
  const auto kept = std::make_shared<KeptConfig>(KeptConfig{std::move(config), {}});
  kept->config = kept->hints.get();
  return std::shared_ptr<const KeptConfig>(kept);
}

Result<Reduction> check_call(const Library& library, const headrace_comm_call_v1& call) {
  if (call.operation < HEADRACE_COMM_ALL_REDUCE || call.operation > HEADRACE_COMM_RECV)
    return make_error(Code::not_supported, "NCCL has no {}",
                      comm_operation_name(static_cast<CommOperation>(call.operation)));
  if (is_message(static_cast<CommOperation>(call.operation)))
    HEADRACE_TRY_VOID(comm_border::check_message(call, "NCCL"));
  if (!comm_border::reduces(call.operation)) return Reduction{};
  const Elements& elements = call.input_count != 0 ? call.inputs[0] : call.outputs[0];
  return reduction_of(library, elements.dtype, call.reduction);
}

Outcome run_call(const Place& place, const headrace_comm_call_v1& call, const Reduction& reduction) {
  return Queued(place, call, reduction).run();
}

}  // namespace headrace::nccl
