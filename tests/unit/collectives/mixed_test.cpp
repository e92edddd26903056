// SPDX-License-Identifier: Apache-2.0
// Operations of all kinds in a random order, on three communicators at once: every rank draws the same steps
// from one seed, and compares each result with plain arithmetic in float64. A failure prints the seed:
// HEADRACE_TEST_SEED=that runs the same steps.
#include "collectives/operation.hpp"
#include "ranks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace headrace::test {
namespace {

using collectives::kind_of;
using collectives::reduces;
using Kind = ReduceOp::Kind;
using Number = std::complex<double>;
using Op = CommOperation;

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

// ---------------------------------------------------------------- elements

bool is_complex(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128; }
bool is_float(DType dtype) {
  constexpr std::array floats{DType::float32,  DType::float64,       DType::float16,
                              DType::bfloat16, DType::float8_e4m3fn, DType::float8_e5m2};
  return std::ranges::count(floats, dtype) != 0;
}
bool is_unsigned(DType dtype) {
  constexpr std::array types{DType::uint8, DType::uint16, DType::uint32, DType::uint64};
  return std::ranges::count(types, dtype) != 0;
}

/// Elements in a row, one slot after another, between bytes that stay as they are.
class Slots {
 public:
  Slots(DType dtype, std::vector<std::size_t> counts) : dtype_(dtype), counts_(std::move(counts)) {
    for (const std::size_t count : counts_) count_ += count;
    bytes_.assign(count_ * element_bytes(dtype) + 2 * guard_bytes, guard);
  }
  [[nodiscard]] Elements all() { return {data(), count_, dtype_}; }
  [[nodiscard]] std::vector<Elements> list() {
    std::vector<Elements> parts;
    std::byte* next = data();
    for (const std::size_t count : counts_) {
      parts.emplace_back(next, count, dtype_);
      next += count * element_bytes(dtype_);
    }
    return parts;
  }
  [[nodiscard]] std::vector<ConstElements> const_list() {
    const std::vector<Elements> parts = list();
    return {parts.begin(), parts.end()};
  }
  [[nodiscard]] const std::vector<std::size_t>& counts() const { return counts_; }
  [[nodiscard]] bool guards_are_whole() const {
    return std::all_of(bytes_.begin(), bytes_.begin() + guard_bytes, is_guard) &&
           std::all_of(bytes_.end() - guard_bytes, bytes_.end(), is_guard);
  }

  /// `of(slot, i)` becomes, or is compared with, element i of each slot.
  template <class Of>
  void fill(const Of& of) {
    each([&](std::size_t slot, std::size_t i, std::size_t index) { set(index, of(slot, i)); });
  }
  /// A line for the first element that is another; empty if there is none.
  template <class Of>
  std::string difference(const Of& of) {
    std::string found;
    each([&](std::size_t slot, std::size_t i, std::size_t index) {
      if (!found.empty()) return;
      Slots expected(dtype_, {1});
      expected.set(0, of(slot, i));
      if (get(index) == expected.get(0)) return;
      std::ostringstream text;
      text << "element " << i << " of " << counts_[slot] << " in slot " << slot << " is " << get(index)
           << ", not " << expected.get(0);
      found = text.str();
    });
    return found;
  }

 private:
  static constexpr std::ptrdiff_t guard_bytes = 64;
  static constexpr std::byte guard{0x5a};
  static bool is_guard(std::byte byte) { return byte == guard; }
  std::byte* data() { return bytes_.data() + guard_bytes; }
  template <class Each>
  void each(const Each& each) {
    std::size_t index = 0;
    for (std::size_t slot = 0; slot < counts_.size(); ++slot)
      for (std::size_t i = 0; i < counts_[slot]; ++i) each(slot, i, index++);
  }
  [[nodiscard]] DType component() const {
    return dtype_ == DType::complex64 ? DType::float32 : DType::float64;
  }
  void set(std::size_t index, Number number) {
    const auto i = static_cast<std::int64_t>(index);
    if (!is_complex(dtype_)) return write_element(data(), dtype_, i, number.real());
    write_element(data(), component(), 2 * i, number.real());
    write_element(data(), component(), 2 * i + 1, number.imag());
  }
  [[nodiscard]] Number get(std::size_t index) {
    const auto i = static_cast<std::int64_t>(index);
    if (!is_complex(dtype_)) return read_element(data(), dtype_, i);
    return {read_element(data(), component(), 2 * i), read_element(data(), component(), 2 * i + 1)};
  }

  const DType dtype_;
  const std::vector<std::size_t> counts_;
  std::size_t count_ = 0;
  std::vector<std::byte> bytes_;
};

// ---------------------------------------------------------------- one step, the same on all ranks

/// What all ranks do, and the result in plain arithmetic.
struct DrawnStep {
  Op operation = Op::barrier;
  DType dtype = DType::float32;
  ReduceOp op = Kind::sum;
  int size = 1, root = 0;
  std::uint64_t salt = 0;
  /// counts[a][b]: what rank a has for rank b. Operations whose ranks or slots have one count use the first.
  std::vector<std::vector<std::size_t>> counts;
  bool in_place = false, one_shot = false;

  /// Small enough that every integer holds the products of three, and every float each element; a float
  /// rounds the result once.
  [[nodiscard]] Number value(int rank, std::size_t slot, std::size_t i) const {
    std::uint64_t bits =
        salt + (static_cast<std::uint64_t>(rank) << 48) + (std::uint64_t{slot} << 40) + std::uint64_t{i};
    bits = (bits ^ (bits >> 31)) * 0x9e3779b97f4a7c15;
    bits ^= bits >> 29;
    if (dtype == DType::boolean) return static_cast<double>(bits & 1);
    const double first = is_unsigned(dtype) ? 0 : -3;
    const double real = first + static_cast<double>(bits % (first < 0 ? 9 : 6));
    return is_complex(dtype) ? Number(real, static_cast<double>((bits >> 20) % 4)) : Number(real);
  }

  [[nodiscard]] Number reduced(std::size_t slot, std::size_t i) const {
    Number result = op.factor * value(0, slot, i);
    for (int rank = 1; rank < size; ++rank) result = combined(result, op.factor * value(rank, slot, i));
    if (dtype == DType::boolean) return std::min(result.real(), 1.0);
    if (op.kind != Kind::avg) return result;
    result /= static_cast<double>(size);
    return is_float(dtype) || is_complex(dtype) ? result : Number(std::trunc(result.real()));
  }

  [[nodiscard]] std::vector<std::size_t> inputs(int me) const {
    const std::size_t one = counts[0][0];
    switch (kind_of(operation)) {
      case Op::all_gather:
        return {is_v() ? counts[at(me)][0] : one};
      case Op::reduce_scatter:
      case Op::reduce_scatter_quantized:
        return per_rank([&](int rank) { return is_v() ? counts[at(rank)][0] : one; });
      case Op::all_to_all:
      case Op::device_all_to_all_v_single:
        return per_rank(
            [&](int rank) { return operation == Op::all_to_all_single ? one : counts[at(me)][at(rank)]; });
      case Op::scatter:
        return me == root ? per_rank([&](int) { return one; }) : std::vector<std::size_t>();
      default:
        return {one};
    }
  }
  [[nodiscard]] std::vector<std::size_t> outputs(int me) const {
    const std::size_t one = counts[0][0];
    switch (kind_of(operation)) {
      case Op::all_gather:
        return per_rank([&](int rank) { return is_v() ? counts[at(rank)][0] : one; });
      case Op::reduce_scatter:
      case Op::reduce_scatter_quantized:
        return {is_v() ? counts[at(me)][0] : one};
      case Op::all_to_all:
      case Op::device_all_to_all_v_single:
        return per_rank(
            [&](int rank) { return operation == Op::all_to_all_single ? one : counts[at(rank)][at(me)]; });
      case Op::gather:
        return me == root ? per_rank([&](int) { return one; }) : std::vector<std::size_t>();
      default:
        return {one};
    }
  }
  /// Element i of output `slot` of rank `me`.
  [[nodiscard]] Number expected(int me, std::size_t slot, std::size_t i) const {
    switch (kind_of(operation)) {
      case Op::all_reduce:
        return reduced(0, i);
      case Op::reduce:
        return me == root ? reduced(0, i) : value(me, 0, i);
      case Op::broadcast:
        return value(root, 0, i);
      case Op::reduce_scatter:
      case Op::reduce_scatter_quantized:
        return reduced(at(me), i);
      case Op::all_to_all:
      case Op::device_all_to_all_v_single:
        return value(static_cast<int>(slot), at(me), i);
      case Op::scatter:
        return value(root, at(me), i);
      default:
        return value(static_cast<int>(slot), 0, i);
    }
  }

 private:
  [[nodiscard]] bool is_v() const {
    return operation == Op::all_gather_v || operation == Op::reduce_scatter_v;
  }
  template <class Count>
  [[nodiscard]] std::vector<std::size_t> per_rank(const Count& count) const {
    std::vector<std::size_t> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(count(rank));
    return all;
  }
  [[nodiscard]] Number combined(Number a, Number b) const {
    const auto x = static_cast<std::int64_t>(a.real()), y = static_cast<std::int64_t>(b.real());
    switch (op.kind) {
      case Kind::product:
        return a * b;
      case Kind::min:
        return std::min(a.real(), b.real());
      case Kind::max:
        return std::max(a.real(), b.real());
      case Kind::band:
        return static_cast<double>(x & y);
      case Kind::bor:
        return static_cast<double>(x | y);
      case Kind::bxor:
        return static_cast<double>(x ^ y);
      default:
        return a + b;
    }
  }
};

/// DrawnMessages of one step: all of one type and count.
struct DrawnMessages {
  struct One {
    int from = 0, to = 0;
    std::uint32_t tag = 0;
    std::size_t ordinal = 0;  ///< among those of this tag between these ranks
  };
  DrawnStep elements;
  std::vector<One> all;
};

/// Draws steps from a seed.
class Drawing {
 public:
  Drawing(std::uint64_t seed, int size) : random_(seed), size_(size) {}

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_()) % limit; }

  DrawnStep collective() {
    constexpr std::array operations{Op::all_reduce,
                                    Op::broadcast,
                                    Op::reduce,
                                    Op::all_gather,
                                    Op::all_gather_v,
                                    Op::all_gather_single,
                                    Op::reduce_scatter,
                                    Op::reduce_scatter_v,
                                    Op::reduce_scatter_single,
                                    Op::reduce_scatter_quantized,
                                    Op::all_to_all,
                                    Op::all_to_all_single,
                                    Op::all_to_all_v_single,
                                    Op::device_all_to_all_v_single,
                                    Op::gather,
                                    Op::gather_single,
                                    Op::scatter,
                                    Op::barrier};
    DrawnStep step = elements(static_cast<DType>(below(dtype_count)));
    step.operation = operations[below(operations.size())];
    if (step.operation == Op::reduce_scatter_quantized) {
      step.dtype = DType::float32;
      step.op = below(2) == 0 ? Kind::sum : Kind::avg;
    } else {
      do step.op = {static_cast<Kind>(below(Kind::premul_sum + 1)), 1};
      while (reduces(step.operation) && !has_meaning(step.op.kind, step.dtype));
      if (step.op.kind == Kind::premul_sum) step.op.factor = 2;
    }
    return step;
  }

  DrawnMessages messages(std::uint32_t first_tag) {
    DrawnMessages drawn{elements(static_cast<DType>(below(dtype_count))), {}};
    std::map<std::tuple<int, int, std::uint32_t>, std::size_t> before;
    for (std::size_t left = 1 + below(4); left > 0; --left) {
      DrawnMessages::One one;
      one.from = static_cast<int>(below(at(size_)));
      one.to = (one.from + 1 + static_cast<int>(below(at(size_ - 1)))) % size_;
      one.tag = first_tag + static_cast<std::uint32_t>(below(2));
      one.ordinal = before[{one.from, one.to, one.tag}]++;
      drawn.all.push_back(one);
    }
    return drawn;
  }

 private:
  DrawnStep elements(DType dtype) {
    DrawnStep step;
    step.dtype = dtype;
    step.size = size_;
    step.salt = random_();
    step.root = static_cast<int>(below(at(size_)));
    step.in_place = below(2) == 0;
    step.one_shot = below(2) == 0;
    step.counts.assign(at(size_), std::vector<std::size_t>(at(size_)));
    for (auto& row : step.counts)
      for (std::size_t& count : row) count = this->count();
    return step;
  }
  /// Few elements, or so many that they pass the limits of lines, chunks, rings and algorithms.
  std::size_t count() {
    constexpr std::array<std::size_t, 6> limits{1, 4, 20, 300, 300, 3001};
    return below(limits[below(limits.size())]);
  }
  static bool has_meaning(Kind kind, DType dtype) {
    const bool bits = kind == Kind::band || kind == Kind::bor || kind == Kind::bxor;
    if (is_float(dtype)) return !bits;
    if (is_complex(dtype)) return !bits && kind != Kind::min && kind != Kind::max;
    return dtype != DType::boolean || (kind != Kind::avg && kind != Kind::premul_sum);
  }

  std::mt19937_64 random_;
  const int size_;
};

// ---------------------------------------------------------------- one rank of one communicator

class MixOfRank {
 public:
  MixOfRank(Comm& comm, std::uint64_t seed)
      : comm_(comm), drawing_(seed, comm.size()), own_(seed + 1000 * (at(comm.rank()) + 1), comm.size()) {}

  void run(std::size_t operations) {
    while (done_ < operations && error_.empty()) {
      one_step();
      if (pending_.size() > 8 || own_.below(6) == 0) settle();
    }
    settle();
    if (error_.empty()) return;
    ADD_FAILURE() << comm_.name() << ", rank " << comm_.rank() << ", operation " << done_ << ": " << error_;
    comm_.abort("a result is wrong");  // the others do not wait for it
    for (const PendingCheck& left : pending_) static_cast<void>(left.work.wait());
  }

 private:
  using Check = std::function<std::string(const Work&)>;
  struct PendingCheck {
    Work work;
    Check check;
  };

  void one_step() {
    switch (drawing_.below(8)) {
      case 0:
        return coalesced();
      case 1:
      case 2:
        return messages();
      case 3:
        if (drawing_.below(4) != 0) return collective(drawing_.collective());
        ++done_;
        return note(comm_.monitored_barrier({}, drawing_.below(2) == 0));
      default:
        return collective(drawing_.collective());
    }
  }

  void collective(const DrawnStep& step) {
    ++done_;
    OpOptions options;
    options.async = own_.below(2) == 0;
    auto input = std::make_shared<Slots>(step.dtype, step.inputs(me()));
    const bool in_place = step.operation == Op::broadcast || step.operation == Op::reduce ||
                          (step.operation == Op::all_reduce && step.in_place);
    auto output = in_place ? input : std::make_shared<Slots>(step.dtype, step.outputs(me()));
    input->fill([&](std::size_t slot, std::size_t i) { return step.value(me(), slot, i); });
    keep(call(step, *input, *output, options), [step, input, output, this](const Work&) {
      if (!input->guards_are_whole() || !output->guards_are_whole())
        return std::string("it wrote beside its elements");
      if (step.operation == Op::barrier) return std::string();
      const auto expected = [&](std::size_t slot, std::size_t i) { return step.expected(me(), slot, i); };
      std::string wrong = output->difference(expected);
      if (wrong.empty()) return wrong;
      return std::string(comm_operation_name(step.operation)) + " of " + std::string(dtype_name(step.dtype)) +
             " with " + std::string(reduce_op_name(step.op.kind)) + ": " + wrong;
    });
  }

  Result<Work> call(const DrawnStep& step, Slots& in, Slots& out, OpOptions options) {
    switch (step.operation) {
      case Op::all_reduce:
        options.hints["algorithm"] = step.one_shot ? "one_shot" : "two_shot";
        return comm_.all_reduce(ConstElements(in.all()), out.all(), step.op, options);
      case Op::broadcast:
        return comm_.broadcast(out.all(), step.root, options);
      case Op::reduce:
        return comm_.reduce(out.all(), step.root, step.op, options);
      case Op::all_gather:
        return comm_.all_gather(out.list(), in.all(), options);
      case Op::all_gather_v:
        return comm_.all_gather_v(out.list(), in.all(), options);
      case Op::all_gather_single:
        return step.one_shot ? gather_prepared(in, out, options)
                             : comm_.all_gather_single(out.all(), in.all(), options);
      case Op::reduce_scatter:
        return comm_.reduce_scatter(out.all(), in.const_list(), step.op, options);
      case Op::reduce_scatter_v:
        return comm_.reduce_scatter_v(out.all(), in.const_list(), step.op, options);
      case Op::reduce_scatter_single:
        return comm_.reduce_scatter_single(out.all(), in.all(), step.op, options);
      case Op::reduce_scatter_quantized:
        return comm_.reduce_scatter_quantized(out.all(), in.all(), step.op, step.salt, options);
      case Op::all_to_all:
        return comm_.all_to_all(out.list(), in.const_list(), options);
      case Op::all_to_all_single:
        return comm_.all_to_all_single(out.all(), in.all(), options);
      case Op::all_to_all_v_single:
        return comm_.all_to_all_v_single(out.all(), in.all(), out.counts(), in.counts(), options);
      case Op::device_all_to_all_v_single:
        return exchange_by_elements(in, out, options);
      case Op::gather:
        return comm_.gather(out.list(), in.all(), step.root, options);
      case Op::gather_single:
        return comm_.gather_single(out.all(), in.all(), step.root, options);
      case Op::scatter:
        return comm_.scatter(out.all(), in.const_list(), step.root, options);
      default:
        return comm_.barrier(options);
    }
  }
  /// The operation keeps the splits.
  Result<Work> exchange_by_elements(Slots& in, Slots& out, OpOptions options) {
    const auto splits = std::make_shared<std::array<std::vector<std::int64_t>, 2>>();
    (*splits)[0].assign(out.counts().begin(), out.counts().end());
    (*splits)[1].assign(in.counts().begin(), in.counts().end());
    options.owner = splits;
    return comm_.device_all_to_all_v_single(out.all(), in.all(), (*splits)[0], (*splits)[1], options);
  }
  Result<Work> gather_prepared(Slots& in, Slots& out, const OpOptions& options) {
    auto handle = comm_.all_gather_p_init(out.all());
    if (!handle.ok()) return handle.error();
    auto work = comm_.all_gather_p_exec(*handle, in.all(), options);
    if (const auto freed = comm_.all_gather_p_free(*handle); !freed.ok()) return freed.error();
    return work;
  }

  /// Some collectives as one.
  void coalesced() {
    note(comm_.start_coalescing());
    for (std::size_t left = 1 + drawing_.below(3); left > 0; --left) collective(drawing_.collective());
    const auto all = comm_.end_coalescing(own_.below(2) == 0);
    if (!all.ok()) error_ = all.error().message;
  }

  /// This rank's share of the messages of a step: sends first, so that no rank waits for another's receive.
  void messages() {
    const DrawnMessages drawn = drawing_.messages(next_tag_);
    next_tag_ += 2;
    done_ += drawn.all.size();
    if (own_.below(3) == 0) return batch(drawn);
    for (const DrawnMessages::One& one : drawn.all)
      if (one.from == me()) send(drawn.elements, one);
    // Receives of one tag come in the order of the sends; the tags in an order of their own.
    const std::uint32_t first = own_.below(2) == 0 ? 0 : 1;
    for (const std::uint32_t tag : {next_tag_ - 2 + first, next_tag_ - 1 - first}) {
      const bool from_any = own_.below(2) == 0;
      const auto came = std::make_shared<std::map<int, std::size_t>>();
      for (const DrawnMessages::One& one : drawn.all)
        if (one.to == me() && one.tag == tag) receive(drawn.elements, one, from_any, came);
    }
  }

  std::shared_ptr<Slots> message_memory(const DrawnStep& elements) {
    return std::make_shared<Slots>(elements.dtype, std::vector{elements.counts[0][0]});
  }
  std::shared_ptr<Slots> sent_memory(const DrawnStep& elements, const DrawnMessages::One& one) {
    auto memory = message_memory(elements);
    memory->fill([&](std::size_t, std::size_t i) { return of_message(elements, one, one.from, i); });
    return memory;
  }
  static Number of_message(const DrawnStep& elements, const DrawnMessages::One& one, int from,
                           std::size_t i) {
    return elements.value(from, 16 * at(one.to) + 8 * (one.tag % 2) + one.ordinal, i);
  }
  MessageOptions message_options(std::uint32_t tag) {
    MessageOptions options;
    options.async = own_.below(2) == 0;
    options.tag = tag;
    return options;
  }

  void send(const DrawnStep& elements, const DrawnMessages::One& one) {
    const auto memory = sent_memory(elements, one);
    keep(comm_.send(memory->all(), one.to, message_options(one.tag)),
         [memory](const Work&) { return std::string(); });
  }
  /// `came`: how many messages of each rank the receives of this tag have got.
  void receive(const DrawnStep& elements, const DrawnMessages::One& one, bool from_any,
               const std::shared_ptr<std::map<int, std::size_t>>& came) {
    const auto memory = message_memory(elements);
    keep(comm_.recv(memory->all(), from_any ? any_source : one.from, message_options(one.tag)),
         [=](const Work& work) {
           DrawnMessages::One got = one;
           got.from = work.source();
           got.ordinal = (*came)[got.from]++;
           if (!from_any && got.from != one.from) return std::string("a message of another rank");
           return received(elements, got, *memory);
         });
  }
  static std::string received(const DrawnStep& elements, const DrawnMessages::One& one, Slots& memory) {
    if (!memory.guards_are_whole()) return "a receive wrote beside its elements";
    const std::string wrong =
        memory.difference([&](std::size_t, std::size_t i) { return of_message(elements, one, one.from, i); });
    return wrong.empty() ? wrong : "recv from rank " + std::to_string(one.from) + ": " + wrong;
  }

  void batch(const DrawnMessages& drawn) {
    Batch batch = comm_.batch();
    std::vector<std::shared_ptr<Slots>> kept;
    for (const DrawnMessages::One& one : drawn.all) {
      kept.push_back(one.from == me() ? sent_memory(drawn.elements, one) : message_memory(drawn.elements));
      if (one.from == me()) note(batch.send(kept.back()->all(), one.to, one.tag));
      if (one.to == me()) note(batch.recv(kept.back()->all(), one.from, one.tag));
    }
    OpOptions options;
    options.async = own_.below(2) == 0;
    keep(batch.issue(options), [=, this](const Work&) {
      for (std::size_t i = 0; i < kept.size(); ++i) {
        if (drawn.all[i].to != me()) continue;
        if (std::string wrong = received(drawn.elements, drawn.all[i], *kept[i]); !wrong.empty())
          return "batch: " + wrong;
      }
      return std::string();
    });
  }

  void note(const Result<void>& result) {
    if (!result.ok() && error_.empty()) error_ = result.error().message;
  }
  void keep(Result<Work> work, Check check) {
    if (work.ok())
      pending_.push_back({*work, std::move(check)});
    else if (error_.empty())
      error_ = work.error().message;
  }
  void settle() {
    for (; !pending_.empty() && error_.empty(); pending_.pop_front()) {
      const PendingCheck& next = pending_.front();
      note(next.work.wait());
      if (error_.empty()) error_ = next.check(next.work);
    }
  }
  [[nodiscard]] int me() const { return comm_.rank(); }

  Comm& comm_;
  Drawing drawing_;  // the same on all ranks
  Drawing own_;      // what may differ: what is asynchronous, for example
  std::size_t done_ = 0;
  std::uint32_t next_tag_ = 0;
  std::deque<PendingCheck> pending_;
  std::string error_;
};

// ---------------------------------------------------------------- tests

std::uint64_t seed_of_test() {
  const char* const given = std::getenv("HEADRACE_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
}

struct MixedRow {
  int size;
  const char* backends;
};

std::ostream& operator<<(std::ostream& out, const MixedRow& row) {
  return out << row.size << " ranks over " << row.backends;
}

class MixedOperations : public testing::TestWithParam<MixedRow> {
 protected:
  /// Three communicators at once: one, a split of it in another order, and one of other agents.
  static void run(std::size_t operations) {
    const std::uint64_t seed = seed_of_test();
    const int size = GetParam().size;
    const std::string name = unique_comm_name(), other_name = unique_comm_name();
    on_threads(size, [&](int rank) {
      Comm first = must(Comm::open(options(rank, name)));
      Comm other = must(Comm::open(options(rank, other_name)));
      std::vector<int> reversed;
      for (int from = size - 1; from >= 0; --from) reversed.push_back(from);
      Comm turned = *must(first.split(reversed, "turned"));
      const std::array comms{&first, &other, &turned};
      on_threads(static_cast<int>(comms.size()), [&](int index) {
        MixOfRank(*comms[at(index)], seed + at(index)).run(operations / comms.size());
      });
      for (Comm* const comm : comms) must(comm->finalize());
    });
    if (HasFailure())
      std::fprintf(stderr, "HEADRACE_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  }

 private:
  static CommOptions options(int rank, const std::string& name) {
    CommOptions options = rank_options(rank, GetParam().size, name);
    // Small, so that few elements pass every limit.
    options.hints = {{"backends", GetParam().backends},
                     {"lane_bytes", "16KiB"},
                     {"chunk_bytes", "4KiB"},
                     {"block_bytes", "8KiB"},
                     {"message_lane_bytes", "8KiB"}};
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, MixedOperations,
                         testing::Values(MixedRow{2, "shm"}, MixedRow{3, "shm"}, MixedRow{3, "tcp"}),
                         [](const auto& row) {
                           return std::to_string(row.param.size) + "_over_" + row.param.backends;
                         });

TEST_P(MixedOperations, give_the_results_of_plain_arithmetic) { run(500); }
TEST_P(MixedOperations, ten_thousand_give_the_results_of_plain_arithmetic_slow) { run(10'000); }

}  // namespace
}  // namespace headrace::test
