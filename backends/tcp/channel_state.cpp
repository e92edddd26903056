// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/channel_state.hpp"

#include "backends/tcp/context.hpp"
#include "backends/tcp/link.hpp"
#include "base/errors.hpp"

#include <utility>

namespace headrace::tcp {

ChannelState::ChannelState(Watched& its_channel, std::shared_ptr<Link> its_link, unsigned number,
                           UniqueFd socket, IoThread& its_thread)
    : channel(its_channel),
      link(std::move(its_link)),
      context(link->context_),
      index(number),
      thread(its_thread),
      fd(std::move(socket)),
      heartbeat(link->ping_after(), context.settings.heartbeat_timeout) {}

void ChannelState::rouse() {
  if (!std::exchange(resting, false)) return;
  heartbeat.heard();
  heartbeat.spoke();
  thread.hurry(channel.shared_from_this());
}

Result<void> ChannelState::landed(HostCalls& calls, const FrameHeader& header, Code code,
                                  std::uint64_t good_bytes) {
  const std::scoped_lock lock(link->mutex_);
  if (acknowledgements.size() >= max_unanswered_frames)
    return make_error(Code::corrupt, "more than {} writes wait for their answer", max_unanswered_frames);
  acknowledgements.push_back({header.request, header.chunk, code, good_bytes});
  if ((header.flags & flag_bound) != 0) {
    HEADRACE_TRY_VOID(link->inbox_.chunk(header.request, code == Code::ok));
    calls.deliver();
  }
  return {};
}

void ChannelState::clear() {
  gathering = landing = starved = false;
  const std::scoped_lock lock(link->mutex_);
  idle = false;
  acknowledgements.clear();
  answers.clear();
  writes.clear();
  reads.clear();
}

}  // namespace headrace::tcp
