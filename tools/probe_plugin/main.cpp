// SPDX-License-Identifier: Apache-2.0
// Tests a plugin from outside Headrace in a process of its own, because the plugin may crash: loads it,
// checks its table, creates and destroys one instance. Prints "headrace: trial passed" and exits with 0 if
// the plugin passes; otherwise prints the reason on standard output.
#include <headrace/plugin/backend_v1.h>

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

namespace {

int refuse(const char* why) {
  std::fputs(why, stdout);
  return 1;
}

// The parent may not learn the exit status (SIGCHLD ignored), so the last word tells that all went well. It
// is said after the plugin's destructors, which were registered later and therefore run earlier.
bool passed = false;
void say_passed() {
  if (passed) std::fputs("\nheadrace: trial passed\n", stdout);
}

int pass() {
  passed = true;
  return 0;
}

uint64_t now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

headrace_host_v1 quiet_host() {
  headrace_host_v1 host{};
  host.struct_size = sizeof host;
  host.abi_minor = HEADRACE_BACKEND_ABI_MINOR;
  host.pool_threads = 1;
  host.agent_name = "probe";
  host.incarnation = now() | 1;
  host.log_enabled = [](void*, int32_t) { return 0; };
  host.log = [](void*, int32_t, const char*, size_t) {};
  host.now_ns = [](void*) { return now(); };
  host.count = [](void*, const char*, uint64_t) {};
  host.completed = [](void*, uint64_t, headrace_status_v1, const char*, size_t) {};
  host.accepted = [](void*, void*, const char*, uint64_t) -> uint64_t { return 0; };
  host.link_event = [](void*, uint64_t, int32_t, headrace_status_v1, const char*, size_t) {};
  host.received = [](void*, uint64_t, uint32_t, const void*, size_t) {};
  host.submit = [](void*, void (*)(void*), void*) { return 0; };
  host.wake = [](void*) {};
  return host;
}

int try_instance(const headrace_backend_v1* table) {
  std::vector<headrace_setting_v1> settings;
  const char* row = reinterpret_cast<const char*>(table->options);
  for (size_t i = 0; i < table->option_count; ++i, row += table->option_size) {
    headrace_option_v1 option;
    std::memcpy(&option, row, sizeof option);
    settings.push_back({option.name, option.default_value});
  }
  char folder[] = "/tmp/headrace-probe-XXXXXX";
  if (mkdtemp(folder) == nullptr) return refuse("a temporary folder for the test cannot be made");
  const headrace_host_v1 host = quiet_host();
  const headrace_create_v1 create{sizeof create, settings.data(), settings.size(), folder, 0};
  char buffer[512];
  headrace_text_v1 text{sizeof text, buffer, sizeof buffer - 1, 0};
  void* instance = nullptr;
  const int32_t code = table->create(&host, &create, &instance, &text);
  // A plugin that cannot open on this machine (no such device) passes: the agent gets its reason.
  if (code == HEADRACE_OK) {
    headrace_info_v1 info{};
    info.struct_size = sizeof info;
    table->info(instance, &info);
    table->destroy(instance);
  }
  (void)rmdir(folder);
  return pass();
}

}  // namespace

int main(int argc, char** argv) {
  std::atexit(say_passed);
  if (argc != 2) return refuse("usage: headrace-probe-plugin PLUGIN.so");
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return refuse(dlerror());
  const auto function =
      reinterpret_cast<headrace_backend_v1_function>(dlsym(library, HEADRACE_BACKEND_SYMBOL));
  if (function == nullptr)
    return refuse("it does not export " HEADRACE_BACKEND_SYMBOL ": is it a Headrace plugin?");
  try {
    const headrace_backend_v1* const table = function();
    // The host checks the table itself. This checks only the fields that the test uses.
    if (table == nullptr || table->struct_size < HEADRACE_BACKEND_V1_SIZE ||
        table->abi_major != HEADRACE_BACKEND_ABI_MAJOR || table->create == nullptr ||
        table->info == nullptr || table->destroy == nullptr ||
        (table->option_count > 0 && table->option_size < sizeof(headrace_option_v1))) {
      return pass();
    }
    return try_instance(table);
  } catch (const std::exception& e) {
    std::printf("its initialisation threw an exception: %s", e.what());
    return 1;
  } catch (...) {
    return refuse("its initialisation threw an exception");
  }
}
