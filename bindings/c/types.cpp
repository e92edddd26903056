// SPDX-License-Identifier: Apache-2.0
// include/headrace/c/types.h.
#include "handles.hpp"

using headrace::Code;

const char* headrace_code_name(std::int32_t code) {
  return headrace::code_name(static_cast<Code>(code)).data();
}

std::int32_t headrace_error_code(const headrace_error* error) {
  return error == nullptr ? 0 : static_cast<std::int32_t>(error->error.code);
}

const char* headrace_error_message(const headrace_error* error) {
  if (error == nullptr) return "";
  if (!error->error.message.empty()) return error->error.message.c_str();
  return headrace::code_sentence(error->error.code).data();
}

std::uint64_t headrace_error_page(const headrace_error* error) {
  return error == nullptr ? HEADRACE_NO_SUCH_PAGE : error->error.page;
}

void headrace_error_free(headrace_error* error) { delete error; }

const char* headrace_bytes_data(const headrace_bytes* bytes) {
  return bytes == nullptr ? "" : bytes->text.c_str();
}
std::uint64_t headrace_bytes_size(const headrace_bytes* bytes) {
  return bytes == nullptr ? 0 : bytes->text.size();
}
std::int32_t headrace_bytes_assign(headrace_bytes* bytes, const void* data, std::uint64_t size) {
  using namespace headrace::c;
  return guarded(nullptr, [&]() -> headrace::Result<void> {
    HEADRACE_C_TRY(given(bytes, "bytes"));
    auto all = array_in(static_cast<const char*>(data), size, "data");
    if (!all) return std::move(all).error();
    bytes->text.assign(all->begin(), all->end());
    return {};
  });
}
void headrace_bytes_free(headrace_bytes* bytes) { delete bytes; }
