// SPDX-License-Identifier: Apache-2.0
// Which copies an operation consists of.
#include "kernels/collectives/collectives.hpp"

namespace headrace::kernels::collectives {
namespace {

class CopyList {
 public:
  explicit CopyList(headrace_collectives_copies_v1& copies) : copies_(copies) { copies_.count = 0; }

  void add(std::uint64_t source, std::uint64_t target, std::uint64_t bytes) {
    if (bytes == 0 || source == target) return;
    copies_.sources[copies_.count] = source;
    copies_.targets[copies_.count] = target;
    copies_.bytes[copies_.count++] = bytes;
  }

 private:
  headrace_collectives_copies_v1& copies_;
};

}  // namespace

bool can_be_copied(const Plan& plan) { return !plan.reduces && !plan.splits && plan.longest != 0; }

std::optional<StepLaunch> step_of(const Plan& plan, std::uint32_t step) {
  StepLaunch made{plan.launch, step};
  Launch& launch = made.launch;
  launch.blocks = 1;
  launch.chunk_bytes = launch.shape.slots * launch.shape.chunk_bytes;
  launch.chunks = static_cast<std::uint32_t>((plan.longest + launch.chunk_bytes - 1) / launch.chunk_bytes);
  if (step > launch.chunks + 1) return {};
  return made;
}

void list_copies(const StepLaunch& step, headrace_collectives_copies_v1& copies) {
  const Launch& launch = step.launch;
  const Shape& shape = launch.shape;
  CopyList list(copies);
  copies.is_last = step.is_last() ? 1 : 0;
  if (step.step == 0) list.add(launch.own.address, launch.receives[launch.rank].address, launch.own.bytes);
  const Chunk sent = step.chunk(step.step), kept = step.sent();
  for (unsigned i = 1; i < shape.ranks; ++i) {  // not all ranks turn to the same one first
    const unsigned rank = (launch.rank + i) % shape.ranks;
    const Part &send = launch.sends[rank], &receive = launch.receives[rank];
    list.add(send.address + sent.begin, launch.boxes[rank] + shape.chunk(half_of(sent), launch.rank, 0),
             sent.bytes_of(send));
    list.add(launch.boxes[launch.rank] + shape.chunk(half_of(kept), rank, 0), receive.address + kept.begin,
             kept.bytes_of(receive));
  }
}

}  // namespace headrace::kernels::collectives
