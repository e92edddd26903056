// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/machine_probe.hpp"

#include "cli/bench/bench_row.hpp"
#include "cli/common/child_ending.hpp"
#include "cli/common/errors.hpp"
#include "cli/common/file_descriptor.hpp"
#include "cli/common/text.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace headrace::cli {
namespace {

namespace fs = std::filesystem;
using State = Finding::State;

/// The first line of a file of /proc or /sys.
std::optional<std::string> line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::uint64_t number_of(const fs::path& path) {
  return std::strtoull(line_of(path).value_or("0").c_str(), nullptr, 10);
}

std::string limit_text(rlim_t limit) { return limit == RLIM_INFINITY ? "unlimited" : size_text(limit); }

Finding kernel() {
  utsname names{};
  ::uname(&names);
  return {"kernel", State::note, fmt::format("{} {} {}", names.sysname, names.release, names.machine), {}};
}

Finding processors() {
  Finding finding{"CPUs", State::note, machine_text(), {}};
  finding.value = finding.value.substr(0, finding.value.rfind(", Linux"));
  if (const auto quota = line_of("/sys/fs/cgroup/cpu.max"); quota && !quota->starts_with("max")) {
    std::istringstream text(*quota);
    double allowed = 0, period = 0;
    if (text >> allowed >> period && period > 0)
      finding.value += fmt::format("; the container may use {:.1f} of them", allowed / period);
  }
  return finding;
}

Finding locked_memory() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return {"locked memory", State::note,
          fmt::format("{} (hard limit {})", limit_text(limit.rlim_cur), limit_text(limit.rlim_max)),
          limit.rlim_cur == RLIM_INFINITY
              ? ""
              : "shm and tcp lock no memory; RDMA and GPU paths need more (ulimit -l)"};
}

Finding descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{
      "open files", State::good, fmt::format("{} (hard limit {})", limit.rlim_cur, limit.rlim_max), {}};
  if (limit.rlim_cur < 1024) {
    finding.state = State::warning;
    finding.advice =
        "each allocated region and each tcp socket takes one: raise the limit with ulimit -n 4096";
  }
  return finding;
}

// --- cross-memory attach

constexpr std::uint64_t mark = 0x6865616472616365;

enum class Attach : int { works = 0, forbidden = 1, missing = 2, garbled = 3 };

struct Trial {
  Attach result;
  std::string why_garbled;
};

/// Reads eight bytes of another process.
Attach read_from(pid_t process, const std::uint64_t* their_word) {
  std::uint64_t word = 0;
  const iovec here{&word, sizeof word};
  const iovec there{const_cast<std::uint64_t*>(their_word), sizeof word};
  if (::process_vm_readv(process, &here, 1, &there, 1, 0) == sizeof word)
    return word == mark ? Attach::works : Attach::garbled;
  return errno == ENOSYS ? Attach::missing : Attach::forbidden;
}

/// Whether a child can read the memory of this process. A parent may always read its children; Yama's
/// ptrace_scope forbids the other direction, as between any two processes of one user.
Trial child_reads_us() {
  const std::uint64_t word = mark;
  const pid_t us = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(static_cast<int>(read_from(us, &word)));
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child)
    return {Attach::garbled, fmt::format("no process could be made to try it: {}", system_text())};
  if (WIFSIGNALED(status))  // as some seccomp profiles do
    return {Attach::garbled, fmt::format("the process that tried it {}", ending_text(status))};
  return {static_cast<Attach>(WEXITSTATUS(status)), "another process read wrong bytes"};
}

}  // namespace

Finding probe_attach() {
  const auto scope = line_of("/proc/sys/kernel/yama/ptrace_scope");
  const std::string setting =
      scope ? fmt::format("ptrace_scope is {}", *scope) : "no ptrace_scope on this kernel";
  Finding finding{"cross-memory attach",
                  State::good,
                  fmt::format("works: another process read this one's memory; {}", setting),
                  {}};
  const Trial trial = child_reads_us();
  switch (trial.result) {
    case Attach::works:
      break;
    case Attach::forbidden:
      finding.state = State::warning;
      finding.value = fmt::format("forbidden between processes of one user; {}", setting);
      finding.advice =
          scope && *scope != "0"
              ? "memory from `allocate` is mapped and needs no attach; for registered memory run "
                "sysctl kernel.yama.ptrace_scope=0"
              : "memory from `allocate` is mapped and needs no attach; for registered memory allow "
                "process_vm_readv in the container's seccomp profile, or give the container CAP_SYS_PTRACE";
      break;
    case Attach::missing:
      finding.state = State::warning;
      finding.value = "this kernel is built without it (CONFIG_CROSS_MEMORY_ATTACH)";
      finding.advice = "use memory from `allocate`, which peers map";
      break;
    case Attach::garbled:
      finding.state = State::bad;
      finding.value = trial.why_garbled;
      finding.advice = "set option shm.attach to off";
      break;
  }
  return finding;
}

namespace {

Finding shared_memory() {
  const FileDescriptor memory(::memfd_create("headrace-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ::ftruncate(memory.get(), 4096) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return {"shared memory", State::bad, fmt::format("a sealed memfd cannot be made: {}", system_text()),
            "`allocate` and the shm backend need memfd_create: allow it in the container's seccomp profile"};
  std::string text = "sealed memfds work";
  struct statvfs file_system {};
  if (::statvfs("/dev/shm", &file_system) == 0)
    text +=
        fmt::format("; /dev/shm has {} free of {}", amount_text(file_system.f_bavail * file_system.f_frsize),
                    amount_text(file_system.f_blocks * file_system.f_frsize));
  if (const auto limit = line_of("/sys/fs/cgroup/memory.max"); limit && *limit != "max")
    text +=
        fmt::format("; the container may use {}", amount_text(std::strtoull(limit->c_str(), nullptr, 10)));
  return {"shared memory", State::good, text, {}};
}

Finding huge_pages() {
  std::string text;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/sys/kernel/mm/hugepages", ignored)) {
    const std::string name = entry.path().filename();  // hugepages-2048kB
    const std::uint64_t kilobytes =
        std::strtoull(name.c_str() + std::min(name.size(), std::size_t{10}), nullptr, 10);
    text += fmt::format("{}{}: {} free of {}", text.empty() ? "" : "; ", size_text(kilobytes * 1024),
                        number_of(entry.path() / "free_hugepages"), number_of(entry.path() / "nr_hugepages"));
  }
  if (const auto transparent = line_of("/sys/kernel/mm/transparent_hugepage/enabled"))
    text += "; transparent: " + *transparent;
  return {"huge pages", State::note, text.empty() ? "none" : text, {}};
}

Finding waiting() {
  const auto pidfd = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  const FileDescriptor owner(pidfd);
  if (owner)
    return {
        "process descriptors", State::good, "pidfd_open works: the death of a peer is noticed at once", {}};
  return {"process descriptors", State::warning, fmt::format("pidfd_open: {}", system_text()),
          "only a peer's socket shows its death; allow pidfd_open in the container's seccomp profile, or use "
          "Linux 5.3 or newer"};
}

Finding tcp() {
  const std::string available = line_of("/proc/sys/net/ipv4/tcp_available_congestion_control").value_or("");
  const std::string allowed =
      line_of("/proc/sys/net/ipv4/tcp_allowed_congestion_control").value_or(available);
  const FileDescriptor probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe)
    return {"TCP", State::bad, fmt::format("no socket: {}", system_text()),
            "the tcp backend cannot work here"};
  std::array<char, 32> current{};
  socklen_t length = current.size();
  ::getsockopt(probe.get(), IPPROTO_TCP, 13 /* TCP_CONGESTION */, current.data(), &length);
  const bool cubic = ::setsockopt(probe.get(), IPPROTO_TCP, 13, "cubic", 5) == 0;
  Finding finding{"TCP",
                  cubic ? State::good : State::warning,
                  fmt::format("congestion control: {} by default, {} available, {} allowed", current.data(),
                              available, allowed),
                  {}};
  if (!cubic)
    finding.advice =
        "backend tcp selects cubic, which is the fastest on loopback and in a data centre: modprobe "
        "tcp_cubic";
  return finding;
}

Finding ipv6() {
  const FileDescriptor probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  if (probe && ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) == 0)
    return {"IPv6", State::good, "works on loopback", {}};
  return {"IPv6", State::note, fmt::format("not here: {}", system_text()), {}};
}

/// Checks a library that Headrace loads at its first use.
Finding library(const char* name, const char* file, const char* what_for, const char* package) {
  // Not closed: unloading a library that has threads or at-exit handlers can crash.
  if (::dlopen(file, RTLD_LAZY | RTLD_LOCAL) != nullptr)
    return {name, State::good, fmt::format("{} was found", file), {}};
  return {name, State::note, fmt::format("{} was not found: {}", file, what_for),
          fmt::format("apt-get install {}", package)};
}

Finding etcd() {
  const std::string path = ::getenv("PATH") == nullptr ? "" : ::getenv("PATH");
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access((folder + "/etcd").c_str(), X_OK) == 0)
      return {"etcd", State::note, folder + "/etcd was found", {}};
  return {"etcd", State::note, "this machine has no etcd server; a store on another machine works as well",
          "apt-get install etcd-server"};
}

}  // namespace

std::string_view state_name(Finding::State state) {
  switch (state) {
    case State::good:
      return "ok";
    case State::note:
      return "note";
    case State::warning:
      return "warning";
    case State::bad:
      return "bad";
  }
  return "?";
}

namespace {

/// The NVIDIA GPUs of a NUMA node, from their PCI devices: ", GPU 0000:1b:00.0".
std::string gpus_near(const std::string& root, const std::string& node) {
  constexpr std::string_view nvidia = "0x10de", display = "0x03";
  std::vector<std::string> slots;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root + "/sys/bus/pci/devices", ignored)) {
    const fs::path& device = entry.path();
    if (line_of(device / "vendor") == nvidia && line_of(device / "class").value_or("").starts_with(display) &&
        line_of(device / "numa_node") == node)
      slots.push_back(device.filename());
  }
  std::sort(slots.begin(), slots.end());
  std::string text;
  for (const std::string& slot : slots) text += (text.empty() ? ", GPU " : " and ") + slot;
  return text;
}

/// The memory of a node, from its file meminfo: the line "Node 0 MemTotal: ...".
std::string memory_of(const fs::path& node) {
  std::ifstream file(node / "meminfo");
  for (std::string line; std::getline(file, line);)
    if (const std::size_t at = line.find("MemTotal:"); at != std::string::npos)
      return amount_text(
          std::strtoull(line.c_str() + at + std::string_view("MemTotal:").size(), nullptr, 10) * 1024);
  return "no memory";
}

}  // namespace

Finding probe_numa(const std::string& root) {
  std::string text;
  std::error_code ignored;
  std::vector<int> nodes;
  const fs::path folder = root + "/sys/devices/system/node";
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("node") && name.size() > 4 &&
        name.find_first_not_of("0123456789", 4) == std::string::npos)
      nodes.push_back(std::stoi(name.substr(4)));
  }
  std::sort(nodes.begin(), nodes.end());
  for (const int number : nodes) {
    const fs::path node = folder / fmt::format("node{}", number);
    text += fmt::format("{}node {}: {}, CPUs {}{}", text.empty() ? "" : "; ", number, memory_of(node),
                        line_of(node / "cpulist").value_or("?"), gpus_near(root, std::to_string(number)));
  }
  return {"NUMA", State::note, text.empty() ? "the kernel reports no nodes" : text, {}};
}

Finding probe_gpus(const Result<cuda::DriverTable>& driver) {
  const auto devices =
      driver ? gpu::list_devices(*driver) : Result<std::vector<gpu::DeviceInfo>>(driver.error());
  // No advice: on a machine that has GPUs, the finding of backend cuda_ipc says what to do.
  if (!devices) return {"GPUs", State::note, devices.error().message, {}};
  std::string text;
  for (const gpu::DeviceInfo& device : *devices)
    text += fmt::format("{}{}: {}, {}, sm_{}{}, {}", text.empty() ? "" : "; ", device.ordinal, device.name,
                        amount_text(device.memory_bytes), device.major, device.minor, device.pci);
  int version = 0;
  if (driver->driver_get_version(&version) == cuda::Outcome::success)
    text += fmt::format("; the driver supports CUDA {}", cuda::version_text(version));
  return {"GPUs", State::good, text, {}};
}

Finding probe_kernels(const Result<cuda::DriverTable>& driver, const Result<gpu::KernelLibrary>& library) {
  const auto devices =
      driver ? gpu::list_devices(*driver) : Result<std::vector<gpu::DeviceInfo>>(driver.error());
  const bool wanted = devices && !devices->empty();
  const auto state = [wanted](Finding::State otherwise) { return wanted ? otherwise : Finding::State::note; };
  if (!library)
    return {"GPU kernels", state(Finding::State::bad), library.error().message,
            wanted ? "build the package again, with kernels for the GPUs of this machine" : ""};
  for (std::size_t i = 0; wanted && i < devices->size(); ++i)
    if (const auto image = library->image_for((*devices)[i]); !image)
      return {"GPU kernels", Finding::State::bad, image.error().message,
              "build the package again, with kernels for the GPUs of this machine"};
  return {"GPU kernels", state(Finding::State::good), library->image_names(), {}};
}

std::vector<Finding> probe_machine() {
  const Finding reached = probe_attach();  // first: it forks, and loading the driver may start threads
  const auto driver = cuda::load_driver();
  return {kernel(),
          processors(),
          probe_numa(""),
          probe_gpus(driver),
          probe_kernels(driver, gpu::KernelLibrary::load()),
          reached,
          shared_memory(),
          huge_pages(),
          locked_memory(),
          descriptors(),
          waiting(),
          tcp(),
          ipv6(),
          library("libcurl", "libcurl.so.4", "a store in etcd needs it", "libcurl4"),
          library("hwloc", "libhwloc.so.15", "the topology is read from /sys only", "libhwloc15"),
          etcd()};
}

std::string default_runtime_folder() {
  if (const char* const folder = ::getenv("XDG_RUNTIME_DIR"); folder != nullptr && fs::is_directory(folder))
    return fmt::format("{}/headrace", folder);
  return fmt::format("/tmp/headrace-{}", ::geteuid());
}

Finding probe_runtime_folder(const std::string& folder) {
  struct stat entry {};
  Finding finding{"runtime folder", State::good, folder, {}};
  const auto bad = [&](const std::string& why) {
    finding.state = State::bad;
    finding.value = fmt::format("{}: {}", folder, why);
    finding.advice = "name a folder of your own in option runtime_dir (HEADRACE_RUNTIME_DIR)";
  };
  if (::stat(folder.c_str(), &entry) != 0) {
    // Makes the folder, as the first agent would: permissions alone do not tell whether that works (see
    // /proc).
    if (errno == ENOENT && ::mkdir(folder.c_str(), 0700) == 0)
      finding.value += " (made now)";
    else
      bad(fmt::format("cannot be made: {}", system_text()));
  } else if (!S_ISDIR(entry.st_mode)) {
    bad("is not a folder");
  } else if (entry.st_uid != ::geteuid()) {
    bad(fmt::format("belongs to user {}, not to this user", entry.st_uid));
  } else if ((entry.st_mode & 077) != 0) {
    bad(fmt::format("other users can access it (mode {:04o}): chmod 700", entry.st_mode & 07777));
  }
  return finding;
}

}  // namespace headrace::cli
