// SPDX-License-Identifier: Apache-2.0
// A correct table, for plugins that break one rule each. It moves nothing.
#pragma once

#include <headrace/plugin/backend_v1.h>

extern "C" __attribute__((visibility("default"))) const headrace_backend_v1* headrace_backend_v1_table();

inline headrace_backend_v1 sound_table(const char* name) {
  headrace_backend_v1 t{};
  t.struct_size = sizeof t;
  t.abi_major = HEADRACE_BACKEND_ABI_MAJOR;
  t.abi_minor = HEADRACE_BACKEND_ABI_MINOR;
  t.name = name;
  t.version = "1.0";
  t.memory_kinds = HEADRACE_KIND_BIT(HEADRACE_DRAM);
  t.create = [](const headrace_host_v1*, const headrace_create_v1*, void** instance, headrace_text_v1*) {
    static int one;
    *instance = &one;
    return int32_t{HEADRACE_OK};
  };
  t.destroy = [](void*) {};
  t.info = [](void*, headrace_info_v1* info) {
    info->abilities = info->local_kinds = info->remote_kinds = 0;
  };
  t.connection_info = [](void*, const headrace_sink_v1*, headrace_text_v1*) { return int32_t{HEADRACE_OK}; };
  t.connect = [](void*, const headrace_connect_v1*, void**, headrace_text_v1*) {
    return int32_t{HEADRACE_NOT_SUPPORTED};
  };
  t.disconnect = [](void*, void*) {};
  t.register_region = [](void*, const headrace_region_v1*, void**, headrace_text_v1*) {
    return int32_t{HEADRACE_NOT_SUPPORTED};
  };
  t.deregister_region = [](void*, void*) {};
  t.export_region = [](void*, void*, const headrace_sink_v1*, headrace_text_v1*) {
    return int32_t{HEADRACE_OK};
  };
  t.load_local = [](void*, void*, void**, headrace_text_v1*) { return int32_t{HEADRACE_NOT_SUPPORTED}; };
  t.load_remote = [](void*, void*, const headrace_remote_region_v1*, void**, headrace_text_v1*) {
    return int32_t{HEADRACE_NOT_SUPPORTED};
  };
  t.unload = [](void*, void*) {};
  t.prepare = [](void*, const headrace_prepare_v1*, void**, headrace_text_v1*) {
    return int32_t{HEADRACE_NOT_SUPPORTED};
  };
  t.post = [](void*, void*, const headrace_post_v1*) {
    return headrace_status_v1{HEADRACE_NOT_SUPPORTED, 0, HEADRACE_NO_PAGE};
  };
  t.poll = [](void*, void*) { return int32_t{0}; };
  t.cancel = [](void*, void*) {};
  t.release = [](void*, void*) {};
  t.notify = [](void*, void*, uint32_t, const void*, size_t) {
    return headrace_status_v1{HEADRACE_NOT_SUPPORTED, 0, HEADRACE_NO_PAGE};
  };
  t.progress = [](void*) { return uint32_t{0}; };
  t.descriptor = [](void*) { return int32_t{-1}; };
  t.cost = [](void*, const headrace_prepare_v1*, headrace_cost_v1*) {
    return int32_t{HEADRACE_NOT_SUPPORTED};
  };
  return t;
}
