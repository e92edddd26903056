// SPDX-License-Identifier: Apache-2.0
#include "cli/tune/tune_bench.hpp"

#include "cli/bench/coll_bench.hpp"
#include "cli/common/errors.hpp"

#include <algorithm>
#include <utility>

namespace headrace::cli {
namespace {

/// Adds the rows of one backend.
class TuneReport final : public CollReport {
 public:
  TuneReport(std::string backend, Tuned& tuned) : backend_(std::move(backend)), tuned_(tuned) {}

  void begin(const Comm&) override {}
  void row(const CollRow& row) override {
    const auto& figure = row.apart ? row.apart : row.same;
    if (figure) row_of(row).seconds[backend_] = figure->seconds;
  }
  void refused(const CollRow& row, const std::string& why) override {
    tuned_.refusals.insert(fmt::format("{} by {}: {}", row.operation.name, backend_, why));
  }

 private:
  TunedRow& row_of(const CollRow& row) {
    const auto operation = *tuned_operation(row.operation.name);
    const int width = row.count == 0 ? 0 : static_cast<int>(element_bytes(row.dtype));
    const std::uint64_t bytes = row.count * element_bytes(row.dtype);  // one part
    const auto at = std::ranges::find_if(tuned_.rows, [&](const TunedRow& one) {
      return one.operation == operation && one.dtype_bytes == width && one.bytes == bytes;
    });
    if (at != tuned_.rows.end()) return *at;
    tuned_.rows.push_back({operation, width, bytes});
    return tuned_.rows.back();
  }

  const std::string backend_;
  Tuned& tuned_;
};

CollPlan bench_plan(const TunePlan& plan, const std::string& backend, const CollOperation& operation,
                    DType type) {
  CollPlan bench;
  bench.operations = {&operation};
  const std::size_t parts = std::max<std::size_t>(operation.elements(1, plan.ranks), 1);
  for (const std::uint64_t size : plan.sizes) bench.bytes.push_back(size * parts);
  bench.types = {type};
  bench.reductions = {ReduceOp::sum};
  bench.backend = backend;
  bench.device = plan.device;
  bench.seconds = plan.seconds;
  return bench;
}

}  // namespace

void measure_operation(const TunePlan& plan, const RankPlace& place, const CollOperation& operation,
                       DType type, Tuned& tuned) {
  for (const std::string& backend : plan.backends) {
    TuneReport report(backend, tuned);
    const auto ran = run_coll_rank(bench_plan(plan, backend, operation, type), place, report);
    if (ran || place.rank != 0) continue;
    tuned.refusals.insert(fmt::format("{} by {}: {}", operation.name, backend, ran.error().message));
    if (ran.code() == Code::corrupt) tuned.wrong = ran.error();
  }
}

}  // namespace headrace::cli
