// SPDX-License-Identifier: Apache-2.0
#include "cli/pull/tensor_mover.hpp"

#include "cli/common/checksum.hpp"
#include "cli/common/errors.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <numeric>

namespace headrace::cli {
namespace {

// So large that the cost of a single page does not matter on any path.
constexpr std::uint64_t page_bytes = 1 << 20;
// Windows begin at multiples of their size, and each is written by one call, so that the kernel uses large
// pages for the file. In calls of 1 MiB, writing a file that is not in the page cache takes several times the
// processor time.
constexpr std::uint64_t window_bytes = 16 << 20;
constexpr std::size_t window_pages = 4096;
constexpr std::size_t requests_in_flight = 4;

Error ended(const Request& request, Status status) {
  Error error = request.error();
  if (error.code == Code::ok) return fail(status.code, "post: {}", code_sentence(status.code));
  return error;
}

/// Zeroed memory, in huge pages where the system gives them.
Result<std::shared_ptr<std::byte>> staging_memory(std::uint64_t bytes) {
  void* const mapped =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    return fail(Code::exhausted, "mapping {} bytes of memory to receive in: {}", bytes, system_text());
  ::madvise(mapped, bytes, MADV_HUGEPAGE);
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(mapped),
                                    [bytes](std::byte* memory) { ::munmap(memory, bytes); });
}

}  // namespace

/// A range of a tensor that moves as one page. It is within one window of the file.
struct Piece {
  std::size_t tensor;
  std::uint64_t in_tensor, in_file, bytes;

  [[nodiscard]] std::uint64_t window() const { return in_file / window_bytes; }
};

namespace {

std::vector<Piece> cut(const PullPlan& plan, std::span<const std::size_t> tensors) {
  std::vector<Piece> pieces;
  for (const std::size_t tensor : tensors) {
    const std::uint64_t begin = plan.offsets()[tensor], end = begin + plan.tensors()[tensor].info.bytes;
    for (std::uint64_t at = begin; at < end;) {
      const std::uint64_t window_end = (at / window_bytes + 1) * window_bytes;
      const std::uint64_t bytes = std::min({page_bytes, end - at, window_end - at});
      pieces.push_back({tensor, at - begin, at, bytes});
      at += bytes;
    }
  }
  return pieces;
}

/// The pages of one request: neighbours in one window of the file, and their place in the staging memory.
struct Load {
  std::size_t first, end;   // indices of the pieces
  std::uint64_t staged_at;  // offset of the window in the staging memory
};

std::vector<Load> group(std::span<const Piece> pieces) {
  std::vector<Load> loads;
  for (std::size_t first = 0; first < pieces.size(); first = loads.back().end) {
    std::size_t end = first + 1;
    while (end < pieces.size() && end - first < window_pages &&
           pieces[end].window() == pieces[first].window())
      ++end;
    loads.push_back({first, end, loads.size() % requests_in_flight * window_bytes});
  }
  return loads;
}

}  // namespace

/// Writes the pages that have arrived to the file. They arrive in the order of the file, so the pages of a
/// tensor follow one another.
class Arrivals {
 public:
  Arrivals(const PullPlan& plan, OutputFile& output) : plan_(plan), output_(output) {}

  /// Writes the pieces of one window. `window` is the beginning of that window in the staging memory.
  Result<void> take(std::span<const Piece> pieces, const std::byte* window) {
    const auto bytes_of = [&](const Piece& piece, std::uint64_t bytes) {
      return std::span(window + piece.in_file % window_bytes, bytes);
    };
    for (std::size_t first = 0, end = 0; first < pieces.size(); first = end) {
      std::uint64_t bytes = 0;
      for (end = first; end < pieces.size() && pieces[end].in_file == pieces[first].in_file + bytes; ++end)
        bytes += pieces[end].bytes;
      HEADRACE_CLI_CHECK(output_.write(pieces[first].in_file, bytes_of(pieces[first], bytes)));
    }
    for (const Piece& piece : pieces) {
      sum_.add(bytes_of(piece, piece.bytes));
      if (piece.in_tensor + piece.bytes == plan_.tensors()[piece.tensor].info.bytes)
        HEADRACE_CLI_CHECK(settle(piece.tensor));
    }
    return {};
  }

  /// Compares the checksum of a tensor that is in the file, and notes the tensor as complete.
  Result<void> settle(std::size_t i) {
    const ServedTensor& tensor = plan_.tensors()[i];
    const std::uint64_t sum = sum_.take();
    if (sum != tensor.checksum)
      return fail(Code::corrupt,
                  "tensor \"{}\" arrived with checksum {:016x} instead of {:016x}: its {} bytes differ from "
                  "those that are served",
                  tensor.info.name, sum, tensor.checksum, tensor.info.bytes);
    HEADRACE_CLI_CHECK(output_.note_complete(i, sum));
    ++tensors_;
    return {};
  }

  [[nodiscard]] std::uint64_t tensors() const { return tensors_; }

 private:
  const PullPlan& plan_;
  OutputFile& output_;
  RunningChecksum sum_;
  std::uint64_t tensors_ = 0;
};

namespace {

/// The tensors that the file lacks. Counts the others in the report.
std::vector<std::size_t> missing_tensors(const PullPlan& plan, const OutputFile& output, MoveReport& report,
                                         QuietNotice& notice) {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    notice.progress();
    const ServedTensor& tensor = plan.tensors()[i];
    const auto noted = output.complete().find(i);
    // A noted tensor is compared again: the machine may have crashed before the disk had its bytes.
    if (noted != output.complete().end() && noted->second == tensor.checksum &&
        checksum(output.bytes().subspan(plan.offsets()[i], tensor.info.bytes)) == tensor.checksum) {
      ++report.kept_tensors;
      report.kept_bytes += tensor.info.bytes;
    } else {
      missing.push_back(i);
    }
  }
  return missing;
}

}  // namespace

Result<TensorMover> TensorMover::open(Agent& agent, const std::string& peer, Timeout patience) {
  MemoryRange range;
  range.length_bytes = requests_in_flight * window_bytes;  // memory that is not touched costs nothing
  HEADRACE_CLI_TRY(memory, staging_memory(range.length_bytes));
  range.address = memory.get();
  RegisterOptions registration;
  registration.keep_alive = memory;
  HEADRACE_CLI_TRY(region, agent.register_memory(range, registration));
  return TensorMover(agent, peer, std::move(region), std::move(memory), patience);
}

TensorMover::TensorMover(TensorMover&& other) noexcept
    : agent_(std::exchange(other.agent_, nullptr)),
      peer_(std::move(other.peer_)),
      region_(std::move(other.region_)),
      staging_(std::move(other.staging_)),
      patience_(other.patience_) {}

TensorMover::~TensorMover() {
  // Waits for requests that still run. If this fails, the region ends with the agent.
  if (agent_ != nullptr) static_cast<void>(agent_->deregister(region_.id));
}

Result<MoveReport> TensorMover::move(const PullPlan& plan, OutputFile& output, QuietNotice& notice) {
  MoveReport report;
  const std::vector<std::size_t> missing = missing_tensors(plan, output, report, notice);
  Arrivals arrivals(plan, output);
  for (const std::size_t i : missing)
    if (plan.tensors()[i].info.bytes == 0) HEADRACE_CLI_CHECK(arrivals.settle(i));
  const std::vector<Piece> pieces = cut(plan, missing);
  if (!pieces.empty()) HEADRACE_CLI_CHECK(bring(plan, pieces, arrivals, report, notice));
  report.tensors = arrivals.tensors();
  return report;
}

Result<void> TensorMover::bring(const PullPlan& plan, std::span<const Piece> pieces, Arrivals& arrivals,
                                MoveReport& report, QuietNotice& notice) {
  const std::vector<Load> loads = group(pieces);
  std::vector<Page> here, there;
  for (const Load& load : loads) {
    for (const Piece& piece : pieces.subspan(load.first, load.end - load.first)) {
      here.push_back({region_.id.value, load.staged_at + piece.in_file % window_bytes, piece.bytes});
      there.push_back({plan.tensors()[piece.tensor].region.value, piece.in_tensor, piece.bytes});
    }
  }
  HEADRACE_CLI_TRY(local, agent_->prepare(std::span<const Page>(here)));
  HEADRACE_CLI_TRY(remote, agent_->prepare(peer_, std::span<const Page>(there)));
  std::vector<std::uint32_t> index(here.size());
  std::iota(index.begin(), index.end(), 0U);

  ProgressBar bar("pulling", plan.tensor_bytes(), report.kept_bytes);
  const auto begin = std::chrono::steady_clock::now();
  RequestOptions options;
  options.timeout = patience_;
  std::deque<Request> flights;  // requests of the loads before `posted`, the oldest first
  std::size_t posted = 0;
  while (posted < loads.size() || !flights.empty()) {
    if (posted < loads.size() && flights.size() < requests_in_flight) {
      const Load& load = loads[posted];
      const auto part = std::span<const std::uint32_t>(index).subspan(load.first, load.end - load.first);
      HEADRACE_CLI_TRY(request, agent_->make_request(Op::read, {local, remote, part, part}, options));
      const Status status = request.post();
      if (status.ok()) {
        flights.push_back(std::move(request));
        ++posted;
        continue;
      }
      if (status.code != Code::would_block || flights.empty()) return ended(request, status);
    }
    const Load& load = loads[posted - flights.size()];
    Request request = std::move(flights.front());
    flights.pop_front();
    HEADRACE_CLI_CHECK(finish(std::move(request), report));
    HEADRACE_CLI_CHECK(
        arrivals.take(pieces.subspan(load.first, load.end - load.first), staging_.get() + load.staged_at));
    bar.show(report.kept_bytes + report.bytes);
    notice.progress();
  }
  report.transfer_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {};
}

Result<void> TensorMover::finish(Request request, MoveReport& report) const {
  if (const Status status = request.wait(patience_); !status.ok()) return ended(request, status);
  report.bytes += request.bytes();
  report.paths.insert(request.backend());
  if (report.explanation.empty()) report.explanation = request.explain();
  return {};
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
  HEADRACE_CLI_TRY(request, agent.make_request(Op::read, {local, remote}, options));
  if (const Status status = request.post(); !status.ok()) return ended(request, status);
  if (const Status status = request.wait(patience); !status.ok()) return ended(request, status);
  request = Request();
  HEADRACE_CLI_CHECK(agent.deregister(local_region.id));
  return std::move(*memory);
}

}  // namespace headrace::cli
