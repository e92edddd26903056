// SPDX-License-Identifier: Apache-2.0
// <headrace/moe_weights.hpp>: weights of experts that several ranks hold.
#include <headrace/moe_weights.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/moe_handle.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace headrace::python {
namespace {

using WeightsTensors = nb::typed<nb::sequence, nb::object>;

/// With its MoE, the agent of that, and its tensors. Calls wait for other ranks, so they are without the GIL.
class PyMoEWeights {
  struct Opened {
    Opened(std::shared_ptr<PyMoE::Opened> moe, MoEWeights made)
        : of(std::move(moe)), weights(std::move(made)) {}
    std::shared_ptr<PyMoE::Opened> of;
    MoEWeights weights;  // goes first
    std::mutex mutex;    // what a call of another thread has made is not read halfway
  };
  /// Returns call(MoEWeights&), called without the GIL, one at a time.
  template <class Call>
  auto ask(const Call& call) const {
    if (!home_.is_here())  // a thread of the parent may hold the lock
      raise_invalid("the weights were opened before this process was forked: open others in the child");
    return without_gil([&, of = opened()]() mutable {
      auto answer = [&] {
        const std::scoped_lock lock(of->mutex);
        return call(of->weights);
      }();
      of.reset();
      return answer;
    });
  }
  static void copy_table(const MoEReplicas& table, PyMoEReplicas& made) {
    const std::int32_t places = table.first[table.experts];
    made.first.assign(table.first, table.first + table.experts + 1);
    made.places.assign(table.places, table.places + places);
    made.until.assign(table.until, table.until + places);
    made.before.assign(table.before, table.before + table.experts);
    made.table.choice = table.choice;
    made.point_at_memory();
  }
  [[nodiscard]] std::shared_ptr<Opened> opened() const {
    if (!opened_) raise(Error{Code::invalid_argument, "the weights are closed: open others"});
    return opened_;
  }

 public:
  PyMoEWeights(const PyMoE& moe, const std::vector<std::int32_t>& experts, const WeightsTensors& tensors,
               const Text& name, const TimeLimit& timeout)
      : tensors_(tensors) {
    const auto of = moe.opened();
    std::vector<TensorInput> inputs;
    std::vector<TensorView> views;
    ExchangeCache cache;
    for (const nb::handle tensor : tensors) {
      inputs.emplace_back(tensor.ptr(), TensorRole{"the argument", "tensors", "weights of a MoE"}, cache);
      views.push_back(inputs.back().view());
    }
    auto opened = without_gil(
        [&] { return MoEWeights::open(*of->agent, of->moe, experts, views, name.str(), limit_of(timeout)); });
    opened_ = std::make_shared<Opened>(of, take_uninterrupted(std::move(opened)));
  }
  ~PyMoEWeights() {
    const nb::error_scope keep_error;
    close();
  }
  PyMoEWeights(const PyMoEWeights&) = delete;
  PyMoEWeights& operator=(const PyMoEWeights&) = delete;

  void close() {
    tensors_.reset();
    without_gil([opened = std::exchange(opened_, nullptr), home = home_]() mutable {
      home.release(opened);
      return true;
    });
  }

  PyMoEReplicas* balance(const std::vector<std::int64_t>& counts, const TimeLimit& timeout) const {
    auto made = std::make_unique<PyMoEReplicas>();
    take_uninterrupted(ask([&](MoEWeights& weights) {
      auto done = weights.balance(counts, limit_of(timeout));
      if (done) copy_table(weights.replicas(), *made);
      return done;
    }));
    return made.release();
  }
  [[nodiscard]] PyMoEReplicas* replicas() const {
    auto made = std::make_unique<PyMoEReplicas>();
    ask([&](MoEWeights& weights) { return copy_table(weights.replicas(), *made), true; });
    return made.release();
  }
  [[nodiscard]] MoEPlan plan() const {
    return ask([](MoEWeights& weights) { return weights.plan(); });
  }
  [[nodiscard]] std::uint64_t moved_bytes() const {
    return ask([](MoEWeights& weights) { return weights.moved_bytes(); });
  }

 private:
  HomeProcess home_;
  nb::object tensors_;
  std::shared_ptr<Opened> opened_;
};

}  // namespace

void bind_moe_weights(nb::module_& module) {
  nb::class_<PyMoEWeights>(
      module, "MoEWeights", nb::is_weak_referenceable(),
      "Gives hot experts replicas on other ranks, step by step: a call of balance gathers the counts of "
      "this\n"
      "step from all ranks, makes the same plan on each (moe_plan), and reads the weights of new replicas "
      "from\n"
      "the ranks that keep them. Replicas that a place holds already are not moved.\n\n"
      "Failure: if a rank is late or gone, balance raises, and `replicas` names only places that keep their\n"
      "experts: go on with the dispatch, and with the next call of balance, which goes on with the ranks "
      "that\n"
      "take part then. If the rank that kept an expert is out, a replica that another one holds is kept "
      "from\n"
      "then on. After MoE.regroup all ranks open a new one.\n"
      "Ranks send notifications, whose first bytes are \"headrace.moe.weights \": take your own with a "
      "filter.\n"
      "Owns: it keeps the MoE, its agent and the tensors; close it before them.\n"
      "Threads: one call at a time; others wait.")
      .def(
          nb::init<const PyMoE&, const std::vector<std::int32_t>&, const WeightsTensors&, const Text&,
                   const TimeLimit&>(),
          nb::arg("moe"), nb::arg("experts"), nb::arg("tensors"), nb::kw_only(), nb::arg("name") = "weights",
          nb::arg("timeout") = nb::none(),
          "Meets the other ranks: all that take part make one, after they have joined, in the same order.\n\n"
          "experts: of each place (experts of the configuration) that which it keeps; -1: it is free. Each\n"
          "expert has a place. The same on all ranks.\n"
          "tensors: [local_experts, ...] each, without gaps, in host memory that the agent has registered "
          "or\n"
          "allocated. Places that keep an expert have its weights now, and nobody changes them while others "
          "may\n"
          "read.\n"
          "name: the same on all ranks; another one for each layer of a MoE.\n"
          "timeout: seconds or a timedelta; None: 10 s.\n"
          "Errors: InvalidArgument (what differs, and on which rank), NotFound (the memory of a peer is not\n"
          "known: import metadata that it made after it had registered it, or give the agents a store),\n"
          "NotSupported (a GPU), TimedOut and PeerLost (which rank). After an error all ranks make another "
          "one.")
      .def("balance", &PyMoEWeights::balance, nb::arg("counts"), nb::arg("timeout") = nb::none(),
           nb::rv_policy::take_ownership,
           "Returns the table for the next dispatch. All ranks that take part call it at the same place in "
           "the\n"
           "order of operations, when the experts have run that use the free places: it writes these.\n\n"
           "counts: how many entries of the tokens of this rank's group name each expert.\n"
           "timeout: seconds or a timedelta; None: 10 s.\n"
           "Errors: TimedOut, PeerLost (which rank), Canceled (others have left this rank out), "
           "InvalidArgument\n"
           "(counts; a rank that has come since), and the error of another rank, with its number.")
      .def_prop_ro(
          "replicas", &PyMoEWeights::replicas, nb::rv_policy::take_ownership,
          "The table for the next dispatch. Before the first call of balance, and after one that has\n"
          "raised, it has the places that keep their experts.")
      .def_prop_ro("plan", &PyMoEWeights::plan,
                   "What each place holds by that table, and the entries that each rank gets.")
      .def_prop_ro("moved_bytes", &PyMoEWeights::moved_bytes,
                   "Bytes of weights that the last call of balance has read.")
      .def("close", &PyMoEWeights::close, "Lets the MoE and the tensors go.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> MoEWeights"))
      .def(
          "__exit__", [](PyMoEWeights& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__reduce__", refuse_pickle("MoEWeights cannot be pickled: make them in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace headrace::python
