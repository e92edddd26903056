// SPDX-License-Identifier: Apache-2.0
// Communicators over NCCL: all operations, streams and failures, on a fake library and a fake GPU.
#include "fake_nccl_backends.hpp"
#include "handles.hpp"
#include "ranks.hpp"

#include "vendor/nccl/config.hpp"

#include <headrace/comm_backend.hpp>

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <complex>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace headrace::test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

class CommOnNccl : public testing::Test {
 protected:
  explicit CommOnNccl(std::string backend = "nccl_newest", std::map<std::string, std::string> hints = {})
      : backend_(std::move(backend)), hints_(std::move(hints)) {
    current_gpu = &gpu_;
    static_cast<void>(library());
  }

  [[nodiscard]] const FakeNccl& library() const { return library_of(backend_); }
  CommOptions options(int rank, int size, const std::string& name) const {
    CommOptions options = rank_options(rank, size, name);
    options.backend = backend_;
    options.device = "cuda:" + std::to_string(rank);
    options.hints = hints_;
    return options;
  }
  Comm one_rank(const std::map<std::string, std::string>& hints = {}) const {
    CommOptions one = options(0, 1, "alone");
    for (const auto& [hint, value] : hints) one.hints[hint] = value;
    return must(Comm::open(one));
  }
  void with_ranks(int size, const std::function<void(Comm&)>& body) const {
    const std::string name = unique_comm_name();
    on_threads(size, [&](int rank) {
      Comm comm = must(Comm::open(options(rank, size, name)));
      body(comm);
    });
  }

  cuda::FakeCuda gpu_{3};  // one for each rank: those of one GPU would share its default stream
  const std::string backend_;
  const std::map<std::string, std::string> hints_;
};

/// The same with each library, and with calls that go on by themselves.
struct Version {
  const char* name;
  const char* backend;
  const char* blocking;
};
class CommOnEachNccl : public CommOnNccl, public testing::WithParamInterface<Version> {
 protected:
  CommOnEachNccl() : CommOnNccl(GetParam().backend, {{"blocking", GetParam().blocking}}) {}
};
INSTANTIATE_TEST_SUITE_P(Ways, CommOnEachNccl,
                         testing::Values(Version{"newest", "nccl_newest", "1"},
                                         Version{"old", "nccl_old", "1"},
                                         Version{"newest_goes_on", "nccl_newest", "0"},
                                         Version{"old_goes_on", "nccl_old", "0"},
                                         Version{"newest_on_hip", "rccl_newest", "1"}),
                         [](const auto& one) { return one.param.name; });

void done(const Result<Work>& result) {
  ok(result);
  if (result.ok()) must(result->wait());
}

OpOptions queued() {
  OpOptions options;
  options.async = true;
  return options;
}

std::vector<int> numbers(int first, int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) all[static_cast<std::size_t>(i)] = first + i;
  return all;
}

TEST_P(CommOnEachNccl, opens_and_tells_device_and_version) {
  with_ranks(3, [this](Comm& comm) {
    EXPECT_EQ(comm.backend(), backend_);
    EXPECT_EQ(comm.backend_version(), backend_ == "nccl_old" ? "2.20.5" : "2.32.3");
    EXPECT_EQ(comm.device(), (Device{Device::Kind::cuda, comm.rank()}));
    must(comm.finalize());
  });
  EXPECT_EQ(gpu_.live(), cuda::FakeCuda::Live());
}

TEST_P(CommOnEachNccl, reduces) {
  with_ranks(3, [](Comm& comm) {
    const int rank = comm.rank();
    std::vector<int> all{rank, 10}, output(2);
    done(comm.all_reduce(all, output, ReduceOp::sum));
    EXPECT_THAT(output, ElementsAre(3, 30));
    done(comm.all_reduce(all, ReduceOp::max));
    EXPECT_THAT(all, ElementsAre(2, 10));
    std::vector<float> floats{static_cast<float>(rank + 1)};
    done(comm.all_reduce(floats, {ReduceOp::premul_sum, 0.5}));
    EXPECT_THAT(floats, ElementsAre(3));
    floats = {static_cast<float>(rank + 1)};
    done(comm.all_reduce(floats, ReduceOp::avg));
    EXPECT_THAT(floats, ElementsAre(2));
    std::vector<int> root{rank + 1};
    done(comm.reduce(root, 1, ReduceOp::product));
    EXPECT_THAT(root, ElementsAre(rank == 1 ? 6 : rank + 1));
    const std::vector<int> parts = numbers(rank, 6);
    done(comm.reduce_scatter_single(output, parts, ReduceOp::sum));
    EXPECT_THAT(output, ElementsAre(3 + 6 * rank, 6 + 6 * rank));
    const std::vector<int> first{1}, second{2, 2}, third{3, 3, 3};
    const std::vector<ConstElements> lists{first, second, third};
    std::vector<int> mine(static_cast<std::size_t>(rank + 1));
    done(comm.reduce_scatter_v(mine, lists, ReduceOp::sum));
    EXPECT_EQ(mine, std::vector<int>(static_cast<std::size_t>(rank + 1), 3 * (rank + 1)));
  });
}

TEST_P(CommOnEachNccl, gathers_scatters_and_exchanges) {
  with_ranks(3, [](Comm& comm) {
    const int rank = comm.rank();
    const auto index = static_cast<std::size_t>(rank);
    std::vector<int> from{rank}, three(3), one(1);
    std::vector<std::vector<int>> each{{0}, {0}, {0}};
    const std::vector<Elements> outputs{each[0], each[1], each[2]};
    done(comm.all_gather(outputs, from));
    EXPECT_THAT(each, ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
    done(comm.all_gather_single(three, from));
    EXPECT_THAT(three, ElementsAre(0, 1, 2));
    std::vector<std::vector<int>> uneven{{0}, {0, 0}, {0, 0, 0}};
    const std::vector<Elements> uneven_outputs{uneven[0], uneven[1], uneven[2]};
    done(comm.all_gather_v(uneven_outputs, std::vector<int>(index + 1, rank + 1)));
    EXPECT_THAT(uneven, ElementsAre(ElementsAre(1), ElementsAre(2, 2), ElementsAre(3, 3, 3)));
    std::vector<int> root{rank == 2 ? 7 : 0};
    done(comm.broadcast(root, 2));
    EXPECT_THAT(root, ElementsAre(7));
    each = {{0}, {0}, {0}};
    done(comm.gather(rank == 1 ? std::span(outputs) : std::span<const Elements>(), from, 1));
    EXPECT_EQ(each[2][0], rank == 1 ? 2 : 0);
    three.assign(3, 0);
    done(comm.gather_single(three, from, 0));
    EXPECT_EQ(three[2], rank == 0 ? 2 : 0);
    const std::vector<int> a{10}, b{11}, c{12};
    const std::vector<ConstElements> inputs{a, b, c};
    done(comm.scatter(one, rank == 0 ? std::span(inputs) : std::span<const ConstElements>(), 0));
    EXPECT_THAT(one, ElementsAre(10 + rank));
    done(comm.all_to_all(outputs, inputs));
    EXPECT_THAT(each, ElementsAre(ElementsAre(10 + rank), ElementsAre(10 + rank), ElementsAre(10 + rank)));
    done(comm.all_to_all_single(three, numbers(10 * rank, 3)));
    EXPECT_THAT(three, ElementsAre(rank, 10 + rank, 20 + rank));
    const std::vector<std::size_t> in{0, 1, 2}, out(3, index);
    std::vector<int> received(3 * index);
    done(comm.all_to_all_v_single(received, numbers(10 * rank, 3), out, in));
    if (rank == 1) {
      EXPECT_THAT(received, ElementsAre(0, 10, 20));
    }
    done(comm.barrier());
  });
}

TEST_P(CommOnEachNccl, sends_and_receives) {
  with_ranks(2, [](Comm& comm) {
    std::vector<int> message{comm.rank()};
    if (comm.rank() == 0) {
      done(comm.send(message, 1));
    } else {
      const Work received = must(comm.recv(message, 0));
      must(received.wait());
      EXPECT_EQ(received.source(), 0);
      EXPECT_THAT(message, ElementsAre(0));
    }
    // On one stream: if these were not one operation, each send would wait for the other rank's receive.
    std::vector<int> out{comm.rank() + 5}, in{0};
    Batch batch = comm.batch();
    must(batch.send(out, 1 - comm.rank()));
    must(batch.recv(in, 1 - comm.rank()));
    done(batch.issue());
    EXPECT_THAT(in, ElementsAre(6 - comm.rank()));
    must(comm.start_coalescing());
    ok(comm.send(out, 1 - comm.rank()));
    ok(comm.all_reduce(message, ReduceOp::sum));
    ok(comm.recv(in, 1 - comm.rank()));
    done(comm.end_coalescing());
    EXPECT_THAT(message, ElementsAre(0));
  });
}

TEST_P(CommOnEachNccl, splits) {
  with_ranks(3, [](Comm& comm) {
    const std::vector<int> group = comm.rank() == 1 ? std::vector<int>() : std::vector<int>{2, 0};
    auto part = must(comm.split(group, "part"));
    EXPECT_EQ(part.has_value(), comm.rank() != 1);
    if (!part) return;
    EXPECT_EQ(part->rank(), comm.rank() == 2 ? 0 : 1);
    std::vector<int> root{comm.rank()};
    done(part->broadcast(root, 0));
    EXPECT_THAT(root, ElementsAre(2));
  });
}

TEST_P(CommOnEachNccl, ends_a_split_to_which_a_rank_does_not_come) {
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    CommOptions options = this->options(rank, 2, name);
    Comm comm = must(Comm::open(options));
    if (rank == 1) return;
    SplitOptions changes;
    changes.meeting_timeout = milliseconds(30);
    const auto late = comm.split(std::array{0}, "part", changes);
    EXPECT_EQ(late.code(), Code::timed_out);
    EXPECT_THAT(late.error().message, HasSubstr("another rank has not come in time"));
  });
}

TEST_P(CommOnEachNccl, an_abort_ends_a_split_that_waits) {
  const std::string name = unique_comm_name();
  on_threads(2, [&](int rank) {
    Comm comm = must(Comm::open(options(rank, 2, name)));
    if (rank == 1) return;
    const int before = library().calls("ncclCommSplit");
    std::jthread aborting([&, before] {
      while (library().calls("ncclCommSplit") == before) std::this_thread::yield();
      comm.abort("enough");
    });
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(comm.split(std::array{0}, "part"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  });
}

TEST_P(CommOnEachNccl, ends_when_an_operation_is_late) {
  const bool revokes = backend_ != "nccl_old";
  const char* const ends_by = revokes ? "ncclCommRevoke" : "ncclCommAbort";
  const int before = library().calls(ends_by);
  with_ranks(2, [](Comm& comm) {
    if (comm.rank() == 1) {
      comm.abort("it goes");
      return;
    }
    OpOptions options;
    options.timeout = milliseconds(30);
    std::vector<int> all{1};
    const Work work = must(comm.all_reduce(all, ReduceOp::sum, options));
    EXPECT_EQ(work.wait().code(), Code::timed_out);
    EXPECT_THAT(work.error().message, HasSubstr("all_reduce number 1"));
    EXPECT_TRUE(comm.is_aborted());
    EXPECT_EQ(comm.barrier().code(), Code::timed_out);
  });
  EXPECT_GE(library().calls(ends_by), before + 2);
}

// --- memory that calls use again and again

void register_and_reduce(Comm& comm) {
  std::vector<int> memory(100, 1), none;
  must(comm.tensor_register(memory));
  must(comm.tensor_register(none));
  done(comm.all_reduce(memory, ReduceOp::sum));
  EXPECT_THAT(memory, testing::Each(comm.size()));
  must(comm.tensor_deregister(memory));
  must(comm.tensor_deregister(none));
}

TEST_P(CommOnEachNccl, registers_memory_and_takes_it_back) {
  const int registered = library().calls("ncclCommRegister");
  const int taken_back = library().calls("ncclCommDeregister");
  with_ranks(2, register_and_reduce);
  EXPECT_EQ(library().calls("ncclCommRegister"), registered + 2);
  EXPECT_EQ(library().calls("ncclCommDeregister"), taken_back + 2);
}

TEST_F(CommOnNccl, uses_memory_that_the_library_does_not_register_as_before) {
  const int taken_back = library().calls("ncclCommDeregister");
  library().fail("ncclCommRegister", nccl::Outcome::internal_error);
  Comm comm = one_rank();
  register_and_reduce(comm);
  EXPECT_EQ(library().calls("ncclCommDeregister"), taken_back);
}

class CommOnBareNccl : public CommOnNccl {
 protected:
  CommOnBareNccl() : CommOnNccl("nccl_bare") {}
};

TEST_F(CommOnBareNccl, registers_nothing) {
  const int registered = library().calls("ncclCommRegister");
  with_ranks(2, register_and_reduce);
  EXPECT_EQ(library().calls("ncclCommRegister"), registered);
}

// --- a communicator that sleeps

class CommOnNewNccl : public CommOnEachNccl {};
INSTANTIATE_TEST_SUITE_P(Ways, CommOnNewNccl,
                         testing::Values(Version{"newest", "nccl_newest", "1"},
                                         Version{"newest_goes_on", "nccl_newest", "0"}),
                         [](const auto& one) { return one.param.name; });

TEST_P(CommOnNewNccl, sleeps_between_suspend_and_resume) {
  const int suspended = library().calls("ncclCommSuspend"), resumed = library().calls("ncclCommResume");
  with_ranks(2, [](Comm& comm) {
    std::vector<int> all{1};
    done(comm.all_reduce(all, ReduceOp::sum, queued()));
    must(comm.suspend());
    EXPECT_TRUE(comm.is_suspended());
    const Error refused[] = {comm.all_reduce(all, ReduceOp::sum).error(),
                             comm.send(all, 1 - comm.rank()).error(), comm.tensor_register(all).error(),
                             comm.split(std::array{comm.rank()}, "part").error()};
    for (const Error& error : refused) {
      EXPECT_EQ(error.code, Code::invalid_argument);
      EXPECT_THAT(error.message, HasSubstr("is suspended: call resume on all ranks first"));
    }
    EXPECT_THAT(comm.suspend().error().message, HasSubstr("is suspended already"));
    must(comm.resume());
    EXPECT_FALSE(comm.is_suspended());
    EXPECT_THAT(comm.resume().error().message, HasSubstr("is not suspended"));
    done(comm.all_reduce(all, ReduceOp::sum));
    EXPECT_THAT(all, ElementsAre(4));
  });
  EXPECT_EQ(library().calls("ncclCommSuspend"), suspended + 2);
  EXPECT_EQ(library().calls("ncclCommResume"), resumed + 2);
}

TEST_P(CommOnNewNccl, ends_if_a_rank_does_not_come_to_suspend) {
  with_ranks(2, [](Comm& comm) {
    if (comm.rank() == 1) return;
    comm.set_timeout(milliseconds(30));
    const auto late = comm.suspend();
    EXPECT_EQ(late.code(), Code::timed_out);
    EXPECT_THAT(late.error().message, HasSubstr("another rank has not come in time"));
    EXPECT_TRUE(comm.is_aborted());
    EXPECT_FALSE(comm.is_suspended());
  });
}

TEST_P(CommOnNewNccl, is_left_while_it_sleeps) {
  with_ranks(2, [](Comm& comm) {
    must(comm.suspend());
    must(comm.finalize());
  });
  EXPECT_EQ(gpu_.live(), cuda::FakeCuda::Live());
}

TEST_F(CommOnNccl, is_awake_if_the_library_does_not_suspend) {
  Comm comm = one_rank();
  library().fail("ncclCommSuspend", nccl::Outcome::system_error);
  const auto failed = comm.suspend();
  EXPECT_EQ(failed.code(), Code::backend_failed);
  EXPECT_THAT(failed.error().message,
              HasSubstr("suspend number 1 of \"alone\": backend nccl_newest: suspend the"));
  EXPECT_FALSE(comm.is_suspended());
  done(comm.barrier());
}

TEST_F(CommOnNccl, does_not_suspend_under_a_message) {
  with_ranks(2, [](Comm& comm) {
    std::vector<int> one{comm.rank()};
    if (comm.rank() == 0) {
      MessageOptions later;
      later.async = true;
      const Work received = must(comm.recv(one, 1, later));
      EXPECT_THAT(comm.suspend().error().message,
                  HasSubstr("recv number 1 of this rank is under way: wait for it first"));
      done(comm.barrier());
      must(received.wait());
    } else {
      done(comm.barrier(queued()));
      done(comm.send(one, 0));
    }
    must(comm.suspend());
  });
}

// --- ranks that the caller brings together

TEST_P(CommOnEachNccl, makes_a_communicator_of_ranks_that_the_caller_brings_together) {
  Handles handles(3);
  on_threads(3, [&](int rank) {
    CommOptions alone = options(0, 1, "alone");
    alone.device = "cuda:" + std::to_string(rank);
    const Comm one = must(Comm::open(alone));
    Comm all = must(one.reconfigure("first", handles.exchange(one, static_cast<std::size_t>(2 - rank))));
    EXPECT_EQ(all.rank(), 2 - rank);
    EXPECT_EQ(all.size(), 3);
    std::vector<int> numbers{rank};
    done(all.broadcast(numbers, 0));
    EXPECT_THAT(numbers, ElementsAre(2));
    done(all.all_reduce(numbers, ReduceOp::sum));
    EXPECT_THAT(numbers, ElementsAre(6));
    must(all.finalize());
  });
}

/// Ranks 0 and 1 of a communicator of two, and a newcomer, in this order or in another one.
TEST_P(CommOnEachNccl, grows_by_ranks_that_join_all_of_its_own) {
  const bool can_grow = backend_ != "nccl_old";
  for (const std::size_t newcomer : {2U, 0U}) {
    const bool grows = can_grow && newcomer == 2;
    const int before = library().calls("ncclCommGrow");
    const std::string name = unique_comm_name();
    Handles handles(3), again(3);
    on_threads(3, [&](int rank) {
      CommOptions given = rank == 2 ? options(0, 1, "newcomer") : options(rank, 2, name);
      given.device = "cuda:" + std::to_string(rank);
      Comm comm = must(Comm::open(given));
      const std::size_t place =
          rank == 2 ? newcomer : static_cast<std::size_t>(rank) + (newcomer == 0 ? 1U : 0U);
      std::vector<int> numbers{1};
      Comm all = must(comm.reconfigure("first", handles.exchange(comm, place)));
      done(all.all_reduce(numbers, ReduceOp::sum));
      EXPECT_THAT(numbers, ElementsAre(3));
      done(comm.all_reduce(numbers, ReduceOp::sum));  // the old one stays
      EXPECT_THAT(numbers, ElementsAre(rank == 2 ? 3 : 6));
      Comm more = must(comm.reconfigure("second", again.exchange(comm, place)));
      done(more.barrier());
    });
    EXPECT_EQ(library().calls("ncclCommGrow"), before + (grows ? 6 : 0));
  }
}

TEST_P(CommOnEachNccl, goes_on_with_others_after_an_abort) {
  const std::string name = unique_comm_name();
  Handles handles(2);
  on_threads(3, [&](int rank) {
    Comm comm = must(Comm::open(options(rank, 3, name)));
    comm.abort("rank 1 dies");
    if (rank == 1) return;
    const Comm left = must(comm.reconfigure("left", handles.exchange(comm, rank == 0 ? 1U : 0U)));
    EXPECT_EQ(left.rank(), rank == 0 ? 1 : 0);
  });
}

TEST_F(CommOnNccl, a_rank_that_does_not_come_ends_no_more_than_the_new_communicator) {
  Comm one = one_rank();
  const Comm other = one_rank();
  const std::vector<std::string> handles{must(one.init_handle()), must(other.init_handle())};
  SplitOptions changes;
  changes.meeting_timeout = milliseconds(30);
  const auto late = one.reconfigure("late", handles, changes);
  EXPECT_EQ(late.code(), Code::timed_out);
  EXPECT_THAT(late.error().message, HasSubstr("another rank has not come in time"));
  done(one.barrier());
  EXPECT_THAT(one.reconfigure("late", handles).error().message, HasSubstr("each new from init_handle"));
}

TEST_F(CommOnNccl, refuses_handles_that_are_wrong) {
  Comm one = one_rank();
  const std::string mine = must(one.init_handle());
  EXPECT_EQ(must(one.init_handle()), mine);  // until it is used
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"x"}, "the handle of this rank is not among the 1 handles"},
      {{mine, mine}, "handles 0 and 1 are of the same rank"},
      {{mine, "x"}, "a handle of 1 bytes is none that init_handle of this backend returned"}};
  for (const auto& [handles, expected] : wrong) {
    const auto refused = one.reconfigure("wrong", handles);
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_THAT(refused.error().message, HasSubstr(expected));
  }
}

// --- elements

template <class T>
Elements elements(std::vector<T>& memory, DType dtype) {
  return {memory.data(), memory.size() * sizeof(T) / element_bytes(dtype), dtype};
}

TEST_F(CommOnNccl, moves_every_type) {
  for (std::size_t dtype = 0; dtype < dtype_count; ++dtype) {
    const auto type = static_cast<DType>(dtype);
    with_ranks(2, [&](Comm& comm) {
      std::vector<std::uint8_t> bytes(element_bytes(type) * 2, comm.rank() == 1 ? 7 : 0);
      done(comm.broadcast(elements(bytes, type), 1));
      EXPECT_EQ(bytes, std::vector<std::uint8_t>(element_bytes(type) * 2, 7)) << dtype_name(type);
    });
  }
}

TEST_F(CommOnNccl, reduces_what_nccl_has_and_says_what_it_has_not) {
  with_ranks(2, [](Comm& comm) {
    std::vector<std::complex<float>> complex{{1, 2}};
    const Elements of_complex(complex.data(), 1, DType::complex64);
    done(comm.all_reduce(of_complex, {ReduceOp::premul_sum, 2}));
    EXPECT_EQ(complex[0], std::complex<float>(4, 8));
    EXPECT_THAT(comm.all_reduce(of_complex, ReduceOp::product).error().message,
                HasSubstr("NCCL has no product of complex64"));
    std::vector<std::uint8_t> flags{static_cast<std::uint8_t>(comm.rank()), 1};
    done(comm.all_reduce(elements(flags, DType::boolean), ReduceOp::sum));
    EXPECT_THAT(flags, ElementsAre(1, 1));
    flags = {static_cast<std::uint8_t>(comm.rank()), 1};
    done(comm.all_reduce(elements(flags, DType::boolean), ReduceOp::band));
    EXPECT_THAT(flags, ElementsAre(0, 1));
    const auto refused = comm.all_reduce(elements(flags, DType::boolean), ReduceOp::bxor);
    EXPECT_EQ(refused.code(), Code::not_supported);
    std::vector<std::int16_t> shorts{1};
    EXPECT_THAT(comm.all_reduce(shorts, ReduceOp::sum).error().message,
                HasSubstr("NCCL has no sum of int16"));
    std::vector<int> ints{1};
    EXPECT_THAT(comm.all_reduce(ints, ReduceOp::bor).error().message, HasSubstr("NCCL has no bor of int32"));
    std::vector<std::uint8_t> small{0x38};  // 1 in float8_e4m3fn
    done(comm.all_reduce(elements(small, DType::float8_e4m3fn), ReduceOp::sum));
    EXPECT_THAT(small, ElementsAre(0x40));
    std::vector<std::uint16_t> half{0x3c00};  // 1
    done(comm.all_reduce(elements(half, DType::float16), {ReduceOp::premul_sum, 0.5}));
    EXPECT_THAT(half, ElementsAre(0x3c00));
    done(comm.barrier());  // refused calls have ended nothing
  });
}

TEST_F(CommOnNccl, refuses_what_nccl_cannot_do) {
  with_ranks(2, [](Comm& comm) {
    std::vector<int> memory{1};
    EXPECT_THAT(comm.recv(memory, any_source).error().message, HasSubstr("name the source"));
    MessageOptions tagged;
    tagged.tag = 4;
    EXPECT_THAT(comm.send(memory, 1 - comm.rank(), tagged).error().message, HasSubstr("NCCL has no tags"));
    EXPECT_THAT(comm.monitored_barrier().error().message, HasSubstr("NCCL has no monitored_barrier"));
    done(comm.barrier());
  });
}

// --- streams

class StreamsOnNccl : public CommOnNccl {
 protected:
  StreamsOnNccl() : driver_(must(gpu_.load())) {
    static_cast<void>(driver_.device_primary_ctx_retain(&context_, 0));
    static_cast<void>(driver_.ctx_set_current(context_));
  }
  ~StreamsOnNccl() override { static_cast<void>(driver_.ctx_set_current(nullptr)); }
  cuda::Stream stream() {
    cuda::Stream made = nullptr;
    EXPECT_EQ(driver_.stream_create_with_priority(&made, cuda::stream_non_blocking, 0),
              cuda::Outcome::success);
    return made;
  }
  cuda::Address memory(std::size_t bytes) {
    cuda::Address made = 0;
    EXPECT_EQ(driver_.mem_alloc(&made, bytes), cuda::Outcome::success);
    return made;
  }
  static Elements bytes_at(cuda::Address address, std::size_t count) {
    return {reinterpret_cast<void*>(address), count, DType::uint8};
  }
  static std::uint8_t byte_at(cuda::Address address) { return *reinterpret_cast<std::uint8_t*>(address); }

  const cuda::DriverTable driver_;
  cuda::Context context_ = nullptr;
};

TEST_F(StreamsOnNccl, a_call_sees_what_was_queued_before_and_later_work_sees_its_result) {
  Comm comm = one_rank();
  const cuda::Stream caller = stream();
  const cuda::Address given = memory(4), result = memory(4), later = memory(4);
  OpOptions options;
  options.stream = caller;
  gpu_.hold();
  static_cast<void>(driver_.memset_d8_async(given, 7, 4, caller));
  const Work work = must(comm.all_reduce(bytes_at(given, 4), bytes_at(result, 4), ReduceOp::sum, options));
  static_cast<void>(driver_.memcpy_async(later, result, 4, caller));
  EXPECT_EQ(work.status(), WorkStatus::in_progress);  // the call has not waited
  EXPECT_EQ(work.wait(milliseconds(5)).code(), Code::timed_out);
  gpu_.release();
  must(work.wait());
  static_cast<void>(driver_.stream_synchronize(caller));
  EXPECT_EQ(byte_at(later), 7);
}

TEST_F(StreamsOnNccl, an_asynchronous_call_runs_beside_its_stream_until_one_waits_for_it) {
  Comm comm = one_rank();
  const cuda::Stream caller = stream(), other = stream();
  const cuda::Address given = memory(4), result = memory(4), later = memory(4);
  OpOptions options = queued();
  options.stream = caller;
  gpu_.hold();
  static_cast<void>(driver_.memset_d8_async(given, 7, 4, caller));
  const Work work = must(comm.all_reduce(bytes_at(given, 4), bytes_at(result, 4), ReduceOp::sum, options));
  must(work.wait_on(other));
  static_cast<void>(driver_.memcpy_async(later, result, 4, other));
  gpu_.release();
  static_cast<void>(driver_.stream_synchronize(other));
  EXPECT_EQ(byte_at(later), 7);
  must(work.wait());
  must(work.wait_on(other));  // it has ended
}

TEST_F(StreamsOnNccl, a_call_in_a_capture_is_part_of_the_graph) {
  Comm comm = one_rank();
  const cuda::Stream caller = stream();
  const cuda::Address given = memory(4), result = memory(4);
  OpOptions options = queued();
  options.stream = caller;
  ASSERT_EQ(driver_.stream_begin_capture(caller, cuda::CaptureMode::global), cuda::Outcome::success);
  const Work work = must(comm.broadcast(bytes_at(given, 4), 0, options));
  EXPECT_EQ(work.status(), WorkStatus::completed);
  static_cast<void>(driver_.memcpy_async(result, given, 4, caller));
  cuda::Graph graph = nullptr;
  EXPECT_EQ(driver_.stream_end_capture(caller, &graph), cuda::Outcome::success);
  static_cast<void>(driver_.graph_destroy(graph));
  must(comm.finalize());
}

// --- failures

TEST_F(CommOnNccl, goes_on_after_a_call_that_the_library_refuses) {
  Comm comm = one_rank();
  std::vector<int> all{1};
  library().fail("ncclAllReduce", nccl::Outcome::invalid_argument);
  const auto refused = comm.all_reduce(all, ReduceOp::sum);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_THAT(refused.error().message, HasSubstr("ncclAllReduce was told to fail"));
  done(comm.all_reduce(all, ReduceOp::sum));
}

TEST_F(CommOnNccl, ends_with_a_call_that_fails) {
  Comm comm = one_rank();
  std::vector<int> all{1};
  library().fail("ncclAllReduce", nccl::Outcome::system_error);
  const Work failed = must(comm.all_reduce(all, ReduceOp::sum));
  EXPECT_EQ(failed.wait().code(), Code::backend_failed);
  EXPECT_THAT(failed.error().message,
              HasSubstr("all_reduce number 1 of \"alone\": backend nccl_newest: queue"));
  EXPECT_TRUE(comm.is_aborted());
}

TEST_F(CommOnNccl, ends_with_a_group_that_fails) {
  Comm comm = one_rank();
  std::vector<int> all{1};
  must(comm.start_coalescing());
  ok(comm.all_reduce(all, ReduceOp::sum));
  library().fail("ncclGroupEnd", nccl::Outcome::system_error);
  const Work work = must(comm.end_coalescing());
  EXPECT_EQ(work.wait().code(), Code::backend_failed);
  EXPECT_TRUE(comm.is_aborted());
}

TEST_F(CommOnNccl, ends_with_an_error_that_the_library_finds_by_itself) {
  with_ranks(2, [this](Comm& comm) {
    if (comm.rank() == 1) return;
    std::vector<int> all{1};
    const Work work = must(comm.all_reduce(all, ReduceOp::sum));  // rank 1 does not come
    library().set_async_error(nccl::Outcome::remote_error);
    EXPECT_EQ(work.wait().code(), Code::peer_lost);
    EXPECT_THAT(work.error().message, HasSubstr("remote process exited"));
    library().set_async_error(nccl::Outcome::success);
  });
}

TEST_F(CommOnNccl, reports_why_it_does_not_open) {
  CommOptions options = this->options(0, 1, "alone");
  library().fail("ncclGetUniqueId", nccl::Outcome::system_error);
  EXPECT_THAT(Comm::open(options).error().message, HasSubstr("make the id of the communicator: "));
  library().fail("ncclCommInitRankConfig", nccl::Outcome::internal_error);
  EXPECT_THAT(Comm::open(options).error().message, HasSubstr("connect the ranks: "));
  options.device = "cuda:5";
  EXPECT_THAT(Comm::open(options).error().message, HasSubstr("there is no GPU 5: this process sees 3"));
  options.device = "cpu";
  EXPECT_THAT(Comm::open(options).error().message, HasSubstr("does not move memory of cpu"));
}

TEST_F(CommOnNccl, says_which_rank_has_not_come) {
  const std::string name = unique_comm_name();
  CommOptions options = this->options(1, 2, name);
  options.meeting_timeout = milliseconds(30);
  EXPECT_EQ(Comm::open(options).code(), Code::timed_out);
}

class CommOnBlockingNccl : public CommOnEachNccl {};
INSTANTIATE_TEST_SUITE_P(Ways, CommOnBlockingNccl,
                         testing::Values(Version{"newest", "nccl_newest", "1"},
                                         Version{"old", "nccl_old", "1"}),
                         [](const auto& one) { return one.param.name; });

TEST_P(CommOnBlockingNccl, aborts_beside_a_call_that_waits_inside_the_library) {
  Comm comm = one_rank();
  std::vector<int> all{1};
  done(comm.all_reduce(all, ReduceOp::sum));
  const int before = library().calls("ncclAllReduce");
  library().hold_calls(true);
  std::jthread calling([&] {
    const auto result = comm.all_reduce(all, ReduceOp::sum);
    EXPECT_EQ(result.ok() ? result->wait().code() : result.code(), Code::canceled);
  });
  while (library().calls("ncclAllReduce") == before) std::this_thread::yield();
  comm.abort("enough");
  calling.join();
  library().hold_calls(false);
}

TEST_F(CommOnNccl, leaves_at_once_while_a_call_waits_for_another_rank) {
  with_ranks(2, [](Comm& comm) {
    if (comm.rank() == 1) return;
    auto owner = std::make_shared<int>();
    OpOptions options;
    options.owner = owner;
    std::vector<int> all{1};
    const Work work = must(comm.all_reduce(all, ReduceOp::sum, options));
    options.owner.reset();
    comm.close();
    EXPECT_EQ(work.wait().code(), Code::canceled);
    EXPECT_EQ(owner.use_count(), 1);
  });
}

// --- hints, and ranks that are left

TEST_F(CommOnNccl, takes_the_fields_of_the_configuration_as_hints) {
  Comm comm = one_rank({{"maxCTAs", "4"}, {"commName", "trainer"}, {"is_high_priority_stream", "true"}});
  EXPECT_EQ(library().last_config().max_ctas, 4);
  EXPECT_STREQ(library().last_config().comm_name, "trainer");
  const std::pair<std::map<std::string, std::string>, const char*> wrong[] = {
      {{{"maxCTA", "4"}}, "there is no hint \"maxCTA\": did you mean maxCTAs?"},
      {{{"maxCTAs", "many"}}, "hint maxCTAs is \"many\": give a number"},
      {{{"is_high_priority_stream", "maybe"}}, "give true or false"}};
  for (const auto& [hints, expected] : wrong) {
    CommOptions options = this->options(0, 1, "alone");
    options.hints = hints;
    EXPECT_THAT(Comm::open(options).error().message, HasSubstr(expected));
  }
}

/// The values 1, 2, ... of all numbers of a configuration arrive.
TEST_F(CommOnNccl, gives_every_field_of_the_configuration_to_the_library) {
  using nccl::Config;
  const std::pair<const char*, int Config::*> fields[] = {
      {"blocking", &Config::blocking},
      {"cgaClusterSize", &Config::cga_cluster_size},
      {"minCTAs", &Config::min_ctas},
      {"maxCTAs", &Config::max_ctas},
      {"splitShare", &Config::split_share},
      {"trafficClass", &Config::traffic_class},
      {"collnetEnable", &Config::collnet_enable},
      {"CTAPolicy", &Config::cta_policy},
      {"shrinkShare", &Config::shrink_share},
      {"nvlsCTAs", &Config::nvls_ctas},
      {"nChannelsPerNetPeer", &Config::channels_per_net_peer},
      {"nvlinkCentricSched", &Config::nvlink_centric_sched},
      {"graphUsageMode", &Config::graph_usage_mode},
      {"numRmaCtx", &Config::num_rma_ctx},
      {"maxP2pPeers", &Config::max_p2p_peers},
      {"graphStreamOrdering", &Config::graph_stream_ordering},
      {"launchOrderImplicit", &Config::launch_order_implicit},
      {"numRmaSig", &Config::num_rma_sig},
      {"rmaEagerInit", &Config::rma_eager_init},
      {"hostCftMode", &Config::host_cft_mode},
      {"nvlsHostMode", &Config::nvls_host_mode}};
  std::map<std::string, std::string> hints{{"netName", "IB"}, {"commName", "trainer"}};
  int value = 0;
  for (const auto& [name, field] : fields) hints[name] = std::to_string(++value);
  EXPECT_EQ(hints.size(), nccl::config_names().size());
  const Comm comm = one_rank(hints);
  const Config arrived = library().last_config();
  value = 0;
  for (const auto& [name, field] : fields) EXPECT_EQ(arrived.*field, ++value) << name;
  EXPECT_STREQ(arrived.net_name, "IB");
  EXPECT_STREQ(arrived.comm_name, "trainer");
}

TEST_F(CommOnNccl, takes_policies_by_number_and_by_name) {
  const std::pair<const char*, int> policies[] = {{"default", 0}, {"efficiency", 1}, {"zero", 2}, {"3", 3}};
  for (const auto& [text, value] : policies) {
    const Comm comm = one_rank({{"CTAPolicy", text}});
    EXPECT_EQ(library().last_config().cta_policy, value);
  }
  CommOptions options = this->options(0, 1, "alone");
  options.hints = {{"CTAPolicy", "none"}};
  EXPECT_THAT(Comm::open(options).error().message,
              HasSubstr("hint CTAPolicy is \"none\": give a number, or default, efficiency or zero"));
}

OpOptions with_hints(const std::map<std::string, std::string>& hints) {
  OpOptions options;
  options.hints = hints;
  return options;
}

TEST_F(CommOnNccl, gives_hints_of_a_call_to_the_library) {
  Comm comm = one_rank();
  std::vector<int> all{1};
  done(comm.all_reduce(all, ReduceOp::sum,
                       with_hints({{"minCTAs", "1"},
                                   {"maxCTAs", "2"},
                                   {"nvlsCTAs", "3"},
                                   {"cgaClusterSize", "4"},
                                   {"algSelection", "ring"},
                                   {"forceAlgSelection", "0"},
                                   {"CTAPolicy", "zero"},
                                   {"userProfilerTag", "9223372036854775807"}})));
  const nccl::CollConfig arrived = library().last_call_config();
  EXPECT_EQ(arrived.min_ctas, 1);
  EXPECT_EQ(arrived.max_ctas, 2);
  EXPECT_EQ(arrived.nvls_ctas, 3);
  EXPECT_EQ(arrived.cga_cluster_size, 4);
  EXPECT_STREQ(arrived.algorithms, "ring");
  EXPECT_EQ(arrived.force_algorithms, 0);
  EXPECT_EQ(arrived.cta_policy, nccl::policy_zero);
  EXPECT_EQ(arrived.profiler_tag, 9223372036854775807U);
}

/// Each has hints of its own, which arrive; and results as without.
TEST_F(CommOnNccl, takes_hints_of_every_call_that_the_library_configures) {
  with_ranks(2, [this](Comm& comm) {
    const std::vector<int> parts = numbers(2 * comm.rank(), 2), one{comm.rank()};
    std::vector<int> two(2), all{1};
    std::vector<std::vector<int>> each{{0}, {0}};
    const std::vector<Elements> outputs{each[0], each[1]};
    const std::vector<ConstElements> inputs{one, one};
    const std::function<void(const OpOptions&)> calls[] = {
        [&](const OpOptions& with) { done(comm.all_reduce(all, ReduceOp::sum, with)); },
        [&](const OpOptions& with) { done(comm.broadcast(all, 0, with)); },
        [&](const OpOptions& with) { done(comm.reduce(all, 0, ReduceOp::max, with)); },
        [&](const OpOptions& with) { done(comm.all_gather_single(two, one, with)); },
        [&](const OpOptions& with) { done(comm.all_gather(outputs, one, with)); },
        [&](const OpOptions& with) { done(comm.reduce_scatter_single(all, parts, ReduceOp::sum, with)); },
        [&](const OpOptions& with) { done(comm.reduce_scatter(all, inputs, ReduceOp::sum, with)); },
        [&](const OpOptions& with) { done(comm.all_to_all_single(two, parts, with)); },
        [&](const OpOptions& with) { done(comm.gather_single(two, one, 0, with)); },
        [&](const OpOptions& with) { done(comm.barrier(with)); }};
    int tag = 0;
    for (const auto& call : calls) {
      call(with_hints({{"userProfilerTag", std::to_string(++tag)}}));
      EXPECT_EQ(library().last_call_config().profiler_tag, static_cast<std::uint64_t>(tag));
      done(comm.barrier());  // the other rank may be ahead
    }
    EXPECT_THAT(each, ElementsAre(ElementsAre(0), ElementsAre(1)));
    EXPECT_THAT(all, ElementsAre(1));
  });
}

TEST_F(CommOnNccl, keeps_the_hints_of_a_call_until_its_group_ends) {
  Comm comm = one_rank();
  std::vector<int> all{1};
  must(comm.start_coalescing());
  ok(comm.all_reduce(all, ReduceOp::sum, with_hints({{"maxCTAs", "6"}})));
  done(comm.end_coalescing());
  EXPECT_EQ(library().last_call_config().max_ctas, 6);
}

TEST_F(CommOnNccl, refuses_hints_that_a_call_does_not_take) {
  Comm comm = one_rank();
  std::vector<int> all{1}, other{0};
  EXPECT_THAT(comm.barrier(with_hints({{"maxCTA", "1"}})).error().message,
              HasSubstr("there is no hint \"maxCTA\" of a call: did you mean maxCTAs?"));
  EXPECT_THAT(comm.barrier(with_hints({{"maxCTAs", "few"}})).error().message,
              HasSubstr("hint maxCTAs is \"few\": give a number"));
  const std::vector<Elements> outputs{other};
  const auto refused = comm.gather(outputs, all, 0, with_hints({{"maxCTAs", "1"}}));
  EXPECT_EQ(refused.code(), Code::not_supported);
  EXPECT_THAT(refused.error().message, HasSubstr("gather is sends and receives, which take no hints"));
  done(comm.barrier());
}

TEST_F(CommOnNccl, shrinks_after_a_rank_has_gone) {
  with_ranks(3, [](Comm& comm) {
    if (comm.rank() == 1) {
      comm.abort("it dies");
      return;
    }
    OpOptions options;
    options.timeout = milliseconds(30);
    std::vector<int> all{comm.rank()};
    EXPECT_EQ(must(comm.all_reduce(all, ReduceOp::sum, options)).wait().code(), Code::timed_out);
    Comm left = must(comm.shrink(std::array{1}));
    EXPECT_THAT(left.ranks(), ElementsAre(0, 2));
    all = {left.rank()};
    done(left.all_reduce(all, ReduceOp::sum));
    EXPECT_THAT(all, ElementsAre(1));
  });
}

TEST_F(CommOnNccl, shrinks_before_it_has_ended) {
  with_ranks(3, [](Comm& comm) {
    if (comm.rank() == 1) return;
    Comm left = must(comm.shrink(std::array{1}));
    EXPECT_TRUE(comm.is_aborted());
    std::vector<int> all{1};
    done(left.all_reduce(all, ReduceOp::sum));
    EXPECT_THAT(all, ElementsAre(2));
  });
}

class CommOnOldNccl : public CommOnNccl {
 protected:
  CommOnOldNccl() : CommOnNccl("nccl_old") {}
};

TEST_F(CommOnOldNccl, says_which_version_has_what_it_lacks) {
  Comm comm = one_rank();
  std::vector<std::uint8_t> small{0x38};
  EXPECT_THAT(comm.all_reduce(elements(small, DType::float8_e5m2), ReduceOp::sum).error().message,
              HasSubstr("reducing float8_e5m2 needs NCCL 2.24.3, and " + library().path() + " is 2.20.5"));
  done(comm.broadcast(elements(small, DType::float8_e5m2), 0));
  EXPECT_THAT(comm.barrier(with_hints({{"maxCTAs", "1"}})).error().message,
              HasSubstr("hint maxCTAs of a call needs NCCL 2.31.0"));
  EXPECT_THAT(comm.suspend().error().message, HasSubstr("suspend needs NCCL 2.29.7"));
  EXPECT_THAT(comm.resume().error().message, HasSubstr("is not suspended"));
  EXPECT_THAT(comm.shrink({}).error().message, HasSubstr("shrink needs NCCL 2.27.3"));
  CommOptions options = this->options(0, 1, "alone");
  options.hints = {{"CTAPolicy", "2"}};
  EXPECT_THAT(Comm::open(options).error().message, HasSubstr("hint CTAPolicy needs NCCL 2.27.0"));
}

}  // namespace
}  // namespace headrace::test
