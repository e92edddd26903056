// SPDX-License-Identifier: Apache-2.0
// Turns exceptions into a code and a sentence: no exception crosses the table.
#pragma once

#include <headrace/plugin/model_runtime_v1.h>
#include <headrace/result.hpp>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>

namespace headrace::torch_runtime {

inline void write(headrace_model_text_v1* out, std::string_view text) {
  if (out == nullptr) return;
  out->length = std::min(text.size(), out->capacity);
  if (out->length > 0) std::memcpy(out->data, text.data(), out->length);
}

/// Runs `work`, which returns a Code or throws.
template <class Work>
std::int32_t guarded(headrace_model_text_v1* error, Work work) noexcept {
  const auto failed = [error](Code code, std::string_view text) {
    write(error, text);
    return static_cast<std::int32_t>(code);
  };
  try {
    return static_cast<std::int32_t>(work());
  } catch (const c10::OutOfMemoryError& thrown) {
    return failed(Code::exhausted, thrown.what_without_backtrace());
  } catch (const c10::Error& thrown) {
    return failed(Code::backend_failed, thrown.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return failed(Code::exhausted, "out of memory");
  } catch (const std::exception& thrown) {
    return failed(Code::backend_failed, thrown.what());
  } catch (...) {
    return failed(Code::backend_failed, "torch threw something that is not a std::exception");
  }
}

}  // namespace headrace::torch_runtime
