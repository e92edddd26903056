// SPDX-License-Identifier: Apache-2.0
#include "vendor/curl/curl.hpp"

#include "vendor/dynamic_library.hpp"

namespace headrace {

Result<CurlTable> load_curl() {
  HEADRACE_TRY(library, DynamicLibrary::open({"libcurl.so.4", "libcurl-gnutls.so.4"}, "libcurl", "libcurl4"));
  CurlTable table;
  HEADRACE_TRY_VOID(library.bind("curl_global_init", table.global_init));
  HEADRACE_TRY_VOID(library.bind("curl_easy_init", table.easy_init));
  HEADRACE_TRY_VOID(library.bind("curl_easy_cleanup", table.easy_cleanup));
  HEADRACE_TRY_VOID(library.bind("curl_easy_reset", table.easy_reset));
  HEADRACE_TRY_VOID(library.bind("curl_easy_setopt", table.easy_setopt));
  HEADRACE_TRY_VOID(library.bind("curl_easy_getinfo", table.easy_getinfo));
  HEADRACE_TRY_VOID(library.bind("curl_easy_strerror", table.easy_strerror));
  HEADRACE_TRY_VOID(library.bind("curl_slist_append", table.slist_append));
  HEADRACE_TRY_VOID(library.bind("curl_slist_free_all", table.slist_free_all));
  HEADRACE_TRY_VOID(library.bind("curl_multi_init", table.multi_init));
  HEADRACE_TRY_VOID(library.bind("curl_multi_cleanup", table.multi_cleanup));
  HEADRACE_TRY_VOID(library.bind("curl_multi_add_handle", table.multi_add_handle));
  HEADRACE_TRY_VOID(library.bind("curl_multi_remove_handle", table.multi_remove_handle));
  HEADRACE_TRY_VOID(library.bind("curl_multi_perform", table.multi_perform));
  HEADRACE_TRY_VOID(library.bind("curl_multi_poll", table.multi_poll));
  HEADRACE_TRY_VOID(library.bind("curl_multi_wakeup", table.multi_wakeup));
  HEADRACE_TRY_VOID(library.bind("curl_multi_info_read", table.multi_info_read));
  HEADRACE_TRY_VOID(library.bind("curl_multi_strerror", table.multi_strerror));
  if (const CURLcode code = table.global_init(CURL_GLOBAL_DEFAULT); code != CURLE_OK) {
    return make_error(Code::backend_failed, "{} does not start: {}", library.name(),
                      table.easy_strerror(code));
  }
  return table;
}

}  // namespace headrace
