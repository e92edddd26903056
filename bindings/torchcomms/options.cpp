// SPDX-License-Identifier: Apache-2.0
#include "bindings/torchcomms/options.hpp"

#include <ATen/ATen.h>

#include <set>
#include <variant>

namespace headrace::torchcomms_backend {
namespace {

using Kind = ::torch::comms::ReduceOp::RedOpType;

std::set<std::string> names_of_hints() {
  std::set<std::string> names;
  for (const CommHint& hint : list_comm_hints()) names.insert(hint.name);
  return names;
}

double factor_of(const ::torch::comms::ReduceOp& op) {
  const auto& factor = op.factor();
  TORCH_CHECK(factor.has_value(), "PREMUL_SUM has no factor: torchcomms.ReduceOp.PREMUL_SUM(factor)");
  if (const auto* tensor = std::get_if<at::Tensor>(&*factor)) return tensor->item<double>();
  return std::get<double>(*factor);
}

}  // namespace

std::map<std::string, std::string> comm_hints(const GivenHints& given) {
  static const std::set<std::string> known = names_of_hints();
  std::map<std::string, std::string> hints;
  for (const auto& [name, value] : given)
    if (known.contains(name)) hints.emplace(name, value);
  return hints;
}

std::map<std::string, std::string> call_hints(const GivenHints& given) {
  const auto found = given.find("algorithm");
  if (found == given.end()) return {};
  return {{found->first, found->second}};
}

Timeout timeout_of(std::chrono::milliseconds given) {
  if (given == ::torch::comms::kNoTimeout) return std::nullopt;
  return given;
}

CommOptions open_options(const std::string& name, const ::torch::comms::CommOptions& given) {
  CommOptions options;
  options.name = name;
  options.timeout = given.timeout;
  options.abort_on_error = given.abort_process_on_timeout_or_error;
  options.enable_reconfigure = given.enable_reconfigure;
  options.hints = comm_hints(given.hints);
  if (const auto found = given.hints.find("backend"); found != given.hints.end())
    options.backend = found->second;
  return options;
}

ReduceOp reduction_of(const ::torch::comms::ReduceOp& op) {
  switch (op.type()) {
    case Kind::SUM:
      return ReduceOp::sum;
    case Kind::PRODUCT:
      return ReduceOp::product;
    case Kind::MIN:
      return ReduceOp::min;
    case Kind::MAX:
      return ReduceOp::max;
    case Kind::BAND:
      return ReduceOp::band;
    case Kind::BOR:
      return ReduceOp::bor;
    case Kind::BXOR:
      return ReduceOp::bxor;
    case Kind::AVG:
      return ReduceOp::avg;
    case Kind::PREMUL_SUM:
      return {ReduceOp::premul_sum, factor_of(op)};
  }
  TORCH_CHECK(false, "reduction ", static_cast<int>(op.type()),
              " is none of Headrace: it has SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR, AVG and PREMUL_SUM");
}

}  // namespace headrace::torchcomms_backend
