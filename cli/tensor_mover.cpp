// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_mover.hpp"

#include "cli/errors.hpp"

#include <chrono>
#include <deque>
#include <numeric>

namespace headrace::cli {
namespace {

// Large enough that no path notices the single page, small enough that a lost one is no loss.
constexpr std::uint64_t page_bytes = 1 << 20;
constexpr std::uint64_t request_bytes = 16 << 20;
constexpr std::uint64_t request_pages = 4096;
constexpr std::size_t requests_in_flight = 4;

Error ended(const Request& request, Status status) {
  Error error = request.error();
  if (error.code == Code::ok) return fail(status.code, "post: {}", code_name(status.code));
  return error;
}

/// Where one tensor's pages end in the lists.
struct LastPage {
  std::size_t tensor;
  std::uint64_t end;
};

}  // namespace

Result<TensorMover> TensorMover::open(Agent& agent, const std::string& peer, std::span<std::byte> file,
                                      Timeout patience) {
  MemoryRange range;
  range.address = file.data();
  range.length_bytes = file.size();
  HEADRACE_CLI_TRY(region, agent.register_memory(range));
  return TensorMover(agent, peer, std::move(region), patience);
}

TensorMover::TensorMover(TensorMover&& other) noexcept
    : agent_(std::exchange(other.agent_, nullptr)),
      peer_(std::move(other.peer_)),
      region_(std::move(other.region_)),
      patience_(other.patience_) {}

TensorMover::~TensorMover() {
  // Requests that are still running end first; what cannot be taken back goes with the agent, before the
  // file.
  if (agent_ != nullptr) static_cast<void>(agent_->deregister(region_.id));
}

Result<MoveReport> TensorMover::move(const PullPlan& plan, OutputFile& output) {
  const auto part_of = [&](std::size_t i) {
    return output.bytes().subspan(plan.offsets()[i], plan.tensors()[i].info.bytes);
  };
  MoveReport report;
  std::vector<Page> here, there;
  std::vector<LastPage> last_pages;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const ServedTensor& tensor = plan.tensors()[i];
    const auto noted = output.complete().find(i);
    // What was noted is looked at again: the machine may have gone down before the disk had it.
    if (noted != output.complete().end() && noted->second == tensor.checksum &&
        checksum(part_of(i)) == tensor.checksum) {
      ++report.kept_tensors;
      report.kept_bytes += tensor.info.bytes;
      continue;
    }
    for (std::uint64_t at = 0; at < tensor.info.bytes; at += page_bytes) {
      const std::uint64_t length = std::min(page_bytes, tensor.info.bytes - at);
      here.push_back({region_.id.value, plan.offsets()[i] + at, length});
      there.push_back({tensor.region.value, at, length});
    }
    last_pages.push_back({i, here.size()});
  }

  const std::uint64_t all_bytes = plan.tensor_bytes();
  ProgressBar bar("pulling", all_bytes, report.kept_bytes);
  std::size_t next_tensor = 0;
  // Requests end in the order in which they were posted, or are waited for in it: pages before `arrived` are
  // there.
  const auto take_in = [&](std::uint64_t arrived) -> Result<void> {
    for (; next_tensor < last_pages.size() && last_pages[next_tensor].end <= arrived; ++next_tensor) {
      const std::size_t i = last_pages[next_tensor].tensor;
      const ServedTensor& tensor = plan.tensors()[i];
      const std::uint64_t sum = checksum(part_of(i));
      if (sum != tensor.checksum)
        return fail(Code::corrupt,
                    "tensor \"{}\" has arrived with checksum {:016x} instead of {:016x}: its {} bytes are "
                    "not those served",
                    tensor.info.name, sum, tensor.checksum, tensor.info.bytes);
      HEADRACE_CLI_CHECK(output.note_complete(i, sum));
      ++report.tensors;
    }
    return {};
  };

  const auto begin = std::chrono::steady_clock::now();
  if (here.empty()) {
    HEADRACE_CLI_CHECK(take_in(0));
    return report;
  }
  HEADRACE_CLI_TRY(local, agent_->prepare(std::span<const Page>(here)));
  HEADRACE_CLI_TRY(remote, agent_->prepare(peer_, std::span<const Page>(there)));
  std::vector<std::uint32_t> index(here.size());
  std::iota(index.begin(), index.end(), 0U);

  struct Flight {
    Request request;
    std::uint64_t end;
  };
  std::deque<Flight> flights;
  std::uint64_t posted = 0;
  RequestOptions options;
  options.timeout = patience_;
  while (posted < here.size() || !flights.empty()) {
    if (posted < here.size() && flights.size() < requests_in_flight) {
      std::uint64_t end = posted, bytes = 0;
      while (end < here.size() && end - posted < request_pages &&
             (end == posted || bytes + here[end].length_bytes <= request_bytes))
        bytes += here[end++].length_bytes;
      const auto part = std::span<const std::uint32_t>(index).subspan(posted, end - posted);
      HEADRACE_CLI_TRY(request, agent_->make_request(Op::read, local, part, remote, part, options));
      const Status status = request.post();
      if (status.ok()) {
        flights.push_back({std::move(request), end});
        posted = end;
        continue;
      }
      if (status.code != Code::would_block || flights.empty()) return ended(request, status);
    }
    Flight flight = std::move(flights.front());
    flights.pop_front();
    if (const Status status = flight.request.wait(patience_); !status.ok())
      return ended(flight.request, status);
    report.bytes += flight.request.bytes();
    report.paths.insert(flight.request.backend());
    if (report.explanation.empty()) report.explanation = flight.request.explain();
    HEADRACE_CLI_CHECK(take_in(flight.end));
    bar.show(report.kept_bytes + report.bytes);
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

Result<std::string> read_region(Agent& agent, const std::string& peer, RegionId region, std::uint64_t bytes,
                                Timeout patience) {
  const auto memory = std::make_shared<std::string>(bytes, '\0');
  MemoryRange range;
  range.address = memory->data();
  range.length_bytes = memory->size();
  RegisterOptions registration;
  registration.keep_alive = memory;
  HEADRACE_CLI_TRY(local_region, agent.register_memory(range, registration));
  HEADRACE_CLI_TRY(local, agent.prepare(UniformPages{local_region.id, 0, 0, bytes, 1}));
  HEADRACE_CLI_TRY(remote, agent.prepare(peer, UniformPages{region, 0, 0, bytes, 1}));
  RequestOptions options;
  options.timeout = patience;
  HEADRACE_CLI_TRY(request, agent.make_request(Op::read, local, remote, options));
  if (const Status status = request.post(); !status.ok()) return ended(request, status);
  if (const Status status = request.wait(patience); !status.ok()) return ended(request, status);
  request = Request();
  HEADRACE_CLI_CHECK(agent.deregister(local_region.id));
  return std::move(*memory);
}

}  // namespace headrace::cli
