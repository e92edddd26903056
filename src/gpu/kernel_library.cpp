// SPDX-License-Identifier: Apache-2.0
#include "gpu/kernel_library.hpp"

#include <headrace/version.hpp>

#include <dlfcn.h>

#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>

namespace headrace::gpu {
namespace {

constexpr const char* library_name = "libheadrace_kernels.so";

/// The folder of the library, plugin or program that contains this code.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&list_devices), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  // For a program the linker knows only the name of its call: a name without a folder was found on PATH.
  const std::filesystem::path file = info.dli_fname;
  return std::filesystem::weakly_canonical(file.has_parent_path() ? file : "/proc/self/exe", ignored)
      .parent_path();
}

Result<std::filesystem::path> find_library(const std::string& path) {
  std::error_code ignored;
  if (!path.empty()) {
    if (std::filesystem::exists(path, ignored)) return std::filesystem::path(path);
    return make_error(Code::not_supported, "there is no {}: name the file {}", path, library_name);
  }
  const std::filesystem::path folder = own_folder();
  // Plugins are one folder below it; programs that link the rooms themselves (tests, benchmarks) beside the
  // folder `lib`.
  for (const auto& candidate : {folder / library_name, folder.parent_path() / library_name,
                                folder / "lib" / library_name, folder.parent_path() / "lib" / library_name})
    if (std::filesystem::exists(candidate, ignored)) return candidate;
  return make_error(Code::not_supported,
                    "GPUs need {}, which is not in {}: this Headrace was built where nothing compiles device "
                    "code. Install nvidia-cuda-nvrtc-cu12==12.8.93 with pip, or nvcc, then build again",
                    library_name, folder.string());
}

Result<void> check_table(const headrace_kernels_v1* table) {
  if (table == nullptr) return make_error(Code::corrupt, "its table is missing");
  if (table->abi_major != HEADRACE_KERNELS_ABI_MAJOR || table->struct_size < HEADRACE_KERNELS_V1_SIZE)
    return make_error(Code::not_supported,
                      "its table has version {} and {} bytes, and version {} with at least {} bytes is "
                      "needed: build both from the same sources",
                      table->abi_major, table->struct_size, HEADRACE_KERNELS_ABI_MAJOR,
                      HEADRACE_KERNELS_V1_SIZE);
  if (table->version == nullptr || std::string_view(table->version) != HEADRACE_VERSION)
    return make_error(Code::not_supported,
                      "it belongs to Headrace {}, and this is {}: install both from one build",
                      table->version == nullptr ? "unknown" : table->version, HEADRACE_VERSION);
  if (table->images == nullptr || table->open == nullptr || table->close == nullptr ||
      table->family == nullptr)
    return make_error(Code::corrupt, "an entry of its table is missing");
  return {};
}

bool runs_on(const headrace_kernel_image_v1& image, const DeviceInfo& device) {
  const auto major = static_cast<std::uint32_t>(device.major),
             minor = static_cast<std::uint32_t>(device.minor);
  if (image.major != major) return false;
  return image.exact != 0 ? image.minor == minor : image.minor <= minor;
}

// The driver's functions with the types of the kernels' table: handles and numbers.
template <class To, class From>
To* untyped(From* function) {
  return reinterpret_cast<To*>(function);
}

headrace_kernels_driver_v1 driver_for_kernels(const cuda::DriverTable& driver) {
  headrace_kernels_driver_v1 table{};
  table.struct_size = sizeof table;
  table.module_load_data = untyped<std::int32_t(void**, const void*)>(driver.module_load_data);
  table.module_unload = untyped<std::int32_t(void*)>(driver.module_unload);
  table.module_get_function = untyped<std::int32_t(void**, void*, const char*)>(driver.module_get_function);
  table.func_load = untyped<std::int32_t(void*)>(driver.func_load);
  table.launch_kernel_ex = untyped<std::int32_t(const void*, void*, void**, void**)>(driver.launch_kernel_ex);
  return table;
}

std::string failed_step(const headrace_kernels_open_v1& args) {
  const std::string step = args.failed == nullptr ? "open" : args.failed;
  return args.failed_kernel == nullptr ? step : step + " " + args.failed_kernel;
}

/// Whether the table has its function pointers, which are all that comes after its first member.
bool has_all_entries(const headrace_kernel_family_v1& family, std::size_t table_bytes) {
  constexpr std::size_t first = sizeof(headrace_kernel_family_v1), step = sizeof(void (*)());
  for (std::size_t at = first; at + step <= table_bytes; at += step) {
    void (*entry)() = nullptr;
    std::memcpy(static_cast<void*>(&entry), reinterpret_cast<const char*>(&family) + at, step);
    if (entry == nullptr) return false;
  }
  return true;
}

/// The error for an image that the driver did not load, or not completely.
Error refusal_of(const cuda::DriverTable& driver, cuda::Outcome outcome, std::string what) {
  Error error = cuda::driver_error(driver, outcome, "{}", what);
  if (outcome == cuda::Outcome::invalid_image || outcome == cuda::Outcome::no_binary_for_gpu)
    error.message +=
        "; a driver runs code compiled for its own CUDA version or an older one: install a newer driver, or "
        "use a build by NVRTC 12.8, which runs with driver 570 or newer";
  return error;
}

}  // namespace

Result<KernelLibrary> KernelLibrary::load(const std::string& path) {
  HEADRACE_TRY(library, find_library(path));
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return make_error(Code::not_supported, "{} does not load: {}", library.string(), ::dlerror());
  const auto entry = reinterpret_cast<headrace_kernels_v1_function>(::dlsym(handle, HEADRACE_KERNELS_SYMBOL));
  if (entry == nullptr)
    return make_error(Code::corrupt, "{} holds no kernels: it has no {}", library.string(),
                      HEADRACE_KERNELS_SYMBOL);
  const headrace_kernels_v1* const table = entry();
  if (auto sound = check_table(table); !sound) return std::move(sound).error().within(library.string());
  return KernelLibrary(*table, library.string());
}

Result<KernelLibrary> KernelLibrary::from_table(const headrace_kernels_v1& table, std::string where) {
  if (auto sound = check_table(&table); !sound) return std::move(sound).error().within(where);
  return KernelLibrary(table, std::move(where));
}

std::string KernelLibrary::image_names() const {
  std::string names;
  for (const headrace_kernel_image_v1& image : std::span(table_->images, table_->image_count))
    names += (names.empty() ? "" : ", ") + std::string(image.name);
  return names.empty() ? "none" : names;
}

Result<const headrace_kernel_image_v1*> KernelLibrary::image_for(const DeviceInfo& device) const {
  const headrace_kernel_image_v1* best = nullptr;
  for (const headrace_kernel_image_v1& image : std::span(table_->images, table_->image_count)) {
    if (!runs_on(image, device)) continue;
    const bool better = best == nullptr || image.exact > best->exact || image.minor > best->minor;
    if (better) best = &image;
  }
  if (best != nullptr) return best;
  return make_error(Code::not_supported,
                    "{} has no kernels for GPU {} ({}, compute capability {}.{}), only for {}: build with "
                    "-DHEADRACE_CUDA_ARCHS={}{}",
                    where_, device.ordinal, device.name, device.major, device.minor, image_names(),
                    device.major, device.minor);
}

Result<const headrace_kernel_family_v1*> KernelLibrary::family(const char* name, std::uint32_t version,
                                                               std::size_t table_bytes) const {
  const headrace_kernel_family_v1* const found = table_->family(name, version);
  if (found != nullptr) {
    if (found->version >= version && found->struct_size >= table_bytes &&
        has_all_entries(*found, table_bytes))
      return found;
    return make_error(Code::corrupt, "{}: an entry of the table of the family {} is missing", where_, name);
  }
  const headrace_kernel_family_v1* const other = table_->family(name, 0);
  if (other == nullptr)
    return make_error(Code::not_supported,
                      "{} has no family {}: install it from the same build as this Headrace", where_, name);
  return make_error(
      Code::not_supported,
      "{} has family {} version {}, version {} is needed: install it from the same build as this "
      "Headrace",
      where_, name, other->version, version);
}

Kernels::Kernels(const KernelLibrary& library, std::shared_ptr<const Device> device, std::string image)
    : library_(library),
      device_(std::move(device)),
      image_(std::move(image)),
      driver_(driver_for_kernels(device_->driver())) {}

Result<std::shared_ptr<const Kernels>> Kernels::open(const KernelLibrary& library,
                                                     std::shared_ptr<const Device> device) {
  HEADRACE_TRY(image, library.image_for(device->info()));
  std::shared_ptr<Kernels> kernels(new Kernels(library, std::move(device), image->name));
  const ContextGuard guard(*kernels->device_);
  headrace_kernels_open_v1 args{};
  args.struct_size = sizeof args;
  args.driver = &kernels->driver_;
  args.image = image;
  args.multiprocessors = static_cast<std::uint32_t>(kernels->device_->info().multiprocessors);
  const auto outcome = static_cast<cuda::Outcome>(library.table().open(&args, &kernels->set_));
  if (outcome != cuda::Outcome::success)
    return refusal_of(
        kernels->device_->driver(), outcome,
        fmt::format("kernels {} on GPU {}: {}", image->name, kernels->device_->ordinal(), failed_step(args)));
  return std::shared_ptr<const Kernels>(std::move(kernels));
}

Kernels::~Kernels() {
  if (set_ == nullptr) return;
  const ContextGuard guard(*device_);
  (void)library_.table().close(set_);
}

}  // namespace headrace::gpu
