// SPDX-License-Identifier: Apache-2.0
// <headrace/moe.hpp>: dispatch and combine of experts.
#include <headrace/moe.hpp>
#include <headrace/moe_plan.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/moe_handle.hpp"
#include "bindings/python/moe_tensors.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/stream_input.hpp"
#include "bindings/python/tensor_object.hpp"
#include "bindings/python/text.hpp"
#include "bindings/python/time_limit.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace::python {
namespace {

constexpr std::array layouts{MoELayout::by_expert, MoELayout::batched, MoELayout::by_rank};

using Tensors = nb::typed<nb::tuple, nb::object, nb::ellipsis>;

MoELayout moe_layout_of(const std::string& name) {
  for (const MoELayout layout : layouts)
    if (moe_layout_name(layout) == name) return layout;
  raise_invalid("layout is \"" + name + "\": give one of \"by_expert\", \"batched\", \"by_rank\"");
}

DType type_of(nb::handle dtype) { return take(dtype_from_name(nb::str(dtype).c_str())); }

/// Memory for what a rank gets, and its tensors in Python.
struct PyMoERows {
  MoEConfig config;  ///< of the MoE that made it
  MoERows memory;
  nb::object rows, scales, counts, first_rows, experts, weights, host_counts;
  nb::tuple payloads;
};

/// What a dispatch gives: "by_expert, 240 rows of 64 float32 with 0 bytes of scales, 0 payloads, 3 experts,
/// 2 ranks, top_k 2".
std::string rows_text(const MoEConfig& config) {
  return std::string(moe_layout_name(config.layout)) + ", " + std::to_string(config.output_rows()) +
         " rows of " + std::to_string(config.hidden) + " " + std::string(dtype_name(config.dtype)) +
         " with " + std::to_string(config.scale_bytes) + " bytes of scales, " +
         std::to_string(config.payload_bytes.size()) + " payloads, " +
         std::to_string(config.local_experts()) + " experts, " + std::to_string(config.ranks) +
         " ranks, top_k " + std::to_string(config.top_k) + ", on " + device_text(device_of(config));
}

/// Memory of another MoE will do if that gives the same.
const MoERows& memory_of(const PyMoERows& rows, const MoEConfig& config) {
  const MoEConfig& of = rows.config;
  const bool is_same = of.layout == config.layout && of.output_rows() == config.output_rows() &&
                       of.hidden == config.hidden && of.dtype == config.dtype &&
                       of.scale_bytes == config.scale_bytes && of.payload_bytes == config.payload_bytes &&
                       of.local_experts() == config.local_experts() && of.ranks == config.ranks &&
                       of.top_k == config.top_k && of.device == config.device;
  if (!is_same)
    raise_invalid("the argument out was made by another MoE (" + rows_text(of) + "), and this one gives " +
                  rows_text(config) + ": use new_rows of this one");
  return rows.memory;
}

template <class T>
nb::object tensor_at(T*& address, Tensor tensor) {
  address = static_cast<T*>(tensor.data());
  return tensor_object(std::move(tensor));
}

/// A tensor of zeros where the MoE has its own, whose address goes into `address`.
template <class T>
nb::object make_tensor(const PyMoE& moe, T*& address, DType dtype, const Shape& shape) {
  return tensor_at(address, moe.ask([&](headrace::MoE& of) { return of.new_tensor(dtype, shape); }));
}

/// Words of 4 bytes; of each row, or those of a column side by side.
nb::object new_scales(const PyMoE& moe, const MoEConfig& config, MoERows& memory, bool by_column) {
  const std::int64_t rows = config.output_rows(), words = config.scale_bytes / 4;
  if (!by_column) return make_tensor(moe, memory.scales, DType::uint8, Shape{rows, config.scale_bytes});
  memory.scale_stride = 4;
  if (config.layout != MoELayout::batched) {
    memory.scale_unit_stride = 4 * std::max<std::int64_t>(rows, 1);
    return make_tensor(moe, memory.scales, DType::int32, Shape{words, rows});
  }
  memory.scale_unit_stride = 4 * config.rows_of_expert();
  memory.scale_expert_stride = words * memory.scale_unit_stride;
  return make_tensor(moe, memory.scales, DType::int32,
                     Shape{config.local_experts(), words, config.rows_of_expert()});
}

PyMoERows* new_rows(const PyMoE& moe, bool column_scales) {
  const MoEConfig& config = moe.moe()->config();
  auto made = std::make_unique<PyMoERows>();
  made->config = config;
  const std::int64_t rows = config.output_rows();
  const bool by_rank = config.layout == MoELayout::by_rank;
  made->memory.row_count = rows;
  made->rows = make_tensor(moe, made->memory.rows, config.dtype, Shape{rows, config.hidden});
  made->scales = nb::none();
  if (config.scale_bytes != 0) made->scales = new_scales(moe, config, made->memory, column_scales);
  nb::list payloads;
  for (std::size_t i = 0; i < config.payload_bytes.size(); ++i)
    payloads.append(
        make_tensor(moe, made->memory.payloads[i], DType::uint8, Shape{rows, config.payload_bytes[i]}));
  made->payloads = nb::tuple(payloads);
  made->counts = make_tensor(moe, made->memory.counts, DType::int32, Shape{config.local_experts()});
  made->host_counts = nb::none();
  if (config.device >= 0)
    made->host_counts = tensor_at(made->memory.host_counts, moe.ask([&](headrace::MoE& of) {
      return of.new_host_tensor(DType::int32, Shape{config.local_experts()});
    }));
  const int firsts = by_rank ? config.ranks : config.local_experts();
  made->first_rows = make_tensor(moe, made->memory.first_rows, DType::int64, Shape{firsts + 1});
  made->experts = made->weights = nb::none();
  if (by_rank) {
    made->experts = make_tensor(moe, made->memory.experts, DType::int32, Shape{rows, config.top_k});
    made->weights = make_tensor(moe, made->memory.weights, DType::float32, Shape{rows, config.top_k});
  }
  return made.release();
}

/// Checks that a tensor beside the rows has as many.
void check_count(const char* name, std::int64_t count, std::int64_t tokens) {
  if (count == tokens) return;
  raise_invalid("the argument " + std::string(name) + " has " + std::to_string(count) +
                " rows, expected one for each of " + std::to_string(tokens) + " tokens");
}

MoEChoice choice_of(const std::string& name) {
  for (const MoEChoice choice : {MoEChoice::in_turn, MoEChoice::least_loaded})
    if (moe_choice_name(choice) == name) return choice;
  raise_invalid("choice is \"" + name + "\": give \"in_turn\" or \"least_loaded\"");
}

void make_replicas(PyMoEReplicas* place, const std::vector<std::vector<std::int32_t>>& places,
                   const std::string& choice, const std::vector<std::int64_t>& loads) {
  new (place) PyMoEReplicas;
  place->table.choice = choice_of(choice);
  place->loads = loads;
  for (const auto& of : places) {
    place->places.insert(place->places.end(), of.begin(), of.end());
    place->first.push_back(static_cast<std::int32_t>(place->places.size()));
  }
  place->point_at_memory();
}

PyMoEReplicas* replicas_of_plan(const MoEPlan& plan, const MoEConfig& config) {
  auto made = std::make_unique<PyMoEReplicas>();
  const auto count = static_cast<std::ptrdiff_t>(plan.first.size()) - 1;
  if (std::ssize(plan.before) != config.groups() * count || std::ssize(plan.experts) != config.experts)
    raise_invalid("the plan is for " + std::to_string(plan.experts.size()) + " experts and " +
                  std::to_string(std::ssize(plan.before) / count) +
                  " groups of ranks, the configuration has " + std::to_string(config.experts) + " and " +
                  std::to_string(config.groups()) + ": give the one that the plan was made for");
  const auto before = plan.before.begin() + config.rank / config.group_size * count;
  made->first = plan.first, made->places = plan.places, made->until = plan.until;
  made->before.assign(before, before + count);
  made->table.choice = MoEChoice::by_share;
  made->point_at_memory();
  return made.release();
}

const MoEReplicas* replicas_for(nb::handle replicas, const MoEConfig& config) {
  if (replicas.is_none()) return nullptr;
  const auto& given = nb::cast<const PyMoEReplicas&>(replicas);
  if (config.device >= 0)
    raise(Error{Code::not_supported, "replicas are tables in host memory, and this MoE is on " +
                                         device_text(device_of(config)) + ": it takes none yet"});
  if (!given.loads.empty() && given.loads.size() != static_cast<std::size_t>(config.ranks))
    raise_invalid("replicas has " + std::to_string(given.loads.size()) + " loads, expected one for each of " +
                  std::to_string(config.ranks) + " ranks");
  return &given.table;
}

/// The tensors of a dispatch.
struct DispatchArguments {
  nb::handle rows, experts, weights, scales;
  const Tensors& payloads;
  nb::handle cast, count, replicas;
};

MoECast cast_of(nb::handle name) {
  if (name.is_none()) return MoECast::none;
  const std::string text = nb::str(name).c_str();
  for (const MoECast cast : {MoECast::float32, MoECast::ue8m0})
    if (moe_cast_name(cast) == text) return cast;
  raise_invalid("cast is \"" + text + "\": give None, \"float32\" or \"ue8m0\"");
}

void add_columns(MoETokens& tokens, MoETensors& tensors, const MoEConfig& config,
                 const DispatchArguments& given) {
  if (!given.scales.is_none()) {
    const MoETensors::Scales of = tensors.scales(given.scales, config.scale_bytes);
    check_count("scales", of.count, tokens.count);
    tokens.scales = of.data;
    tokens.scale_stride = of.stride, tokens.scale_unit_bytes = of.unit_bytes;
    tokens.scale_unit_stride = of.unit_stride;
  }
  if (given.payloads.size() != config.payload_bytes.size())
    raise_invalid(std::to_string(given.payloads.size()) + " payloads are given, expected " +
                  std::to_string(config.payload_bytes.size()) + ", one for each of payload_bytes");
  for (std::size_t i = 0; i < given.payloads.size(); ++i) {
    const RowsOfTensor of = tensors.row_bytes(given.payloads[i], "payloads", config.payload_bytes[i]);
    check_count("payloads", of.count, tokens.count);
    tokens.payloads[i] = {of.data, of.stride};
  }
}

MoETokens tokens_of(MoETensors& tensors, const MoEConfig& config, const DispatchArguments& given) {
  MoETokens tokens;
  tokens.cast = cast_of(given.cast);
  const DType dtype = tokens.cast == MoECast::none ? config.dtype : DType::bfloat16;
  const RowsOfTensor from = tensors.rows(given.rows, "rows", dtype, config.hidden);
  tokens.count = from.count;
  tokens.rows = from.data;
  tokens.row_stride = from.stride;
  if (!given.experts.is_none()) {
    const RowsOfTensor numbers = tensors.experts(given.experts, config.top_k);
    check_count("experts", numbers.count, from.count);
    tokens.experts = numbers.data;
    tokens.experts_dtype = numbers.dtype;
  }
  if (!given.weights.is_none()) {
    const RowsOfTensor of = tensors.weights(given.weights, config.top_k);
    check_count("weights", of.count, from.count);
    tokens.weights = static_cast<const float*>(of.data);
  }
  if (!given.count.is_none()) tokens.count_at = tensors.count(given.count);
  tokens.replicas = replicas_for(given.replicas, config);
  add_columns(tokens, tensors, config, given);
  return tokens;
}

MoEResults results_of(MoETensors& tensors, const MoEConfig& config, nb::handle rows, bool weighted) {
  if (rows.is_none()) return {.weighted = weighted, .in_window = true};
  const RowsOfTensor from = tensors.rows(rows, "results", config.combine_dtype, config.hidden);
  if (from.count < config.output_rows())
    raise_invalid("the argument results has " + std::to_string(from.count) + " rows, expected " +
                  std::to_string(config.output_rows()) + ", as many as a dispatch gives");
  return {.rows = from.data, .row_stride = from.stride, .weighted = weighted};
}

MoESums sums_of(MoETensors& tensors, const MoEConfig& config, nb::handle out, const Tensors& biases,
                bool accumulate) {
  MoESums sums;
  const RowsOfTensor to = tensors.rows(out, "out", config.combine_dtype, config.hidden, true);
  sums.rows = to.data;
  sums.row_count = to.count;
  sums.row_stride = to.stride;
  sums.accumulate = accumulate;
  if (biases.size() > std::size(sums.biases))
    raise_invalid(std::to_string(biases.size()) + " biases are given, expected at most 2");
  for (std::size_t i = 0; i < biases.size(); ++i) {
    const RowsOfTensor bias = tensors.dense(biases[i], "biases", config.combine_dtype, config.hidden);
    check_count("biases", bias.count, to.count);
    sums.biases[i] = bias.data;
  }
  return sums;
}

void dispatch_send(PyMoE& self, nb::handle rows, nb::handle experts, nb::handle weights, MoERouting& routing,
                   nb::handle scales, const Tensors& payloads, nb::handle cast, nb::handle count,
                   nb::handle replicas, nb::handle stream) {
  void* const on = self.stream_of(stream);
  MoETensors tensors = self.tensors(on);
  const MoETokens tokens = tokens_of(tensors, self.moe()->config(),
                                     {rows, experts, weights, scales, payloads, cast, count, replicas});
  self.ask([&](headrace::MoE& moe) { return moe.dispatch_send(tokens, routing, on); });
}

void dispatch(PyMoE& self, nb::handle rows, nb::handle experts, nb::handle weights, MoERouting& routing,
              const PyMoERows& out, nb::handle scales, const Tensors& payloads, nb::handle cast,
              nb::handle count, nb::handle replicas, nb::handle stream) {
  void* const on = self.stream_of(stream);
  MoETensors tensors = self.tensors(on);
  const MoERows& to = memory_of(out, self.moe()->config());
  const MoETokens tokens = tokens_of(tensors, self.moe()->config(),
                                     {rows, experts, weights, scales, payloads, cast, count, replicas});
  self.ask([&](headrace::MoE& moe) { return moe.dispatch(tokens, to, routing, on); });
}

/// Memory in windows, as tensors that keep the MoE, and None for ranks that are left out.
nb::list combine_memory(PyMoE& self, MoERouting& routing) {
  const auto moe = self.moe();
  const MoEConfig& config = moe->config();
  if (config.device >= 0)
    raise(Error{Code::not_supported,
                "combine_memory in Python has tensors in host memory, and this MoE is on " +
                    device_text(device_of(config)) + ": give the results to combine"});
  std::vector<MoEWindowRows> of_ranks(static_cast<std::size_t>(config.ranks));
  self.ask([&](headrace::MoE& of) { return of.combine_memory(routing, of_ranks); });
  nb::list tensors;
  for (const MoEWindowRows& of : of_ranks) {
    if (of.rows == nullptr) {
      tensors.append(nb::none());
      continue;
    }
    TensorView view;
    view.data = of.rows, view.dtype = config.combine_dtype, view.shape = Shape{of.count, config.hidden};
    tensors.append(tensor_object(self.window_tensor(view)));
  }
  return tensors;
}

void combine_send(PyMoE& self, nb::handle results, MoERouting& routing, bool weighted, nb::handle stream) {
  void* const on = self.stream_of(stream);
  MoETensors tensors = self.tensors(on);
  const MoEResults from = results_of(tensors, self.moe()->config(), results, weighted);
  self.ask([&](headrace::MoE& moe) { return moe.combine_send(from, routing, on); });
}

void combine_receive(PyMoE& self, MoERouting& routing, nb::handle out, const Tensors& biases, bool accumulate,
                     nb::handle stream) {
  void* const on = self.stream_of(stream);
  MoETensors tensors = self.tensors(on);
  const MoESums to = sums_of(tensors, self.moe()->config(), out, biases, accumulate);
  self.ask([&](headrace::MoE& moe) { return moe.combine_receive(to, routing, on); });
}

void combine(PyMoE& self, nb::handle results, MoERouting& routing, nb::handle out, const Tensors& biases,
             bool weighted, bool accumulate, nb::handle stream) {
  void* const on = self.stream_of(stream);
  MoETensors tensors = self.tensors(on);
  const MoEResults from = results_of(tensors, self.moe()->config(), results, weighted);
  const MoESums to = sums_of(tensors, self.moe()->config(), out, biases, accumulate);
  self.ask([&](headrace::MoE& moe) { return moe.combine(from, to, routing, on); });
}

std::vector<std::string> names_of(const std::vector<Text>& agents) {
  std::vector<std::string> names;
  for (const Text& agent : agents) names.push_back(agent.str());
  return names;
}

void regroup(PyMoE& self, const std::vector<Text>& agents, std::uint64_t ranks, const TimeLimit& timeout) {
  const std::vector<std::string> names = names_of(agents);
  self.ask([&](headrace::MoE& moe) { return moe.regroup(names, ranks, limit_of(timeout)); });
}

void make_config(MoEConfig* self, int rank, int ranks, int experts, int top_k, std::int64_t hidden,
                 std::int64_t max_tokens, int group_size,
                 const std::optional<std::vector<int>>& experts_of_ranks, nb::handle dtype,
                 std::int64_t scale_bytes, nb::handle combine_dtype, const std::string& layout,
                 std::int64_t row_alignment, bool zero_padding, std::int64_t row_budget, bool deterministic,
                 const TimeLimit& wait_limit, const std::string& name,
                 const std::vector<std::int64_t>& payload_bytes, bool float8_combine, int ranks_per_node,
                 const std::vector<Text>& nics, nb::handle device, int blocks) {
  MoEConfig config;
  config.name = name;
  config.rank = rank, config.ranks = ranks, config.group_size = group_size;
  config.experts = experts, config.top_k = top_k;
  if (experts_of_ranks) config.experts_of_ranks = *experts_of_ranks;
  config.hidden = hidden, config.dtype = type_of(dtype), config.scale_bytes = scale_bytes;
  config.combine_dtype = type_of(combine_dtype), config.max_tokens = max_tokens;
  config.layout = moe_layout_of(layout), config.row_alignment = row_alignment,
  config.zero_padding = zero_padding;
  config.row_budget = row_budget, config.deterministic = deterministic;
  config.payload_bytes = payload_bytes, config.float8_combine = float8_combine;
  config.ranks_per_node = ranks_per_node, config.nics = names_of(nics);
  const Device place = take(device_from_text(nb::str(device).c_str()));
  if (place.kind == Device::Kind::cuda) config.device = place.index;
  config.blocks = blocks;
  config.wait_limit = wait_limit.or_else(config.wait_limit).value_or(std::chrono::hours(24));
  take(config.check());
  new (self) MoEConfig(std::move(config));
}

int first_expert(const MoEConfig& self, int rank) {
  if (rank >= 0 && rank <= self.ranks) return self.first_expert(rank);
  raise_invalid("rank is " + std::to_string(rank) + ", expected 0 to ranks = " + std::to_string(self.ranks));
}

void bind_moe_config(nb::module_& module) {
  nb::class_<MoEConfig>(
      module, "MoEConfig",
      "Who takes part in a MoE, and what travels: the same on all ranks but for rank, nics,\n"
      "row_budget, device, blocks and wait_limit; but either all have a GPU or none.\n\n"
      "rank, ranks: this one, of 1 to 64.\n"
      "experts: 1 to 4096, in the order of the ranks that have them.\n"
      "top_k: entries of a token, 1 to 32, at most experts.\n"
      "hidden: elements of a row; its bytes are a multiple of 16.\n"
      "max_tokens: of one dispatch of one rank.\n"
      "group_size: so many ranks in a row hold the same tokens, which are sent once; all get the sum.\n"
      "experts_of_ranks: how many each rank has, 0 included; None: evenly.\n"
      "dtype: of dispatched rows, which are moved and not read.\n"
      "scale_bytes: of a token's scales, a multiple of 4; 0: it has none.\n"
      "payload_bytes: of a token's further columns, up to 8, which are moved and not read.\n"
      "combine_dtype: float32, float16 or bfloat16. Sums are made in float32, in a fixed order.\n"
      "float8_combine: sums of a rank travel as float8_e4m3fn in blocks of 128 with float32 scales.\n"
      "layout: \"by_expert\", \"batched\" or \"by_rank\": docs/moe.md.\n"
      "row_alignment, zero_padding: by_expert: where the rows of an expert begin; rows between them are\n"
      "zeroed.\n"
      "row_budget: rows of the output; batched: of each expert. 0: the most that can come if no token\n"
      "names an expert twice.\n"
      "wait_limit: seconds of each wait for another rank; None: 10.\n"
      "name: of the window among the regions of its agent.\n"
      "ranks_per_node: so many ranks in a row are on one host, and a fabric reaches the others. 0: all are.\n"
      "nics: network cards of this rank, by name or local address, if there are several nodes; none: those\n"
      "near it.\n"
      "device: where windows and tensors are: \"cpu\", \"cuda:1\" or a torch.device. Ranks may share a GPU.\n"
      "blocks: on a GPU, of a launch, each on a multiprocessor of its own; 0: 32, or as many as can be.\n"
      "Errors: InvalidArgument (the first field that is wrong).")
      .def("__init__", &make_config, nb::kw_only(), nb::arg("rank"), nb::arg("ranks"), nb::arg("experts"),
           nb::arg("top_k"), nb::arg("hidden"), nb::arg("max_tokens"), nb::arg("group_size") = 1,
           nb::arg("experts_of_ranks") = nb::none(), nb::arg("dtype") = "bfloat16",
           nb::arg("scale_bytes") = 0, nb::arg("combine_dtype") = "bfloat16", nb::arg("layout") = "by_expert",
           nb::arg("row_alignment") = 1, nb::arg("zero_padding") = false, nb::arg("row_budget") = 0,
           nb::arg("deterministic") = true, nb::arg("wait_limit") = nb::none(), nb::arg("name") = "moe",
           nb::arg("payload_bytes") = nb::tuple(), nb::arg("float8_combine") = false,
           nb::arg("ranks_per_node") = 0, nb::arg("nics") = nb::tuple(), nb::arg("device") = "cpu",
           nb::arg("blocks") = 0)
      .def_prop_ro(
          "window_bytes", [](const MoEConfig& self) { return take(self.window_bytes()); },
          "Bytes of a rank's window. Takes nothing.")
      .def_prop_ro("output_rows", &MoEConfig::output_rows,
                   "Rows of the output of this rank; batched: of all its experts.")
      .def_prop_ro("rows_of_expert", &MoEConfig::rows_of_expert, "batched: rows of each expert.")
      .def("first_expert", &first_expert, nb::arg("rank"),
           "The first expert of a rank; of `ranks`: the number of experts.")
      .def_prop_ro(
          "local_experts", [](const MoEConfig& self) { return self.local_experts(); },
          "Experts of this rank.")
      .def_ro("rank", &MoEConfig::rank, "This rank.")
      .def_ro("ranks", &MoEConfig::ranks, "How many ranks take part.")
      .def_prop_ro(
          "device", [](const MoEConfig& self) { return device_text(device_of(self)); },
          "Where windows and tensors are: \"cpu\", \"cuda:1\".");
}

void bind_moe_failure(nb::module_& module) {
  nb::class_<MoEFailure>(module, "MoEFailure", "Why a rank was left out: MoE.failure.")
      .def_prop_ro(
          "code", [](const MoEFailure& self) { return to_str(code_name(self.code)); },
          "\"timed_out\", \"peer_lost\", \"canceled\" (this rank was left out, or interrupted) or "
          "\"corrupt\".")
      .def_ro("voted", &MoEFailure::voted, "Another rank has found that the peer is lost.")
      .def_prop_ro(
          "reason", [](const MoEFailure& self) { return to_str(self.reason); },
          "Why the peer could not join, as it says; empty: it has joined.")
      .def_ro("undecided", &MoEFailure::undecided,
              "Several nodes: no rank of the node of the lowest rank has answered the vote against the peer. "
              "This rank goes\nno further, until ranks regroup.")
      .def_ro("waiter", &MoEFailure::waiter, "The rank that waited: this one.")
      .def_ro("peer", &MoEFailure::peer, "The rank for which it waited.")
      .def_prop_ro(
          "operation", [](const MoEFailure& self) { return to_str(self.operation); },
          "\"dispatch\" or \"combine\".")
      .def_ro("number", &MoEFailure::number, "Of the operation, from 1.")
      .def_prop_ro(
          "awaited", [](const MoEFailure& self) { return to_str(self.awaited); },
          "\"counts\", \"rows\", \"sums\" or \"room\".")
      .def_ro("expected", &MoEFailure::expected,
              "The number of an operation that the awaited word was to hold.")
      .def_ro("seen", &MoEFailure::seen, "The one that it held.")
      .def("__str__", [](const MoEFailure& self) { return to_str(self.text()); });
}

void bind_moe_values(nb::module_& module) {
  nb::class_<MoERouting>(
      module, "MoERouting",
      "What a dispatch has learnt, from MoE.new_routing. A combine needs it; a later dispatch\n"
      "without experts goes the same way.\n"
      "Threads: one at a time.")
      .def_prop_ro("tokens", &MoERouting::tokens,
                   "Tokens of the last dispatch. On a GPU, which alone knows what it read: as given.")
      .def_prop_ro("given", &MoERouting::given,
                   "Rows that were given to it: more, if it read the number of tokens from memory.")
      .def("__reduce__", refuse_pickle("a MoERouting cannot be pickled: it is memory of this process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
  nb::class_<PyMoERows>(
      module, "MoERows",
      "Memory for what a dispatch gives to this rank, from MoE.new_rows. Each dispatch with it\n"
      "writes the same tensors again. Use numpy.asarray(tensor) or torch.from_dlpack(tensor).")
      .def_ro("rows", &PyMoERows::rows, nb::sig("def rows(self) -> Tensor"),
              "[output_rows, hidden] of dtype.")
      .def_ro("scales", &PyMoERows::scales, nb::sig("def scales(self) -> Tensor | None"),
              "[output_rows, scale_bytes] of uint8; None: there are none. With column_scales:\n"
              "[scale_bytes / 4, output_rows] of int32; batched: [experts, scale_bytes / 4, rows].")
      .def_ro("payloads", &PyMoERows::payloads, nb::sig("def payloads(self) -> tuple[Tensor, ...]"),
              "[output_rows, payload_bytes of it] of uint8 each.")
      .def_ro("counts", &PyMoERows::counts, nb::sig("def counts(self) -> Tensor"),
              "[local_experts] of int32: entries that came for each, beyond the budget too.")
      .def_ro(
          "first_rows", &PyMoERows::first_rows, nb::sig("def first_rows(self) -> Tensor"),
          "[local_experts + 1] of int64: the first row of each expert, and the end of the last. by_rank:\n"
          "[ranks + 1], of each source rank.")
      .def_ro(
          "experts", &PyMoERows::experts, nb::sig("def experts(self) -> Tensor | None"),
          "by_rank: [output_rows, top_k] of int32: experts of a row, among those of this rank; -1: no more.")
      .def_ro("weights", &PyMoERows::weights, nb::sig("def weights(self) -> Tensor | None"),
              "by_rank: [output_rows, top_k] of float32.")
      .def_ro("host_counts", &PyMoERows::host_counts, nb::sig("def host_counts(self) -> Tensor | None"),
              "On a GPU: [local_experts] of int32 in pinned host memory, to which a dispatch copies counts "
              "in\n"
              "the order of its stream. None: counts are there already.");
}

void bind_moe_balance(nb::module_& module) {
  nb::class_<PyMoEReplicas>(
      module, "MoEReplicas",
      "Which experts of the configuration, called places, hold each expert that tokens name: a table for "
      "one\n"
      "dispatch; another one may have another table. Ranks of one group give the same.\n\n"
      "places: of each expert, one at least.\n"
      "choice: \"in_turn\", or \"least_loaded\": of the rank with the fewest entries, `loads` and those of "
      "the\n"
      "tokens before. Places of ranks that do not take part are passed over.\n"
      "loads: least_loaded: of each rank; empty: zeros.")
      .def("__init__", &make_replicas, nb::arg("places"), nb::arg("choice") = "in_turn",
           nb::arg("loads") = nb::tuple());
  nb::class_<MoEPlan>(module, "MoEPlan",
                      "Replicas for one step, made from its routing: moe_plan. The caller brings the weights "
                      "of `experts` to\n"
                      "the places that had none, or others.")
      .def_ro("experts", &MoEPlan::experts, "Of each place; -1: none.")
      .def_ro("loads", &MoEPlan::loads, "Of each rank: the entries that it gets.")
      .def("replicas", &replicas_of_plan, nb::arg("config"), nb::rv_policy::take_ownership,
           "The table for the tokens of this rank.");
  module.def(
      "moe_plan",
      [](const MoEConfig& config, const std::vector<std::int32_t>& experts,
         const std::vector<std::int64_t>& counts) { return take(moe_plan(config, experts, counts)); },
      nb::arg("config"), nb::arg("experts"), nb::arg("counts"),
      "Moves entries for hot experts from busy ranks to free places of idle ones, until no rank has more "
      "than\n"
      "its share, or there is no free place for more. All ranks get the same from the same input.\n\n"
      "config: its experts are the places.\n"
      "experts: that each place holds; -1: it is free. Each expert keeps its first place.\n"
      "counts: how many entries of the tokens of each group of ranks name each expert, groups one after\n"
      "another.\n"
      "Errors: InvalidArgument.");
}

}  // namespace

void bind_moe(nb::module_& module) {
  bind_moe_config(module);
  bind_moe_failure(module);
  bind_moe_values(module);
  bind_moe_balance(module);
  nb::class_<PyMoE>(
      module, "MoE", nb::is_weak_referenceable(),
      "One rank of a mixture of experts: dispatch sends each token's row to the ranks of its experts, "
      "combine\n"
      "takes their weighted sum back.\n\n"
      "All ranks call the same operations in the same order. Two dispatches and two combines may be under "
      "way:\n"
      "sent, and not received. Tensors are NumPy arrays, torch tensors on the CPU or others with the buffer\n"
      "protocol or DLPack; integers of the same size stand for bfloat16 and float8, which NumPy lacks.\n\n"
      "Failure: a rank that is dead, or late by wait_limit, is left out from then on, by all. The operation "
      "does all\n"
      "of the rest, then raises PeerLost or TimedOut; later operations go on without that rank, and its rows "
      "are\n"
      "missing in the sums. A rank that others have left out gets Canceled, from then on in every "
      "operation.\n"
      "Ctrl-C ends a wait and this rank's part. regroup takes ranks back.\n"
      "On a GPU operations are queued on a stream and return; they may be captured in a CUDA graph. What "
      "launches\n"
      "find is raised once: by the next operation, which is queued all the same, or by check. Ranks of one\n"
      "process that share a GPU make routings and rows before the first operation.\n"
      "Owns: it keeps its agent; close the MoE before the agent.\n"
      "Threads: one call at a time; others wait.")
      .def(nb::init<const PyAgent&, const MoEConfig&>(), nb::arg("agent"), nb::arg("config"),
           "Allocates the window of this rank from the agent, which for a GPU has the backends shm and "
           "cuda_ipc.\n"
           "Then join the others.\n\n"
           "Errors: InvalidArgument (the name is in use), Exhausted, NotSupported (no GPU, no backend for "
           "it).")
      .def(
          "join",
          [](const PyMoE& self, const std::vector<Text>& agents, const TimeLimit& timeout) {
            const std::vector<std::string> names = names_of(agents);
            self.ask([&](headrace::MoE& moe) { return moe.join(names, limit_of(timeout)); });
          },
          nb::arg("agents"), nb::arg("timeout") = nb::none(),
          "Maps the windows of all ranks, and compares the configurations. "
          "On GPUs it waits for all ranks to come.\n\n"
          "agents: the names of the agents of all ranks in their order, the same list on all ranks. The\n"
          "agent has their metadata, exported after they opened their MoE; or all have a store and publish.\n"
          "timeout: seconds or a timedelta; None: 10 s.\n"
          "Errors: InvalidArgument (another configuration: the field, both values; another list or order\n"
          "of agents), NotFound, NotSupported (a rank is on another host), TimedOut, PeerLost.")
      .def(
          "regroup", &regroup, nb::arg("agents"), nb::arg("ranks"), nb::arg("timeout") = nb::none(),
          "Goes on with other ranks: without some, with new ones, with those that come back. All ranks of\n"
          "`ranks` call it at the same place in the order of operations, none of which is under way; one "
          "that\n"
          "is new calls it instead of join. Routings need a new dispatch. Ranks that are not in `ranks` get\n"
          "Canceled. A rank that comes back as another process needs the end of the first one, and its new\n"
          "metadata here.\n\n"
          "agents: as join; of ranks that are not in `ranks` any text.\n"
          "ranks: a bit for each rank that takes part, this one's too.\n"
          "timeout: seconds or a timedelta; None: 10 s.\n"
          "Errors: InvalidArgument, TimedOut (which ranks have not come), PeerLost, and those of join. "
          "After\n"
          "an error operations raise Canceled: call it again. NotSupported (on a GPU).")
      .def_prop_ro(
          "config", [](const PyMoE& self) { return self.moe()->config(); }, "The configuration.")
      .def(
          "new_routing",
          [](const PyMoE& self) { return self.ask([](headrace::MoE& moe) { return moe.new_routing(); }); },
          "Memory for what dispatches learn, once it has joined.")
      .def("new_rows", &new_rows, nb::kw_only(), nb::arg("column_scales") = false,
           nb::rv_policy::take_ownership,
           "Memory for what dispatches give to this rank. Another MoE that gives the same may use it too.\n\n"
           "column_scales: words of 4 bytes of a column lie side by side.")
      .def(
          "dispatch", &dispatch, nb::arg("rows"), nb::arg("experts").none(),
          nb::arg("weights").none() = nb::none(), nb::kw_only(), nb::arg("routing"), nb::arg("out"),
          nb::arg("scales").none() = nb::none(), nb::arg("payloads") = nb::tuple(),
          nb::arg("cast").none() = nb::none(), nb::arg("count").none() = nb::none(),
          nb::arg("replicas").none() = nb::none(), nb::arg("stream") = nb::none(),
          "Sends the rows of the tokens to the ranks of their experts, and takes those for the experts of "
          "this rank\n"
          "into `out`.\n\n"
          "rows: [tokens, hidden] of dtype; rows may have gaps between them.\n"
          "experts: [tokens, top_k] of int64, int32 or uint32, copied if not contiguous; -1: none. None: go\n"
          "where the tokens of the routing's last dispatch went.\n"
          "weights: [tokens, top_k] of float32, copied if not contiguous; None: 1 each; without experts: as "
          "before.\n"
          "scales: two dimensions, scale_bytes in each row, any strides.\n"
          "payloads: one for each of payload_bytes, with so many bytes in each row.\n"
          "cast: \"float32\" or \"ue8m0\": rows are bfloat16 and become float8_e4m3fn, which dtype is, in "
          "blocks of\n"
          "128 elements with scales of that form: 4 bytes a block, or a byte in words of 4.\n"
          "count: one int32: the tokens are the first ones, so many as it says when the dispatch begins.\n"
          "replicas: MoEReplicas: tokens name its experts; None: those of the configuration.\n"
          "stream: on a GPU: a torch.cuda.Stream or the number of a CUDA stream; None: the default stream.\n"
          "Errors: Exhausted (more rows than row_budget: both numbers; the others are there), TimedOut, "
          "PeerLost,\n"
          "Canceled, Corrupt (see failure), InvalidArgument (which tensor; nothing was sent).")
      .def("dispatch_send", &dispatch_send, nb::arg("rows"), nb::arg("experts").none(),
           nb::arg("weights").none() = nb::none(), nb::kw_only(), nb::arg("routing"),
           nb::arg("scales").none() = nb::none(), nb::arg("payloads") = nb::tuple(),
           nb::arg("cast").none() = nb::none(), nb::arg("count").none() = nb::none(),
           nb::arg("replicas").none() = nb::none(), nb::arg("stream") = nb::none(),
           "The first half of dispatch: returns when the rows have left.")
      .def(
          "dispatch_receive",
          [](const PyMoE& self, MoERouting& routing, const PyMoERows& out, nb::handle stream) {
            const MoERows& to = memory_of(out, self.moe()->config());
            void* const on = self.stream_of(stream);
            self.ask([&](headrace::MoE& moe) { return moe.dispatch_receive(to, routing, on); });
          },
          nb::arg("routing"), nb::arg("out"), nb::kw_only(), nb::arg("stream") = nb::none(),
          "The second half of dispatch.")
      .def("combine", &combine, nb::arg("results").none(), nb::kw_only(), nb::arg("routing"), nb::arg("out"),
           nb::arg("biases") = nb::tuple(), nb::arg("weighted") = true, nb::arg("accumulate") = false,
           nb::arg("stream") = nb::none(),
           "Sends the weighted sums of results back, and makes the sums of this rank's tokens.\n\n"
           "results: [output_rows, hidden] of combine_dtype: what the experts made of the rows, in their "
           "order. None:\n"
           "they were written to combine_memory.\n"
           "out: [tokens, hidden] of combine_dtype, as many as were given to the dispatch.\n"
           "biases: up to two of [tokens, hidden], added after the sum, in this order.\n"
           "weighted: False: the results are weighted already. by_rank: they always are.\n"
           "accumulate: what `out` holds is added last.\n"
           "Errors: as dispatch.")
      .def(
          "combine_memory", &combine_memory, nb::arg("routing"),
          nb::sig("def combine_memory(self, routing: MoERouting) -> list[Tensor | None]"),
          "by_rank: where the next combine wants the results of the rows that came from each rank, in their\n"
          "order: memory of that rank, so that a combine with results=None need not move them. None for a\n"
          "rank that is left out.\n\n"
          "Errors: NotSupported (another layout, float8_combine), and as combine: then call it again.")
      .def("combine_send", &combine_send, nb::arg("results").none(), nb::kw_only(), nb::arg("routing"),
           nb::arg("weighted") = true, nb::arg("stream") = nb::none(), "The first half of combine.")
      .def("combine_receive", &combine_receive, nb::arg("routing"), nb::arg("out"), nb::kw_only(),
           nb::arg("biases") = nb::tuple(), nb::arg("accumulate") = false, nb::arg("stream") = nb::none(),
           "The second half of combine.")
      .def_prop_rw(
          "active",
          [](const PyMoE& self) { return self.ask_plain([](headrace::MoE& moe) { return moe.active(); }); },
          [](const PyMoE& self, std::uint64_t ranks) {
            self.ask([&](headrace::MoE& moe) { return moe.set_active(ranks); });
          },
          "The ranks that take part, a bit for each, the same on all of them. Set it to leave ranks out, for "
          "all.\n\n"
          "Errors: InvalidArgument (this rank's bit, bits of no rank), NotSupported (a rank that was left "
          "out).")
      .def(
          "set_active",
          [](const PyMoE& self, std::uint64_t ranks, nb::handle stream) {
            void* const on = self.stream_of(stream);
            self.ask([&](headrace::MoE& moe) { return moe.set_active(ranks, on); });
          },
          nb::arg("ranks"), nb::arg("stream") = nb::none(),
          "Sets active. On a GPU operations and replays behind it on the stream have the mask; the attribute "
          "uses\n"
          "the default stream. Not while the stream is captured.")
      .def_prop_ro(
          "failure",
          [](const PyMoE& self) { return self.ask_plain([](headrace::MoE& moe) { return moe.failure(); }); },
          "Why a rank was left out last; None: none was.")
      .def(
          "check", [](const PyMoE& self) { self.ask([](headrace::MoE& moe) { return moe.check(); }); },
          "On a GPU: raises what launches that have ended report, once; for programs that replay graphs. "
          "Waits for\n"
          "nothing.\n\n"
          "Errors: those of dispatch and combine.")
      .def("abort", &PyMoE::abort,
           "Ends this rank's part: waits of its calls, and of its launches on a GPU. Its operations raise\n"
           "Canceled, the others go on without it. In host memory regroup takes it back.\n"
           "Threads: any, also beside a call.")
      .def(
          "close", &PyMoE::close,
          "Withdraws the window. Other ranks that still use it are not disturbed. On a GPU it ends the waits "
          "of\n"
          "operations that are queued: wait for the stream before.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> MoE"))
      .def(
          "__exit__", [](PyMoE& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__reduce__", refuse_pickle("a MoE cannot be pickled: open one in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
  bind_moe_weights(module);
}

}  // namespace headrace::python
