// SPDX-License-Identifier: Apache-2.0
#include "moe/columns.hpp"

#include "base/errors.hpp"
#include "moe/cast.hpp"
#include "moe/scales.hpp"
#include "moe/strides.hpp"

#include <cstddef>
#include <cstdint>

namespace headrace::moe {
namespace {

Result<void> check_cast(const MoEConfig& config, const MoETokens& tokens) {
  const MoECast cast = tokens.cast;
  if (cast == MoECast::none) return {};
  if (cast != MoECast::float32 && cast != MoECast::ue8m0)
    return make_error(Code::invalid_argument, "cast is {}, expected none, float32 or ue8m0",
                      static_cast<int>(cast));
  if (config.dtype != DType::float8_e4m3fn)
    return make_error(Code::invalid_argument, "cast is {}, and dtype is {}: expected float8_e4m3fn",
                      moe_cast_name(cast), dtype_name(config.dtype));
  const auto hidden = static_cast<std::uint64_t>(config.hidden);
  const std::uint64_t bytes = cast == MoECast::ue8m0 ? ue8m0_scale_bytes(hidden) : float_scale_bytes(hidden);
  if (bytes != static_cast<std::uint64_t>(config.scale_bytes))
    return make_error(Code::invalid_argument,
                      "cast is {}, and scale_bytes is {}: expected {} for {} elements", moe_cast_name(cast),
                      config.scale_bytes, bytes, hidden);
  if (tokens.scales == nullptr) return {};
  return make_error(Code::invalid_argument, "scales are given, and cast is {}, which makes them: give none",
                    moe_cast_name(cast));
}

Result<void> check_payloads(const MoEConfig& config, const MoETokens& tokens) {
  for (std::size_t i = 0; i < config.payload_bytes.size(); ++i) {
    if (tokens.payloads[i].rows == nullptr)
      return make_error(Code::invalid_argument,
                        "{} tokens are given, and no payloads[{}], expected {} bytes each", tokens.count, i,
                        config.payload_bytes[i]);
    HEADRACE_TRY_VOID(check_stride(fmt::format("the stride of payloads[{}]", i), tokens.payloads[i].stride,
                                   config.payload_bytes[i]));
  }
  return {};
}

}  // namespace

Result<void> check_columns(const MoEConfig& config, const MoETokens& tokens) {
  HEADRACE_TRY_VOID(check_cast(config, tokens));
  const bool is_cast = tokens.cast != MoECast::none;
  if (!is_cast && (tokens.scales == nullptr) != (config.scale_bytes == 0))
    return make_error(Code::invalid_argument,
                      "scales are {}, and scale_bytes is {}: give scales if it is not 0",
                      tokens.scales == nullptr ? "not given" : "given", config.scale_bytes);
  HEADRACE_TRY_VOID(check_stride("row_stride", tokens.row_stride, given_row_bytes(config, tokens.cast)));
  HEADRACE_TRY_VOID(check_scales(config.scale_bytes, tokens.scale_stride, tokens.scale_unit_bytes,
                                 tokens.scale_unit_stride));
  return check_payloads(config, tokens);
}

Result<void> check_memory(const MoEConfig& config, const MoERows& rows) {
  if (config.output_rows() == 0) return {};
  if (rows.rows == nullptr)
    return make_error(Code::invalid_argument, "no memory for rows is given, expected {} rows of {} bytes",
                      config.output_rows(), config.row_bytes());
  if (rows.row_count != 0 && rows.row_count < config.output_rows())
    return make_error(Code::invalid_argument, "there is memory for {} rows, expected output_rows = {}",
                      rows.row_count, config.output_rows());
  if (rows.scales == nullptr && config.scale_bytes != 0)
    return make_error(Code::invalid_argument, "no memory for scales is given, expected {} times {} bytes",
                      config.output_rows(), config.scale_bytes);
  for (std::size_t i = 0; i < config.payload_bytes.size(); ++i)
    if (rows.payloads[i] == nullptr)
      return make_error(Code::invalid_argument,
                        "no memory for payloads[{}] is given, expected {} times {} bytes", i,
                        config.output_rows(), config.payload_bytes[i]);
  return check_scales(config.scale_bytes, rows.scale_stride, rows.scale_unit_bytes, rows.scale_unit_stride);
}

}  // namespace headrace::moe
