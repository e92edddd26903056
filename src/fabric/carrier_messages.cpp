// SPDX-License-Identifier: Apache-2.0
// Messages of memory of GPUs: the copies between that and host memory, and what waits for them.
#include "fabric/carrier.hpp"

#include <algorithm>
#include <utility>

namespace headrace::fabric {
namespace {

// Host memory of the messages to one peer that are copied out of GPUs, and have not ended: enough for a
// network card to go on while the next is copied. A longer message takes its length, and no other then has
// any.
constexpr std::uint64_t most_staged_bytes = 64 << 20;

}  // namespace

// ------------------------------------------------------------------ copies

/// How many there are.
std::size_t Carrier::look_at_copies() {
  const auto copies = std::exchange(copies_, {});
  for (const auto& part : copies) {
    auto over = part->setup.staged->step();
    if (over && !*over)
      copies_.push_back(part);
    else
      copied(part, std::move(over));
  }
  if (!copies.empty()) settle();
  return copies.size();
}

void Carrier::copied(const std::shared_ptr<Part>& part, Result<bool> over) {
  const bool goes_out = part->setup.staged->goes_out();
  if (goes_out && over && !is_stopped(*part)) return send_next(*part->link);
  if (goes_out) leave_line(part);
  if (!over)
    ended_.push_back({part, {over.code()}, std::move(over.error().message)});
  else
    ended_.push_back({part, {goes_out ? Code::canceled : Code::ok}, {}});
  if (part->link != nullptr) send_next(*part->link);
}

bool Carrier::is_stopped(const Part& part) { return part.cause || part.work->run.cause; }

// ------------------------------------------------------------------ into memory of GPUs

/// The end of such a receive is that of the copy.
bool Carrier::begin_copy_into_gpu(const Ended& ended) {
  StagedMessage* const staged = ended.part->setup.staged.get();
  if (staged == nullptr || staged->goes_out() || !ended.status.ok() || staged->has_begun()) return false;
  if (!parts_.contains(&ended.part->request())) return false;
  staged->begin(ended.part->work->bytes());
  copies_.push_back(ended.part);
  return true;
}

// ------------------------------------------------------------------ out of memory of GPUs

/// Behind those to this peer that wait: messages arrive in the order of their posts.
void Carrier::send(const std::shared_ptr<Part>& part) {
  lines_[part->link].waiting.push_back(part);
  send_next(*part->link);
}

/// Gives the link what it can have, and begins the next copy if there is room for it.
void Carrier::send_next(rail::Link& link) {
  const auto at = lines_.find(&link);
  if (at == lines_.end()) return;
  Line& line = at->second;
  while (!line.waiting.empty()) {
    const std::shared_ptr<Part> part = line.waiting.front();
    StagedMessage* const staged = part->setup.staged.get();
    if (staged != nullptr && !staged->is_over()) {
      if (staged->has_begun() || !begin_copy_out_of_gpu(part, line)) return;
      continue;
    }
    line.waiting.pop_front();
    const rail::LocalRegion& region = staged != nullptr ? staged->region : part->setup.here->region;
    const std::uint64_t offset = staged != nullptr ? 0 : part->setup.here_rows.base;
    const Status sent = link.send({&region, offset, part->setup.page_bytes, part->token()});
    if (!sent.ok()) ended_.push_back({part, sent, {}});
  }
  if (line.staged_bytes == 0) lines_.erase(at);
}

/// False: the memory of others has to come back first. Of the front of the line, which it may leave.
bool Carrier::begin_copy_out_of_gpu(const std::shared_ptr<Part>& part, Line& line) {
  StagedMessage& staged = *part->setup.staged;
  if (line.staged_bytes > 0 && line.staged_bytes + staged.bytes() > most_staged_bytes) return false;
  if (auto taken = staged.take_memory(); !taken) {
    line.waiting.pop_front();
    ended_.push_back({part, {taken.code()}, std::move(taken.error().message)});
    return true;
  }
  line.staged_bytes += staged.bytes();
  staged.begin(staged.bytes());
  copies_.push_back(part);
  return true;
}

/// One that has ended, or its link, which has no line then, is lost.
void Carrier::give_staged_memory_back(const Part& part) {
  const StagedMessage* const staged = part.setup.staged.get();
  if (staged == nullptr || !staged->goes_out() || !staged->has_begun() || part.link == nullptr) return;
  const auto at = lines_.find(part.link);
  if (at == lines_.end()) return;
  at->second.staged_bytes -= staged->bytes();
  send_next(*part.link);
}

void Carrier::leave_line(const std::shared_ptr<Part>& part) {
  if (const auto at = lines_.find(part->link); at != lines_.end()) std::erase(at->second.waiting, part);
}

/// True: the link does not have it. One that is copied ends when the copy has ended.
bool Carrier::stop_waiting(const Part& part) {
  const auto at = lines_.find(part.link);
  if (at == lines_.end()) return false;
  auto& waiting = at->second.waiting;
  const auto found = std::ranges::find_if(waiting, [&](const auto& each) { return each.get() == &part; });
  if (found == waiting.end()) return false;
  if (StagedMessage* const staged = part.setup.staged.get(); staged != nullptr && staged->has_begun()) {
    staged->cut_short();
    return true;
  }
  ended_.push_back({std::move(*found), {Code::canceled}, {}});
  waiting.erase(found);
  send_next(*part.link);
  return true;
}

/// Those that wait end, one that is copied when the copy has ended.
void Carrier::end_line(rail::Link& link, const std::string& why) {
  const auto at = lines_.find(&link);
  if (at == lines_.end()) return;
  const Line line = std::move(at->second);
  lines_.erase(at);
  for (const auto& part : line.waiting) {
    if (part->setup.staged != nullptr && part->setup.staged->has_begun()) {
      part->setup.staged->cut_short();
      if (!part->cause) part->cause = Error{Code::peer_lost, why, no_page};
      part->link = nullptr;
    } else {
      ended_.push_back({part, {Code::peer_lost}, why});
    }
  }
}

}  // namespace headrace::fabric
