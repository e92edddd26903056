// SPDX-License-Identifier: Apache-2.0
// Every operation with ranks as threads, compared with plain arithmetic.
#include "ranks.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <numeric>
#include <utility>

namespace headrace::test {
namespace {

using testing::HasSubstr;
using Kind = ReduceOp::Kind;

/// Memory of elements of any type.
class Memory {
 public:
  Memory(DType dtype, std::size_t count)
      : dtype_(dtype), count_(count), bytes_(count * element_bytes(dtype)) {}
  /// Element i is `of(i)`.
  Memory(DType dtype, std::size_t count, const std::function<double(std::size_t)>& of)
      : Memory(dtype, count) {
    for (std::size_t i = 0; i < count; ++i)
      write_element(bytes_.data(), dtype, static_cast<std::int64_t>(i), of(i));
  }
  [[nodiscard]] Elements all() { return {bytes_.data(), count_, dtype_}; }
  [[nodiscard]] Elements part(std::size_t first, std::size_t count) {
    return {bytes_.data() + first * element_bytes(dtype_), count, dtype_};
  }
  [[nodiscard]] double at(std::size_t i) const {
    return read_element(bytes_.data(), dtype_, static_cast<std::int64_t>(i));
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  friend bool operator==(const Memory& a, const Memory& b) { return a.bytes_ == b.bytes_; }

 private:
  DType dtype_;
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

/// The value of element i of a rank: small enough that every type holds it, and sums of three.
double value(int rank, std::size_t i) {
  return static_cast<double>((static_cast<std::size_t>(rank) * 5 + i) % 7);
}

double sum_of_values(int ranks, std::size_t i) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += value(rank, i);
  return sum;
}

Memory values(DType dtype, int rank, std::size_t count) {
  return {dtype, count, [rank](std::size_t i) { return value(rank, i); }};
}

/// Below, at and above the sizes at which lines, chunks, rings and algorithms change.
constexpr std::array<std::size_t, 8> counts{0, 1, 7, 10, 1000, 8191, 8193, 70'001};

class CommOfSize : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CommOfSize, testing::Values(1, 2, 3));

TEST_P(CommOfSize, all_reduce_adds_every_type_at_every_size_and_gives_all_ranks_the_same_bits) {
  const int size = GetParam();
  // Smaller lanes and blocks, so that few elements pass every threshold.
  with_ranks(size,
             [&](Comm& comm) {
               for (std::size_t type = 0; type < dtype_count; ++type) {
                 const auto dtype = static_cast<DType>(type);
                 if (dtype == DType::boolean) continue;
                 for (const std::size_t count : counts) {
                   Memory inout = values(dtype, comm.rank(), count);
                   ok(comm.all_reduce(inout.all(), Kind::sum));
                   // Elements repeat after seven.
                   const Memory expected(dtype, 7, [&](std::size_t i) { return sum_of_values(size, i); });
                   std::size_t wrong = 0;
                   for (std::size_t i = 0; i < count; ++i) wrong += inout.at(i) != expected.at(i % 7) ? 1 : 0;
                   EXPECT_EQ(wrong, 0U) << dtype_name(dtype) << " x " << count;
                 }
               }
             },
             {{"lane_bytes", "16KiB"}, {"chunk_bytes", "4KiB"}, {"block_bytes", "8KiB"}});
}

TEST_P(CommOfSize, all_reduce_knows_every_operation_in_both_algorithms) {
  const int size = GetParam();
  with_ranks(size, [&](Comm& comm) {
    const auto expect = [&](ReduceOp op, const std::function<double(double, double)>& combine,
                            double divisor) {
      for (const char* algorithm : {"one_shot", "two_shot"}) {
        Memory input = values(DType::int32, comm.rank(), 999);
        Memory output(DType::int32, 999);
        OpOptions options;
        options.hints["algorithm"] = algorithm;
        ok(comm.all_reduce(ConstElements(input.all()), output.all(), op, options));
        for (std::size_t i = 0; i < 999; ++i) {
          double result = op.factor * value(0, i);
          for (int rank = 1; rank < size; ++rank) result = combine(result, op.factor * value(rank, i));
          ASSERT_EQ(output.at(i), std::trunc(result / divisor))
              << reduce_op_name(op.kind) << " " << algorithm;
        }
        EXPECT_EQ(input, values(DType::int32, comm.rank(), 999)) << "out of place the input stays";
      }
    };
    const auto whole = [](auto&& op) {
      return [op](double a, double b) {
        return static_cast<double>(op(static_cast<std::int64_t>(a), static_cast<std::int64_t>(b)));
      };
    };
    expect(Kind::sum, std::plus<>(), 1);
    expect(Kind::product, std::multiplies<>(), 1);
    expect(
        Kind::min, [](double a, double b) { return std::min(a, b); }, 1);
    expect(
        Kind::max, [](double a, double b) { return std::max(a, b); }, 1);
    expect(Kind::avg, std::plus<>(), size);
    expect(Kind::band, whole(std::bit_and<>()), 1);
    expect(Kind::bor, whole(std::bit_or<>()), 1);
    expect(Kind::bxor, whole(std::bit_xor<>()), 1);
    expect({Kind::premul_sum, 3}, std::plus<>(), 1);
  });
}

TEST_P(CommOfSize, results_are_the_same_bits_on_all_ranks_where_rounding_depends_on_the_order) {
  const int size = GetParam();
  for (const char* algorithm : {"one_shot", "two_shot"}) {
    std::vector<std::vector<float>> results(static_cast<std::size_t>(size));
    with_ranks(size, [&](Comm& comm) {
      std::vector<float> data(5000);
      for (std::size_t i = 0; i < data.size(); ++i)
        data[i] = std::sin(static_cast<float>(i) * static_cast<float>(comm.rank() + 1)) * 1e3F;
      OpOptions options;
      options.hints["algorithm"] = algorithm;
      ok(comm.all_reduce(data, Kind::sum, options));
      results[static_cast<std::size_t>(comm.rank())] = data;
    });
    for (const auto& result : results)
      EXPECT_EQ(std::memcmp(result.data(), results[0].data(), results[0].size() * sizeof(float)), 0);
  }
}

TEST_P(CommOfSize, every_rank_gathers_and_scatters_what_it_should) {
  const int size = GetParam();
  const auto ranks = static_cast<std::size_t>(size);
  with_ranks(size, [&](Comm& comm) {
    const int me = comm.rank();
    for (const std::size_t count : counts) {
      const DType dtype = DType::int64;
      Memory mine = values(dtype, me, count);
      Memory row(dtype, count * ranks);
      const auto expect_row = [&] {
        for (std::size_t i = 0; i < count * ranks; ++i)
          ASSERT_EQ(row.at(i), value(static_cast<int>(i / count), i % count));
      };
      ok(comm.all_gather_single(row.all(), mine.all()));
      expect_row();
      row = Memory(dtype, count * ranks);
      std::vector<Elements> parts;
      for (std::size_t rank = 0; rank < ranks; ++rank) parts.push_back(row.part(rank * count, count));
      ok(comm.all_gather(parts, mine.all()));
      expect_row();

      for (int root = 0; root < size; ++root) {
        row = Memory(dtype, count * ranks);
        ok(comm.gather_single(row.all(), mine.all(), root));
        if (me == root) expect_row();
        row = Memory(dtype, count * ranks);
        for (std::size_t rank = 0; rank < ranks; ++rank) parts[rank] = row.part(rank * count, count);
        ok(comm.gather(me == root ? std::span<const Elements>(parts) : std::span<const Elements>(),
                       mine.all(), root));
        if (me == root) expect_row();
        // What was gathered goes back.
        Memory back(dtype, count);
        const std::vector<ConstElements> inputs(parts.begin(), parts.end());
        ok(comm.scatter(
            back.all(),
            me == root ? std::span<const ConstElements>(inputs) : std::span<const ConstElements>(), root));
        EXPECT_EQ(back, mine);
        Memory told = values(dtype, me, count);
        ok(comm.broadcast(told.all(), root));
        EXPECT_EQ(told, values(dtype, root, count));
        Memory reduced = values(dtype, me, count);
        ok(comm.reduce(reduced.all(), root, Kind::sum));
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(reduced.at(i), me == root ? sum_of_values(size, i) : value(me, i));
      }
    }
  });
}

TEST_P(CommOfSize, reduce_scatter_gives_each_rank_its_part) {
  const int size = GetParam();
  const auto ranks = static_cast<std::size_t>(size);
  with_ranks(size, [&](Comm& comm) {
    const auto me = static_cast<std::size_t>(comm.rank());
    for (const std::size_t count : counts) {
      Memory input = values(DType::float32, comm.rank(), count * ranks);
      Memory output(DType::float32, count);
      ok(comm.reduce_scatter_single(output.all(), input.all(), Kind::sum));
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(output.at(i), sum_of_values(size, me * count + i));
      std::vector<ConstElements> inputs;
      for (std::size_t rank = 0; rank < ranks; ++rank) inputs.emplace_back(input.part(rank * count, count));
      ok(comm.reduce_scatter(output.all(), inputs, Kind::max));
      for (std::size_t i = 0; i < count; ++i) {
        double most = 0;
        for (int rank = 0; rank < size; ++rank) most = std::max(most, value(rank, me * count + i));
        ASSERT_EQ(output.at(i), most);
      }
    }
  });
}

TEST_P(CommOfSize, operations_with_counts_that_differ_move_each_its_own) {
  const int size = GetParam();
  const auto ranks = static_cast<std::size_t>(size);
  // Rank a sends rank b this many.
  const auto number = [](std::size_t a, std::size_t b) { return (a * 3 + b) * 113 % 1000; };
  with_ranks(size, [&](Comm& comm) {
    const auto me = static_cast<std::size_t>(comm.rank());
    std::vector<std::size_t> give(ranks), get(ranks), gathered(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      give[rank] = number(me, rank);
      get[rank] = number(rank, me);
      gathered[rank] = number(rank, 0);
    }
    const auto total = [](const std::vector<std::size_t>& all) {
      return std::accumulate(all.begin(), all.end(), std::size_t{0});
    };
    const auto check = [&](const Memory& output, const std::vector<std::size_t>& parts) {
      std::size_t at = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank)
        for (std::size_t i = 0; i < parts[rank]; ++i)
          ASSERT_EQ(output.at(at++), value(static_cast<int>(rank), i));
    };
    Memory input(DType::int16, total(give)), output(DType::int16, total(get));
    std::size_t at = 0;
    std::vector<ConstElements> inputs;
    for (const std::size_t n : give) {
      const Elements part = input.part(at, n);
      for (std::size_t i = 0; i < n; ++i)
        write_element(part.data, DType::int16, static_cast<std::int64_t>(i), value(comm.rank(), i));
      inputs.emplace_back(part);
      at += n;
    }
    ok(comm.all_to_all_v_single(output.all(), input.all(), get, give));
    check(output, get);
    output = Memory(DType::int16, total(get));
    std::vector<Elements> outputs;
    at = 0;
    for (const std::size_t n : get) outputs.push_back(output.part(std::exchange(at, at + n), n));
    ok(comm.all_to_all(outputs, inputs));
    check(output, get);

    Memory mine = values(DType::int16, comm.rank(), gathered[me]), all(DType::int16, total(gathered));
    std::vector<Elements> places;
    at = 0;
    for (const std::size_t n : gathered) places.push_back(all.part(std::exchange(at, at + n), n));
    ok(comm.all_gather_v(places, mine.all()));
    check(all, gathered);

    // Every rank gives the same list of counts here: part r is for rank r.
    std::vector<Memory> parts;
    std::vector<ConstElements> lists;
    for (const std::size_t n : gathered) parts.push_back(values(DType::int16, comm.rank(), n));
    for (Memory& part : parts) lists.emplace_back(part.all());
    Memory reduced(DType::int16, gathered[me]);
    ok(comm.reduce_scatter_v(reduced.all(), lists, Kind::sum));
    for (std::size_t i = 0; i < gathered[me]; ++i) ASSERT_EQ(reduced.at(i), sum_of_values(size, i));

    const auto part_of = [](std::size_t i) { return i / 6; };
    Memory even(DType::uint8, 6 * ranks,
                [&](std::size_t i) { return static_cast<double>(me * 10 + part_of(i)); });
    Memory turned(DType::uint8, 6 * ranks);
    ok(comm.all_to_all_single(turned.all(), even.all()));
    for (std::size_t i = 0; i < 6 * ranks; ++i)
      ASSERT_EQ(turned.at(i), static_cast<double>(part_of(i) * 10 + me));
  });
}

TEST_P(CommOfSize, asynchronous_operations_run_in_order_of_call_and_end) {
  with_ranks(GetParam(), [&](Comm& comm) {
    std::vector<std::vector<float>> data(20, std::vector<float>(3000, 1));
    std::vector<Work> works;
    OpOptions async;
    async.async = true;
    for (auto& each : data) works.push_back(must(comm.all_reduce(each, Kind::sum, async)));
    std::vector<float> last(10, 2);
    ok(comm.all_reduce(last, Kind::sum));  // after those that are queued
    for (const Work& work : works) {
      EXPECT_TRUE(work.is_completed());
      EXPECT_EQ(work.status(), WorkStatus::completed);
      must(work.wait());
      EXPECT_EQ(work.error().code, Code::ok);
    }
    for (const auto& each : data) EXPECT_EQ(each[2999], static_cast<float>(comm.size()));
    EXPECT_EQ(last[9], 2.0F * static_cast<float>(comm.size()));
  });
}

TEST_P(CommOfSize, a_barrier_returns_once_every_rank_has_come) {
  std::atomic<int> come = 0;
  with_ranks(GetParam(), [&](Comm& comm) {
    ++come;
    ok(comm.barrier());
    EXPECT_EQ(come.load(), comm.size());
  });
}

TEST(Comm, says_what_it_is) {
  with_ranks(2, [](Comm& comm) {
    EXPECT_EQ(comm.size(), 2);
    EXPECT_EQ(comm.ranks(), (std::vector<int>{0, 1}));
    EXPECT_EQ(comm.backend(), "host");
    EXPECT_FALSE(comm.backend_version().empty());
    comm.set_timeout(std::chrono::seconds(7));
    EXPECT_EQ(comm.options().timeout, Timeout(std::chrono::seconds(7)));
    must(comm.set_hints({{"one_shot_bytes", "1KiB"}}));
    EXPECT_EQ(comm.options().hints.at("one_shot_bytes"), "1KiB");
    EXPECT_THAT(comm.set_hints({{"one_shot_byte", "1"}}).error().message,
                HasSubstr("did you mean \"one_shot_bytes\""));
    EXPECT_THAT(comm.set_hints({{"lane_bytes", "8KiB"}}).error().message, HasSubstr("fixed"));
    EXPECT_FALSE(comm.is_aborted());
  });
}

TEST(Comm, ranks_of_threads_that_call_at_once_take_turns) {
  with_ranks(2, [](Comm& comm) {
    // Each thread has its own elements; both ranks run the same number of equal operations.
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&comm] {
        for (int i = 0; i < 50; ++i) {
          std::vector<std::int32_t> data(100, 1);
          ok(comm.all_reduce(data, Kind::sum));
          EXPECT_EQ(data[99], 2);
        }
      });
    }
  });
}

TEST(Comm, split_makes_groups_that_work_beside_each_other_and_beside_their_parent) {
  with_ranks(3, [](Comm& comm) {
    const std::vector<int> pair{2, 0}, single{1};
    const bool in_pair = comm.rank() != 1;
    auto group = must(comm.split(in_pair ? pair : single, in_pair ? "pair" : "single"));
    ASSERT_TRUE(group.has_value());
    EXPECT_EQ(group->size(), in_pair ? 2 : 1);
    EXPECT_EQ(group->rank(), comm.rank() == 0 ? 1 : 0);
    EXPECT_EQ(group->ranks(), in_pair ? pair : single);
    EXPECT_EQ(group->name(), in_pair ? "pair" : "single");
    auto nobody = must(comm.split({}, "nobody"));
    EXPECT_FALSE(nobody.has_value());
    for (int i = 0; i < 10; ++i) {
      std::vector<std::int32_t> mine(5000, comm.rank() + 1), all(5000, 1);
      ok(group->all_reduce(mine, Kind::sum));
      ok(comm.all_reduce(all, Kind::sum));
      EXPECT_EQ(mine[4999], in_pair ? 4 : 2);
      EXPECT_EQ(all[4999], 3);
    }
    must(group->finalize());
    ok(comm.barrier());
  });
}

TEST(Comm, split_refuses_groups_that_do_not_fit) {
  with_ranks(2, [](Comm& comm) {
    const std::vector<int> other{1 - comm.rank()}, twice{0, 1, 1}, beyond{0, 1, 2}, both{0, 1};
    EXPECT_THAT(comm.split(other, "x").error().message, HasSubstr("is not in the group"));
    EXPECT_THAT(comm.split(twice, "x").error().message, HasSubstr("rank 1 is twice"));
    EXPECT_THAT(comm.split(beyond, "x").error().message, HasSubstr("there is no rank 2"));
    EXPECT_THAT(comm.split(both, comm.rank() == 0 ? "x" : "y").error().message, HasSubstr("other groups"));
    ok(comm.barrier());
  });
}

/// No file, and no memory file, becomes longer while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : before_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, before_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*before_handler_)(int);
};

TEST(Comm, a_rank_that_cannot_split_says_so_to_its_group_and_all_go_on) {
  const FileSizeLimit limit(64 << 20);
  with_ranks(3, [](Comm& comm) {
    const std::vector<int> group = comm.rank() == 2 ? std::vector{2} : std::vector{0, 1};
    SplitOptions options;
    if (comm.rank() == 1) options.hints["lane_bytes"] = "1GiB";  // more than the limit
    const auto part = comm.split(group, "part", options);
    EXPECT_EQ(part.ok(), comm.rank() == 2);
    if (comm.rank() == 0) {
      EXPECT_THAT(part.error().message, HasSubstr("rank 0, split of"));
      EXPECT_THAT(part.error().message, HasSubstr("rank 1: allocate "));
    }
    ok(comm.barrier());
  });
}

TEST(Comm, wrong_arguments_are_refused_with_their_values_and_end_nothing) {
  with_ranks(2, [](Comm& comm) {
    std::vector<float> three(3), four(4), six(6);
    std::vector<std::int32_t> ints(3);
    const auto refused = [&](const Result<Work>& result, const char* text) {
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.code(), Code::invalid_argument);
      EXPECT_THAT(result.error().message, HasSubstr(text));
    };
    refused(comm.all_reduce(ConstElements(three), four, Kind::sum),
            "the input has 3 elements, the output has 4");
    refused(comm.all_reduce(ConstElements(three), ints, Kind::sum),
            "the input is float32, the output is int32");
    refused(comm.all_reduce(Elements(nullptr, 3, DType::float32), Kind::sum), "null address");
    refused(comm.all_reduce(Elements(three.data(), 3, static_cast<DType>(99)), Kind::sum), "element type 99");
    refused(comm.all_reduce(three, Kind::bxor), "bxor has no meaning for float32");
    OpOptions hint;
    hint.hints["algoritm"] = "ring";
    refused(comm.all_reduce(three, Kind::sum, hint), "did you mean \"algorithm\"");
    refused(comm.all_gather_single(four, three), "the output has 4 elements: 2 ranks times 3");
    refused(comm.reduce_scatter_single(four, three, Kind::sum), "the input has 3 elements: 2 ranks times 4");
    refused(comm.broadcast(three, 2), "there is no root 2");
    refused(comm.broadcast(three, -1), "there is no root -1");
    refused(comm.all_to_all_single(three, three), "no multiple of the number of ranks");
    const std::vector<std::size_t> splits{1, 1}, one{3};
    refused(comm.all_to_all_v_single(three, three, splits, splits), "add up to 2, its elements are 3");
    refused(comm.all_to_all_v_single(three, three, one, one), "has 1 splits for 2 ranks");
    const std::vector<Elements> outputs{three};
    refused(comm.all_gather(outputs, three), "outputs has 1 entries, 2 are expected");
    refused(comm.send(three, comm.rank()), "is no other rank");
    refused(comm.send(three, 2), "rank 2 is no other rank; there are 2 ranks");
    refused(comm.recv(three, -2), "rank -2 is no other rank");
    ok(comm.barrier());
  });
}

TEST(CommArguments, counts_whose_sum_or_product_wraps_around_are_refused) {
  CommOptions options;
  options.backend = "fake";  // which touches no element
  options.size = 3;
  Comm comm = must(Comm::open(options));
  std::vector<std::uint8_t> two(2);
  const std::vector<std::size_t> wrapped{0, SIZE_MAX, 3};
  const auto refused = comm.all_to_all_v_single(two, two, wrapped, wrapped);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("add up to more than any memory"));
  const std::size_t third = SIZE_MAX / 3 + 1;  // three times this is 2
  EXPECT_EQ(comm.all_gather_single(two, ConstElements(two.data(), third, DType::uint8)).code(),
            Code::invalid_argument);
  EXPECT_EQ(comm.reduce_scatter_single(Elements(two.data(), third, DType::uint8), two, Kind::sum).code(),
            Code::invalid_argument);
}

}  // namespace
}  // namespace headrace::test
