// SPDX-License-Identifier: Apache-2.0
#include "runner/debug_print.hpp"

#include "runner/strides.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace headrace {

TensorStatistics statistics_of(const TensorView& view) {
  TensorStatistics statistics;
  const auto copy = Tensor::copy_of(view);  // row-major for any strides
  if (!copy) return statistics;
  statistics.count = static_cast<std::uint64_t>(view.shape.count());
  double sum = 0;
  std::uint64_t finite = 0;
  for (std::int64_t i = 0; i < view.shape.count(); ++i) {
    const double value = read_element(copy->data(), view.dtype, i);
    if (!std::isfinite(value)) {
      ++statistics.not_finite;
      continue;
    }
    statistics.least = finite == 0 ? value : std::min(statistics.least, value);
    statistics.most = finite == 0 ? value : std::max(statistics.most, value);
    sum += value;
    ++finite;
  }
  if (finite > 0) statistics.mean = sum / static_cast<double>(finite);
  return statistics;
}

std::string describe_tensor(const TensorView& view, const TensorStatistics& statistics) {
  return fmt::format("{} {} strides {} on {}: least {:.6g}, most {:.6g}, mean {:.6g}, {} of {} not finite",
                     dtype_name(view.dtype), shape_text(view.shape), shape_text(strides_of(view)),
                     device_text(view.device), statistics.least, statistics.most, statistics.mean,
                     statistics.not_finite, statistics.count);
}

}  // namespace headrace
