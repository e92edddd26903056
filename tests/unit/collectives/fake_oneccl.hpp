// SPDX-License-Identifier: Apache-2.0
// oneCCL's functions for ranks that are threads of this process, and the backend over them.
#pragma once

#include "ranks.hpp"

#include "oneccl/backend.hpp"

#include <headrace/comm_backend.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headrace::test::fake_ccl {

using oneccl::DataType;
using oneccl::Outcome;

/// What one rank gives to an operation.
struct Part {
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;
  const std::size_t* sent = nullptr;
  const std::size_t* received = nullptr;
};
using Parts = std::span<const Part>;

/// The ranks of one communicator. An operation runs when all of them have given their part.
class World {
 public:
  explicit World(std::size_t size) : parts_(size) {}

  Outcome together(std::size_t rank, const Part& part, const std::function<void(Parts)>& run) {
    std::unique_lock lock(mutex_);
    const std::uint64_t round = round_;
    parts_[rank] = part;
    if (++come_ == parts_.size()) {
      run(parts_);
      come_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    return Outcome::success;
  }
  Outcome send(std::size_t from, std::size_t to, const void* data, std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    messages_[{from, to}].emplace_back(static_cast<const char*>(data), bytes);
    changed_.notify_all();
    return Outcome::success;
  }
  Outcome recv(std::size_t from, std::size_t to, void* data, std::size_t bytes) {
    std::unique_lock lock(mutex_);
    auto& messages = messages_[{from, to}];
    changed_.wait(lock, [&] { return !messages.empty(); });
    if (messages.front().size() != bytes) return Outcome::error;
    std::memcpy(data, messages.front().data(), bytes);
    messages.pop_front();
    return Outcome::success;
  }
  [[nodiscard]] std::size_t size() const { return parts_.size(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Part> parts_;
  std::size_t come_ = 0;
  std::uint64_t round_ = 0;
  std::map<std::pair<std::size_t, std::size_t>, std::deque<std::string>> messages_;
};

/// A communicator of the library.
struct Rank {
  std::shared_ptr<World> world;
  std::size_t rank;
};
inline Rank& of(oneccl::Comm comm) { return *reinterpret_cast<Rank*>(comm); }

/// The worlds by their unique ids, and their ranks: of those that a caller left behind, too.
class Worlds {
 public:
  static Worlds& all() {
    static auto& the = *new Worlds;  // threads that were left behind use it to the end
    return the;
  }
  Rank* join(std::uint64_t id, std::size_t size, std::size_t rank) {
    const std::scoped_lock lock(mutex_);
    auto& world = worlds_[id];
    if (!world) world = std::make_shared<World>(size);
    return &ranks_.emplace_back(Rank{world, rank});
  }
  std::uint64_t next() {
    const std::scoped_lock lock(mutex_);
    return ++last_;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<World>> worlds_;
  std::deque<Rank> ranks_;
  std::uint64_t last_ = 0;
};

template <class T>
T reduced(T left, T right, oneccl::ReduceOp op) {
  switch (op) {
    case oneccl::ReduceOp::sum:
      return static_cast<T>(left + right);
    case oneccl::ReduceOp::product:
      return static_cast<T>(left * right);
    case oneccl::ReduceOp::max:
      return std::max(left, right);
    default:
      return std::min(left, right);
  }
}

/// Element by element of all parts, from number `first` on.
template <class T>
void reduce_as(Parts parts, void* to, std::size_t first, std::size_t count, oneccl::ReduceOp op) {
  for (std::size_t i = 0; i < count; ++i) {
    T value = static_cast<const T*>(parts[0].from)[first + i];
    for (const Part& part : parts.subspan(1))
      value = reduced(value, static_cast<const T*>(part.from)[first + i], op);
    static_cast<T*>(to)[i] = value;
  }
}
inline void reduce_into(Parts parts, void* to, std::size_t first, std::size_t count, DataType type,
                        oneccl::ReduceOp op) {
  switch (type) {
    case DataType::int8:
      return reduce_as<std::int8_t>(parts, to, first, count, op);
    case DataType::uint8:
      return reduce_as<std::uint8_t>(parts, to, first, count, op);
    case DataType::int32:
      return reduce_as<std::int32_t>(parts, to, first, count, op);
    case DataType::uint32:
      return reduce_as<std::uint32_t>(parts, to, first, count, op);
    case DataType::int64:
      return reduce_as<std::int64_t>(parts, to, first, count, op);
    case DataType::uint64:
      return reduce_as<std::uint64_t>(parts, to, first, count, op);
    case DataType::float32:
      return reduce_as<float>(parts, to, first, count, op);
    case DataType::float64:
      return reduce_as<double>(parts, to, first, count, op);
    default:
      ADD_FAILURE() << "the fake does not reduce type " << static_cast<int>(type);
  }
}
inline std::byte* at(void* data, std::size_t offset) { return static_cast<std::byte*>(data) + offset; }
inline const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

inline oneccl::Table table() {
  using oneccl::Comm;
  oneccl::Table table;
  table.get_last_error = [](Comm) { return "an error of the fake"; };
  table.get_unique_id = [](oneccl::UniqueId* id) {
    const std::uint64_t number = Worlds::all().next();
    std::memcpy(id->bytes, &number, sizeof number);
    return Outcome::success;
  };
  table.comm_init_rank = [](Comm* comm, std::size_t size, oneccl::UniqueId id, int rank) {
    std::uint64_t number = 0;
    std::memcpy(&number, id.bytes, sizeof number);
    *comm = reinterpret_cast<Comm>(Worlds::all().join(number, size, static_cast<std::size_t>(rank)));
    return of(*comm).world->together(of(*comm).rank, {}, [](Parts) {});
  };
  table.comm_destroy = [](Comm) { return Outcome::success; };
  table.all_reduce = [](void* from, void* to, std::size_t count, DataType type, oneccl::ReduceOp op,
                        Comm comm, void*) {
    return of(comm).world->together(of(comm).rank, {from, to, count}, [&](Parts parts) {
      for (const Part& part : parts) reduce_into(parts, part.to, 0, count, type, op);
    });
  };
  table.broadcast = [](const void* from, void* to, std::size_t bytes, DataType, int root, Comm comm, void*) {
    return of(comm).world->together(of(comm).rank, {from, to, bytes}, [&](Parts parts) {
      const void* const source = parts[static_cast<std::size_t>(root)].from;
      for (const Part& part : parts) std::memmove(part.to, source, bytes);
    });
  };
  table.reduce = [](const void* from, void* to, std::size_t count, DataType type, oneccl::ReduceOp op,
                    int root, Comm comm, void*) {
    return of(comm).world->together(of(comm).rank, {from, to, count}, [&](Parts parts) {
      reduce_into(parts, parts[static_cast<std::size_t>(root)].to, 0, count, type, op);
    });
  };
  table.all_gather = [](const void* from, void* to, std::size_t bytes, DataType, Comm comm, void*) {
    return of(comm).world->together(of(comm).rank, {from, to, bytes}, [&](Parts parts) {
      for (const Part& part : parts)
        for (std::size_t rank = 0; rank < parts.size(); ++rank)
          std::memcpy(at(part.to, rank * bytes), parts[rank].from, bytes);
    });
  };
  table.reduce_scatter = [](const void* from, void* to, std::size_t count, DataType type, oneccl::ReduceOp op,
                            Comm comm, void*) {
    return of(comm).world->together(of(comm).rank, {from, to, count}, [&](Parts parts) {
      for (std::size_t rank = 0; rank < parts.size(); ++rank)
        reduce_into(parts, parts[rank].to, rank * count, count, type, op);
    });
  };
  table.all_to_all = [](const void* from, void* to, std::size_t bytes, DataType, Comm comm, void*) {
    return of(comm).world->together(of(comm).rank, {from, to, bytes}, [&](Parts parts) {
      for (std::size_t rank = 0; rank < parts.size(); ++rank)
        for (std::size_t other = 0; other < parts.size(); ++other)
          std::memcpy(at(parts[rank].to, other * bytes), at(parts[other].from, rank * bytes), bytes);
    });
  };
  table.all_to_all_v = [](const void* from, const std::size_t* sent, void* to, const std::size_t* received,
                          DataType, Comm comm, void*) {
    return of(comm).world->together(of(comm).rank, {from, to, 0, sent, received}, [&](Parts parts) {
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        std::size_t filled = 0;
        for (const Part& other : parts) {
          std::size_t skipped = 0;
          for (std::size_t before = 0; before < rank; ++before) skipped += other.sent[before];
          std::memcpy(at(parts[rank].to, filled), at(other.from, skipped), other.sent[rank]);
          filled += other.sent[rank];
        }
      }
    });
  };
  table.send = [](const void* from, std::size_t bytes, DataType, int peer, Comm comm, void*) {
    return of(comm).world->send(of(comm).rank, static_cast<std::size_t>(peer), from, bytes);
  };
  table.recv = [](void* to, std::size_t bytes, DataType, int peer, Comm comm, void*) {
    return of(comm).world->recv(static_cast<std::size_t>(peer), of(comm).rank, to, bytes);
  };
  return table;
}

/// The backend over the fake, registered once. `together`: as if all ranks were in one process.
inline std::string backend(bool together = false) {
  const auto made = [](const char* name, std::function<std::string()> process) {
    static std::deque<oneccl::Backend> all;
    oneccl::Backend& one =
        all.emplace_back(name, oneccl::Source{[] {
                                                return oneccl::Library{table(), "2022.2.0", "the fake"};
                                              },
                                              std::move(process)});
    const headrace_comm_backend_v1 its_table = must(one.table());
    must(register_comm_backend(&its_table));
    return std::string(name);
  };
  static const std::string apart = made("oneccl_fake", [] {
    static std::atomic<int> count{0};
    return std::to_string(++count);
  });
  static const std::string in_one = made("oneccl_together", [] { return std::string("one"); });
  return together ? in_one : apart;
}

}  // namespace headrace::test::fake_ccl
