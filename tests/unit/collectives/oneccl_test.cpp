// SPDX-License-Identifier: Apache-2.0
// The backend oneccl: over a fake whose ranks are threads, and over the library, where it is installed, whose
// ranks are processes. Every operation gives the bytes that backend host gives.
#include "fake_oneccl.hpp"
#include "rank_processes.hpp"

#include "base/options.hpp"
#include "oneccl/backend.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <future>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace headrace::test {
namespace on_oneccl {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;
using Kind = ReduceOp::Kind;
using Bytes = std::vector<std::byte>;

/// Small whole numbers, whose sums and products every type has.
Bytes elements_of(DType dtype, std::size_t count, int seed) {
  Bytes bytes(count * element_bytes(dtype));
  const auto fill = [&]<class T>(T) {
    for (std::size_t i = 0; i < count; ++i) {
      const T value = static_cast<T>(1 + (i * 7 + static_cast<std::size_t>(seed)) % 3);
      std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
    }
  };
  const auto fill_halves = [&](std::array<std::uint16_t, 3> one_two_three) {
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(bytes.data() + 2 * i, &one_two_three[(i * 7 + static_cast<std::size_t>(seed)) % 3], 2);
  };
  switch (dtype) {
    case DType::float32:
      fill(float());
      break;
    case DType::float64:
      fill(double());
      break;
    case DType::float16:
      fill_halves({0x3c00, 0x4000, 0x4200});
      break;
    case DType::bfloat16:
      fill_halves({0x3f80, 0x4000, 0x4040});
      break;
    case DType::complex64:
      count *= 2;
      fill(float());
      break;
    case DType::complex128:
      count *= 2;
      fill(double());
      break;
    case DType::int32:
    case DType::uint32:
      fill(std::int32_t());
      break;
    case DType::int64:
    case DType::uint64:
      fill(std::int64_t());
      break;
    case DType::boolean:
      for (std::size_t i = 0; i < count; ++i) bytes[i] = std::byte((i + static_cast<std::size_t>(seed)) % 2);
      break;
    default:
      fill(std::int8_t());
      break;
  }
  return bytes;
}

/// The elements of one rank's call, and the same cut into parts.
class Row {
 public:
  Row(DType dtype, std::vector<std::size_t> counts, int seed) : dtype_(dtype), counts_(std::move(counts)) {
    bytes_ = elements_of(dtype, std::accumulate(counts_.begin(), counts_.end(), 0UL), seed);
  }
  Elements all() { return {bytes_.data(), bytes_.size() / element_bytes(dtype_), dtype_}; }
  template <class Part = Elements>
  std::vector<Part> parts() {
    std::vector<Part> list;
    std::byte* at = bytes_.data();
    for (const std::size_t count : counts_) {
      list.push_back(Part(at, count, dtype_));
      at += count * element_bytes(dtype_);
    }
    return list;
  }
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  DType dtype_;
  std::vector<std::size_t> counts_;
  Bytes bytes_;
};

/// Counts that differ, one of them 0.
std::vector<std::size_t> uneven(int size) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < size; ++rank) counts.push_back(static_cast<std::size_t>(rank * 13));
  return counts;
}
std::vector<std::size_t> even(int size, std::size_t count) {
  return std::vector<std::size_t>(static_cast<std::size_t>(size), count);
}

using Operation = std::function<Bytes(Comm&)>;
struct NamedOperation {
  std::string name;
  Operation run;
};

Bytes result_of(const Result<Work>& work, const Row& output) {
  ok(work);
  return output.bytes();
}

/// Operations that move elements, the last rank being the root.
std::vector<NamedOperation> moves(DType dtype, std::size_t count) {
  const auto counts_of = [](Comm& comm) { return uneven(comm.size()); };
  const auto mine = [=](Comm& comm) { return counts_of(comm)[static_cast<std::size_t>(comm.rank())]; };
  const auto root = [](Comm& comm) { return comm.size() - 1; };
  const auto at_root = [=](Comm& comm, auto list) {
    if (comm.rank() != root(comm)) list.clear();
    return list;
  };
  return {
      {"broadcast",
       [=](Comm& comm) {
         Row row(dtype, {count}, comm.rank());
         return result_of(comm.broadcast(row.all(), root(comm)), row);
       }},
      {"all_gather",
       [=](Comm& comm) {
         Row in(dtype, {count}, comm.rank()), out(dtype, even(comm.size(), count), 9);
         return result_of(comm.all_gather(out.parts(), in.all()), out);
       }},
      {"all_gather_v",
       [=](Comm& comm) {
         Row in(dtype, {mine(comm)}, comm.rank()), out(dtype, counts_of(comm), 9);
         return result_of(comm.all_gather_v(out.parts(), in.all()), out);
       }},
      {"all_gather_single",
       [=](Comm& comm) {
         Row in(dtype, {count}, comm.rank()), out(dtype, even(comm.size(), count), 9);
         return result_of(comm.all_gather_single(out.all(), in.all()), out);
       }},
      {"all_to_all",
       [=](Comm& comm) {
         Row in(dtype, counts_of(comm), comm.rank()), out(dtype, even(comm.size(), mine(comm)), 9);
         return result_of(comm.all_to_all(out.parts(), in.parts<ConstElements>()), out);
       }},
      {"all_to_all_single",
       [=](Comm& comm) {
         Row in(dtype, even(comm.size(), count), comm.rank()), out(dtype, even(comm.size(), count), 9);
         return result_of(comm.all_to_all_single(out.all(), in.all()), out);
       }},
      {"all_to_all_v_single",
       [=](Comm& comm) {
         Row in(dtype, counts_of(comm), comm.rank()), out(dtype, even(comm.size(), mine(comm)), 9);
         return result_of(
             comm.all_to_all_v_single(out.all(), in.all(), even(comm.size(), mine(comm)), counts_of(comm)),
             out);
       }},
      {"gather",
       [=](Comm& comm) {
         Row in(dtype, {count}, comm.rank()), out(dtype, even(comm.size(), count), 9);
         return result_of(comm.gather(at_root(comm, out.parts()), in.all(), root(comm)), out);
       }},
      {"gather_single",
       [=](Comm& comm) {
         Row in(dtype, {count}, comm.rank()), out(dtype, even(comm.size(), count), 9);
         return result_of(comm.gather_single(out.all(), in.all(), root(comm)), out);
       }},
      {"scatter",
       [=](Comm& comm) {
         Row in(dtype, even(comm.size(), count), comm.rank()), out(dtype, {count}, 9);
         return result_of(comm.scatter(out.all(), at_root(comm, in.parts<ConstElements>()), root(comm)), out);
       }},
      {"messages in a ring",
       [=](Comm& comm) {
         Row in(dtype, {count}, comm.rank()), out(dtype, {count}, 9);
         MessageOptions async;
         async.async = true;
         auto sent = must(comm.send(in.all(), (comm.rank() + 1) % comm.size(), async));
         ok(comm.recv(out.all(), (comm.rank() + comm.size() - 1) % comm.size()));
         must(sent.wait());
         return out.bytes();
       }},
  };
}

std::vector<NamedOperation> reductions(DType dtype, std::size_t count, Kind kind) {
  return {
      {"all_reduce",
       [=](Comm& comm) {
         Row in(dtype, {count}, comm.rank()), out(dtype, {count}, 9);
         return result_of(comm.all_reduce(in.all(), out.all(), kind), out);
       }},
      {"all_reduce in place",
       [=](Comm& comm) {
         Row row(dtype, {count}, comm.rank());
         return result_of(comm.all_reduce(row.all(), kind), row);
       }},
      {"reduce",
       [=](Comm& comm) {
         Row row(dtype, {count}, comm.rank());
         return result_of(comm.reduce(row.all(), comm.size() - 1, kind), row);
       }},
      {"reduce_scatter",
       [=](Comm& comm) {
         Row in(dtype, even(comm.size(), count), comm.rank()), out(dtype, {count}, 9);
         return result_of(comm.reduce_scatter(out.all(), in.parts<ConstElements>(), kind), out);
       }},
      {"reduce_scatter_v",
       [=](Comm& comm) {
         const auto counts = uneven(comm.size());
         Row in(dtype, counts, comm.rank()), out(dtype, {counts[static_cast<std::size_t>(comm.rank())]}, 9);
         return result_of(comm.reduce_scatter_v(out.all(), in.parts<ConstElements>(), kind), out);
       }},
      {"reduce_scatter_single",
       [=](Comm& comm) {
         Row in(dtype, even(comm.size(), count), comm.rank()), out(dtype, {count}, 9);
         return result_of(comm.reduce_scatter_single(out.all(), in.all(), kind), out);
       }},
  };
}

/// The first operation whose bytes are not those of host.
std::string compare(Comm& host, Comm& tried, const std::vector<NamedOperation>& all, DType dtype,
                    std::size_t count) {
  for (const NamedOperation& one : all) {
    const Bytes expected = one.run(host);
    if (one.run(tried) != expected)
      return fmt::format("{} of {} {} differs", one.name, count, dtype_name(dtype));
  }
  return {};
}

const std::vector<DType> wide_types{DType::int8,    DType::uint8,     DType::int32,     DType::uint32,
                                    DType::int64,   DType::uint64,    DType::float32,   DType::float64,
                                    DType::boolean, DType::complex64, DType::complex128};

std::string compare_all(Comm& host, Comm& tried, const std::vector<DType>& types) {
  for (const std::size_t count : {0UL, 1001UL})
    for (const DType dtype : types) {
      if (std::string wrong = compare(host, tried, moves(dtype, count), dtype, count); !wrong.empty())
        return wrong;
      const bool is_pair = dtype == DType::complex64 || dtype == DType::complex128;
      for (const Kind kind : {Kind::sum, Kind::product, Kind::min, Kind::max}) {
        if (is_pair && kind != Kind::sum) continue;
        std::string wrong = compare(host, tried, reductions(dtype, count, kind), dtype, count);
        if (!wrong.empty()) return wrong + " with " + std::string(reduce_op_name(kind));
      }
    }
  ok(tried.barrier());
  return "all right";
}

/// Opens the backend for each rank on a thread, and host beside it.
void with_fake(int size, const std::function<void(Comm& host, Comm& tried)>& body) {
  const std::string name = unique_comm_name();
  on_threads(size, [&](int rank) {
    CommOptions options = rank_options(rank, size, name);
    Comm host = must(Comm::open(options));
    options.backend = fake_ccl::backend();
    options.hints.clear();
    Comm tried = must(Comm::open(options));
    body(host, tried);
  });
}

TEST(OnecclFake, every_operation_gives_the_bytes_of_host) {
  for (const int size : {1, 2, 3})
    with_fake(size, [&](Comm& host, Comm& tried) {
      // Of one rank there are no messages: oneCCL has none to itself.
      if (size == 1) {
        EXPECT_EQ(compare(host, tried, reductions(DType::int32, 10, Kind::sum), DType::int32, 10), "");
        return;
      }
      const std::vector<DType> some_types{DType::int8, DType::float64, DType::boolean, DType::complex64};
      EXPECT_EQ(compare_all(host, tried, some_types), "all right");
    });
}

TEST(OnecclFake, asynchronous_calls_run_in_their_order) {
  with_fake(2, [](Comm&, Comm& comm) {
    std::vector<std::vector<float>> data(50, std::vector<float>(100, static_cast<float>(comm.rank() + 1)));
    OpOptions async;
    async.async = true;
    std::vector<Work> works;
    for (auto& one : data) works.push_back(must(comm.all_reduce(one, Kind::sum, async)));
    for (Work& work : works) must(work.wait());
    for (const auto& one : data) EXPECT_EQ(one, std::vector<float>(100, 3));
  });
}

TEST(OnecclFake, parts_work_on_their_own) {
  with_fake(3, [](Comm&, Comm& comm) {
    const std::vector<int> group = comm.rank() == 1 ? std::vector<int>{} : std::vector<int>{0, 2};
    auto part = must(comm.split(group, "part"));
    std::vector<int> data{comm.rank()};
    if (part) ok(part->all_reduce(data, Kind::sum));
    EXPECT_EQ(data[0], comm.rank() == 1 ? 1 : 2);
  });
}

TEST(OnecclFake, says_what_it_does_not_have) {
  with_fake(2, [](Comm&, Comm& comm) {
    std::vector<float> data(4);
    std::vector<std::int16_t> shorts(4);
    EXPECT_THAT(text_of(comm.all_reduce(data, Kind::avg)),
                HasSubstr("not_supported: rank " + std::to_string(comm.rank())));
    EXPECT_THAT(text_of(comm.all_reduce(data, Kind::avg)), HasSubstr("oneCCL has no avg of float32"));
    EXPECT_THAT(text_of(comm.all_reduce(shorts, Kind::sum)), HasSubstr("oneCCL has no sum of int16"));
    MessageOptions tagged;
    tagged.tag = 7;
    EXPECT_THAT(text_of(comm.send(data, 1 - comm.rank(), tagged)), HasSubstr("oneCCL has no tags"));
    EXPECT_THAT(text_of(comm.recv(data, any_source)), HasSubstr("name the source"));
    ok(comm.all_reduce(data, Kind::sum));  // it goes on
  });
}

TEST(OnecclFake, a_late_rank_ends_the_operation_and_the_library_has_copies_alone) {
  std::promise<void> has_ended;
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    CommOptions options = rank_options(rank, 2, name);
    options.backend = fake_ccl::backend();
    options.hints.clear();
    Comm comm = must(Comm::open(options));
    std::vector<int> data(1000, 1 + rank);
    if (rank == 0) {
      comm.set_timeout(50ms);
      EXPECT_THAT(text_of(comm.all_reduce(data, Kind::sum)), HasSubstr("has not ended it within 50 ms"));
      comm.close();
      EXPECT_EQ(data, std::vector<int>(1000, 1));
      data = {};
      has_ended.set_value();
    } else {
      has_ended.get_future().wait();
      ok(comm.all_reduce(data, Kind::sum));  // the thread of rank 0 is still in the library
      EXPECT_EQ(data, std::vector<int>(1000, 3));
    }
  });
}

TEST(OnecclFake, ranks_of_one_process_are_refused_on_all) {
  const std::string name = unique_comm_name();
  on_threads(3, [&](int rank) {
    CommOptions options = rank_options(rank, 3, name);
    options.backend = fake_ccl::backend(true);
    options.hints.clear();
    const auto comm = Comm::open(options);
    EXPECT_EQ(comm.code(), Code::not_supported);
    EXPECT_THAT(text_of(comm), HasSubstr("ranks 0 and 1 are in one process"));
  });
}

TEST(Oneccl, refuses_a_device_a_hint_and_a_library_that_is_not_there) {
  CommOptions options = rank_options(0, 1, unique_comm_name());
  options.backend = fake_ccl::backend();
  EXPECT_THAT(text_of(Comm::open(options)), HasSubstr("has no hints, and backends is given"));
  options.backend = "oneccl";
  options.hints.clear();
  options.device = "cuda:0";
  EXPECT_THAT(text_of(Comm::open(options)), HasSubstr("backend oneccl does not move memory of cuda:0"));
  options.device = "cpu";
  constexpr const char* variable = "HEADRACE_ONECCL_LIBRARY";
  const char* const given = std::getenv(variable);  // for the tests of the library itself
  const std::optional<std::string> before =
      given == nullptr ? std::nullopt : std::optional<std::string>(given);
  ::setenv(variable, "/nowhere/libccl.so.2", 1);
  const auto found = oneccl::backend_options();
  if (before)
    ::setenv(variable, before->c_str(), 1);
  else
    ::unsetenv(variable);
  ASSERT_TRUE(found);
  EXPECT_THAT(text_of(oneccl::load_library(must(found->text("library")))),
              HasSubstr("option oneccl.library names /nowhere/libccl.so.2"));
}

// --- over the library

/// Why the library cannot be used here; empty: it can.
std::string why_not() {
  const auto table = oneccl::installed_backend().table();
  return table ? "" : table.error().message;
}

class OnecclProcesses : public testing::TestWithParam<int> {};

TEST_P(OnecclProcesses, every_operation_gives_the_bytes_of_host) {
  if (const std::string why = why_not(); !why.empty()) GTEST_SKIP() << why;
  RankProcesses ranks("oneccl_compare", GetParam());
  for (int rank = 0; rank < GetParam(); ++rank)
    EXPECT_EQ(ranks.line_of(static_cast<std::size_t>(rank)), "all right");
}
INSTANTIATE_TEST_SUITE_P(Sizes, OnecclProcesses, testing::Values(2, 3));

TEST(OnecclSurvivors, a_rank_that_does_not_come_is_late_and_the_others_go_on_without_it) {
  if (const std::string why = why_not(); !why.empty()) GTEST_SKIP() << why;
  RankProcesses ranks("oneccl_dies", 3);
  for (const std::size_t rank : {0UL, 2UL}) {
    const std::string line = ranks.line_of(rank);
    EXPECT_THAT(line, HasSubstr("timed_out"));
    EXPECT_THAT(line, HasSubstr("then 2"));
  }
}

/// Rank 1 is killed; the others shrink, and add.
std::string go_on_without_one(Comm& comm) {
  std::vector<int> data(1000, 1);
  ok(comm.all_reduce(data, Kind::sum));
  if (comm.rank() == 1) ::kill(::getpid(), SIGKILL);
  comm.set_timeout(300ms);
  const std::string late = text_of(comm.all_reduce(data, Kind::sum));
  const std::array gone{1};
  auto left = comm.shrink(gone);
  if (!left) return late + " then " + text_of(left);
  std::vector<int> ones{1};
  const auto done = left->all_reduce(ones, Kind::sum);
  return late + " then " + (done ? std::to_string(ones[0]) : text_of(done));
}

std::string line_of_rank(const std::string& program, CommOptions options) {
  Comm host = must(Comm::open(options));
  options.backend = "xccl";  // the name of torchcomms
  options.hints.clear();
  auto tried = Comm::open(options);
  if (!tried) return text_of(tried);
  if (program == "oneccl_dies") return go_on_without_one(*tried);
  std::vector<DType> types = wide_types;
  types.insert(types.end(), {DType::float16, DType::bfloat16});
  return compare_all(host, *tried, types);
}

}  // namespace
}  // namespace on_oneccl

bool is_oneccl_program(const std::string& program) { return program.starts_with("oneccl_"); }

int run_oneccl_rank(char** words) {
  const std::string folder = words[3];
  CommOptions options = rank_options(std::stoi(words[1]), std::stoi(words[2]), "processes");
  options.meeting = "file://" + folder + "/store";
  std::ofstream(folder + "/" + words[1]) << on_oneccl::line_of_rank(words[0], options);
  ::_exit(0);  // oneCCL leaks, and LeakSanitizer would say so at a return
}

}  // namespace headrace::test
