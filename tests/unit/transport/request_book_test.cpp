// SPDX-License-Identifier: Apache-2.0
#include "transport/request_book.hpp"

#include "support/plugin_host.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace::transport {
namespace {

constexpr std::uint64_t page_bytes = 100;
constexpr ChunkLimits one_page{page_bytes, 1};

class DeafLink final : public HostCalls::Link {
 public:
  explicit DeafLink(plugin::Host host) : HostCalls::Link(host) {}
  void deliver() override {}
  void lose(Status /*status*/, std::string /*why*/) override {}
};

/// A request of pages of which each is a chunk.
class PagedRequest {
 public:
  PagedRequest(headrace_op_v1 op, std::uint64_t pages) {
    side_.struct_size = sizeof side_;
    side_.regions = regions_;
    side_.region_count = 1;
    side_.columns.page_bytes = side_.columns.stride_bytes = page_bytes;
    made_ = std::make_unique<Request>(headrace_prepare_v1{sizeof(headrace_prepare_v1), op, 0, nullptr, pages,
                                                          pages * page_bytes, &side_, &side_, nullptr});
  }
  Request& operator*() { return *made_; }
  Request* operator->() { return made_.get(); }
  /// As `release` does.
  void release() { made_.reset(); }

 private:
  void* regions_[1] = {this};
  headrace_side_v1 side_{};
  std::unique_ptr<Request> made_;
};

/// The host notes a broken rule if a post ends twice.
struct RequestBookTest : ::testing::Test {
  ~RequestBookTest() override { EXPECT_EQ(host.broken_rules(), std::vector<std::string>()); }

  Status post(Request& request, std::optional<PostMessage> message = std::nullopt) {
    const std::uint64_t token = host.post_begins(slot);
    HostCalls calls(link);
    const Status status = book.begin(request, token, std::move(message), calls);
    if (!status.ok()) host.post_refused(token);
    return status;
  }
  Chunk cut(Request& request) {
    Chunk chunk = cut_chunk(request.args, request.next(), one_page);
    chunk.number = request.chunks();
    book.cut(request, chunk);
    return chunk;
  }
  void answer(std::uint64_t wire_id, const Chunk& chunk, const RequestBook::Answer& how = {}) {
    HostCalls calls(link);
    book.answered(wire_id, chunk, how, calls);
  }
  /// As a transport cancels: `under_way` chunks of a read are kept out of its memory.
  void cancel(Request& request, std::uint64_t under_way, std::uint64_t now_ns = 1) {
    HostCalls calls(link);
    const std::uint64_t read = book.cancel(request, now_ns, calls);
    if (read == 0) return;
    for (; under_way > 0; --under_way) book.abandoned(read);
    book.end_if_done(read, calls);
  }
  [[nodiscard]] std::uint64_t ends() const { return host.ends(slot); }
  [[nodiscard]] test::PostEnd end() const { return host.last_end(slot).value(); }

  test::PluginHost host{{}};
  DeafLink link{plugin::Host(host.table())};
  const std::string peer = "peer-1";
  const std::uint64_t slot = host.new_slot();
  MessageOutbox outbox;
  RequestBook book{outbox, peer};
};

TEST_F(RequestBookTest, a_post_ends_when_all_chunks_are_cut_and_answered) {
  PagedRequest request(HEADRACE_READ, 2);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(post(*request).ok());
    EXPECT_EQ(book.uncut_bytes(), 2 * page_bytes);
    EXPECT_EQ(book.next(true, true, false), &*request);
    const Chunk first = cut(*request);
    answer(request->wire_id(), first);
    EXPECT_EQ(ends(), round - 1) << "half of it has no chunk yet";
    const Chunk second = cut(*request);
    EXPECT_EQ(second.number, 1U);
    EXPECT_EQ(book.uncut_bytes(), 0U);
    EXPECT_EQ(book.next(true, true, false), nullptr);
    answer(request->wire_id(), second);
    EXPECT_EQ(ends(), round);
    EXPECT_TRUE(end().status.ok());
    EXPECT_FALSE(request->posted());
  }
}

TEST_F(RequestBookTest, a_post_of_no_bytes_ends_at_once) {
  PagedRequest request(HEADRACE_WRITE, 0);
  ASSERT_TRUE(post(*request).ok());
  EXPECT_EQ(ends(), 1U);
  EXPECT_TRUE(end().status.ok());
}

TEST_F(RequestBookTest, a_request_that_is_posted_is_not_posted_again) {
  PagedRequest request(HEADRACE_WRITE, 1);
  ASSERT_TRUE(post(*request).ok());
  EXPECT_EQ(post(*request).code, Code::invalid_argument);
  answer(request->wire_id(), cut(*request));
  EXPECT_EQ(ends(), 1U);
}

TEST_F(RequestBookTest, requests_of_one_kind_take_turns_and_the_caller_chooses_between_kinds) {
  PagedRequest read(HEADRACE_READ, 2), write(HEADRACE_WRITE, 2), other(HEADRACE_WRITE, 2);
  for (PagedRequest* request : {&read, &write, &other}) ASSERT_TRUE(post(**request).ok());
  EXPECT_EQ(book.next(true, true, true), &*read);
  EXPECT_EQ(book.next(true, true, false), &*write);
  EXPECT_EQ(book.next(true, false, false), &*read);
  (void)cut(*write);
  EXPECT_EQ(book.next(true, true, false), &*other);
  (void)cut(*other);
  EXPECT_EQ(book.next(false, true, false), &*write);
  HostCalls calls(link);
  book.end_all({Code::peer_lost}, "gone", calls);
}

TEST_F(RequestBookTest, a_cancel_at_any_moment_ends_the_post_once_and_not_before_its_memory_is_quiet) {
  constexpr std::uint64_t pages = 3;
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (std::uint64_t cut_before = 0; cut_before <= pages; ++cut_before) {
      for (std::uint64_t answered_before = 0; answered_before <= cut_before; ++answered_before) {
        SCOPED_TRACE(testing::Message() << op << ", cut " << cut_before << ", answered " << answered_before);
        PagedRequest request(op, pages);
        const std::uint64_t before = ends();
        ASSERT_TRUE(post(*request).ok());
        const std::uint64_t wire_id = request->wire_id();
        std::vector<Chunk> chunks;
        for (std::uint64_t i = 0; i < cut_before; ++i) chunks.push_back(cut(*request));
        for (std::uint64_t i = 0; i < answered_before; ++i) answer(wire_id, chunks[i]);
        cancel(*request, cut_before - answered_before);
        EXPECT_EQ(book.next(true, true, false), nullptr);
        EXPECT_EQ(book.uncut_bytes(), 0U);
        for (std::uint64_t i = answered_before; i < cut_before; ++i) {
          EXPECT_EQ(ends() - before, op == HEADRACE_READ ? 1U : 0U) << "a write waits for its peer";
          answer(wire_id, chunks[i]);
        }
        EXPECT_EQ(ends() - before, 1U);
        // A write of which all chunks arrived is done in spite of the cancel.
        const bool done = cut_before == pages && (op == HEADRACE_WRITE || answered_before == pages);
        EXPECT_EQ(end().status.code, done ? Code::ok : Code::canceled);
        EXPECT_EQ(book.oldest_cancel_ns(), std::nullopt);
        cancel(*request, 0);
        EXPECT_EQ(ends() - before, 1U) << "it had ended";
      }
    }
  }
}

TEST_F(RequestBookTest, a_second_cancel_changes_nothing) {
  PagedRequest request(HEADRACE_WRITE, 2);
  ASSERT_TRUE(post(*request).ok());
  const Chunk chunk = cut(*request);
  cancel(*request, 0, 5);
  cancel(*request, 0, 9);
  EXPECT_EQ(book.oldest_cancel_ns(), 5U);
  EXPECT_EQ(ends(), 0U);
  answer(request->wire_id(), chunk);
  EXPECT_EQ(ends(), 1U);
}

TEST_F(RequestBookTest, the_cancel_that_waits_longest_is_known) {
  PagedRequest first(HEADRACE_WRITE, 1), second(HEADRACE_WRITE, 1);
  ASSERT_TRUE(post(*first).ok());
  ASSERT_TRUE(post(*second).ok());
  const Chunk of_first = cut(*first), of_second = cut(*second);
  cancel(*second, 0, 20);
  EXPECT_EQ(book.oldest_cancel_ns(), 20U);
  cancel(*first, 0, 30);
  EXPECT_EQ(book.oldest_cancel_ns(), 20U);
  answer(second->wire_id(), of_second);
  EXPECT_EQ(book.oldest_cancel_ns(), 30U);
  answer(first->wire_id(), of_first);
  EXPECT_EQ(book.oldest_cancel_ns(), std::nullopt);
}

TEST_F(RequestBookTest, a_late_answer_changes_neither_the_next_post_nor_a_request_that_is_gone) {
  PagedRequest request(HEADRACE_READ, 1);
  ASSERT_TRUE(post(*request).ok());
  const std::uint64_t first_post = request->wire_id();
  const Chunk chunk = cut(*request);
  cancel(*request, 1);
  ASSERT_EQ(ends(), 1U);

  ASSERT_TRUE(post(*request).ok());
  const std::uint64_t second_post = request->wire_id();
  EXPECT_NE(second_post, first_post);
  (void)cut(*request);
  answer(first_post, chunk, {{Code::not_found}, 0});
  book.abandoned(first_post);
  book.will_be_canceled(first_post);
  EXPECT_EQ(ends(), 1U);
  answer(second_post, chunk);
  EXPECT_EQ(ends(), 2U);
  EXPECT_TRUE(end().status.ok());

  request.release();
  answer(second_post, chunk, {{Code::not_found}, 0});
  HostCalls calls(link);
  book.end_if_done(second_post, calls);
  EXPECT_EQ(ends(), 2U);
}

TEST_F(RequestBookTest, an_answer_that_comes_twice_ends_the_post_once) {
  PagedRequest request(HEADRACE_WRITE, 2);
  ASSERT_TRUE(post(*request).ok());
  const std::uint64_t wire_id = request->wire_id();
  const Chunk first = cut(*request);
  answer(wire_id, first);
  answer(wire_id, first);  // no chunk is under way
  const Chunk second = cut(*request);
  EXPECT_EQ(ends(), 0U);
  answer(wire_id, second);
  answer(wire_id, second);
  EXPECT_EQ(ends(), 1U);
}

TEST_F(RequestBookTest, the_end_of_the_link_ends_every_post_once) {
  PagedRequest fresh(HEADRACE_READ, 2), under_way(HEADRACE_WRITE, 1), canceled(HEADRACE_WRITE, 1);
  std::vector<Code> codes;
  host.on_completed = [&](std::uint64_t, Status status) { codes.push_back(status.code); };
  for (PagedRequest* request : {&fresh, &under_way, &canceled}) ASSERT_TRUE(post(**request).ok());
  const Chunk chunk = cut(*under_way);
  (void)cut(*canceled);
  cancel(*canceled, 0);
  {
    HostCalls calls(link);
    book.end_all({Code::peer_lost}, "it closed", calls);
    book.end_all({Code::peer_lost}, "again", calls);
  }
  EXPECT_EQ(ends(), 3U);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), Code::peer_lost), 2);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), Code::canceled), 1);
  EXPECT_EQ(book.next(true, true, false), nullptr);
  EXPECT_EQ(book.uncut_bytes(), 0U);
  EXPECT_EQ(book.oldest_cancel_ns(), std::nullopt);
  answer(under_way->wire_id(), chunk);
  EXPECT_EQ(ends(), 3U);
}

TEST_F(RequestBookTest, the_first_error_stays_and_names_its_page) {
  PagedRequest request(HEADRACE_WRITE, 4);
  ASSERT_TRUE(post(*request).ok());
  const Chunk first = cut(*request), second = cut(*request), third = cut(*request);
  answer(request->wire_id(), first);
  answer(request->wire_id(), second, {{Code::not_found}, 0});
  EXPECT_EQ(book.next(true, true, false), nullptr) << "the fourth page is not worth sending";
  answer(request->wire_id(), third, {{Code::backend_failed}, 0});
  ASSERT_EQ(ends(), 1U);
  EXPECT_EQ(end().status.code, Code::not_found);
  EXPECT_EQ(end().status.page, 1U);
  EXPECT_EQ(end().text, "peer peer-1 refused page 1: no such region is registered there (any more)");
}

TEST_F(RequestBookTest, a_write_into_read_only_memory_is_an_invalid_argument) {
  PagedRequest request(HEADRACE_WRITE, 1);
  ASSERT_TRUE(post(*request).ok());
  answer(request->wire_id(), cut(*request), {{Code::not_supported}, 0});
  EXPECT_EQ(end().status.code, Code::invalid_argument) << "the host would try the next path";
}

TEST_F(RequestBookTest, a_reason_of_this_side_is_told) {
  PagedRequest request(HEADRACE_READ, 1);
  ASSERT_TRUE(post(*request).ok());
  answer(request->wire_id(), cut(*request), {{Code::backend_failed}, 0, "the GPU has failed"});
  EXPECT_EQ(end().text, "page 0 of peer-1: the GPU has failed");
}

TEST_F(RequestBookTest, a_request_of_which_no_chunk_can_be_made_ends_with_the_reason) {
  PagedRequest request(HEADRACE_WRITE, 2);
  ASSERT_TRUE(post(*request).ok());
  const Chunk chunk = cut(*request);
  {
    HostCalls calls(link);
    book.refuse(*request, {Code::backend_failed}, "its GPU is gone", calls);
  }
  EXPECT_EQ(ends(), 0U) << "a chunk is under way";
  answer(request->wire_id(), chunk);
  EXPECT_EQ(end().status.code, Code::backend_failed);
  EXPECT_EQ(end().text, "its GPU is gone");
}

TEST_F(RequestBookTest, a_read_that_gets_only_a_part_of_its_data_ends_canceled) {
  PagedRequest request(HEADRACE_READ, 1);
  ASSERT_TRUE(post(*request).ok());
  const Chunk chunk = cut(*request);
  cancel(*request, 0);  // a GPU still writes into its memory
  book.will_be_canceled(request->wire_id());
  EXPECT_EQ(ends(), 0U);
  answer(request->wire_id(), chunk);
  EXPECT_EQ(end().status.code, Code::canceled);
}

// ------------------------------------------------------------------ messages

TEST_F(RequestBookTest, the_message_of_a_write_goes_behind_its_last_chunk) {
  PagedRequest request(HEADRACE_WRITE, 2);
  ASSERT_TRUE(post(*request, PostMessage{3, false, "done"}).ok());
  EXPECT_TRUE(request->has_message());
  (void)cut(*request);
  EXPECT_FALSE(book.messages_changed());
  EXPECT_FALSE(outbox.next());
  const Chunk last = cut(*request);
  EXPECT_TRUE(book.messages_changed());
  EXPECT_FALSE(book.messages_changed()) << "since the last call";
  const auto sent = outbox.next();
  EXPECT_EQ(sent->head.channel, 3U);
  EXPECT_EQ(sent->head.request, request->wire_id());
  EXPECT_EQ(sent->head.chunks, 2U);
  EXPECT_EQ(sent->bytes, "done");
  answer(request->wire_id(), last);
  answer(request->wire_id(), last);
}

TEST_F(RequestBookTest, the_message_of_a_read_goes_when_its_data_are_here) {
  PagedRequest request(HEADRACE_READ, 1);
  ASSERT_TRUE(post(*request, PostMessage{count_channel, true, "8 bytes."}).ok());
  const Chunk chunk = cut(*request);
  EXPECT_FALSE(outbox.next());
  answer(request->wire_id(), chunk);
  EXPECT_TRUE(book.messages_changed());
  const auto sent = outbox.next();
  EXPECT_EQ(sent->head.request, 0U);
  EXPECT_TRUE(sent->head.counted);
}

TEST_F(RequestBookTest, the_message_of_a_failed_post_is_dropped_and_later_ones_go) {
  PagedRequest read(HEADRACE_READ, 1), write(HEADRACE_WRITE, 2);
  ASSERT_TRUE(post(*read, PostMessage{0, false, "of the read"}).ok());
  ASSERT_TRUE(post(*write, PostMessage{0, false, "of the write"}).ok());
  outbox.add(0, "later", OutMessage::State::ready);
  answer(read->wire_id(), cut(*read), {{Code::not_found}, 0});
  answer(write->wire_id(), cut(*write), {{Code::not_found}, 0});
  EXPECT_TRUE(book.messages_changed());
  const auto of_write = outbox.next();
  EXPECT_TRUE(of_write->head.dropped) << "its peer has a chunk that announced it";
  EXPECT_EQ(of_write->head.chunks, 1U);
  EXPECT_EQ(outbox.next()->bytes, "later");
}

TEST_F(RequestBookTest, a_post_whose_message_has_no_room_does_not_begin) {
  while (outbox.has_room(0, 1)) outbox.add(0, "x", OutMessage::State::ready);
  PagedRequest request(HEADRACE_WRITE, 1);
  EXPECT_EQ(post(*request, PostMessage{0, false, "y"}).code, Code::would_block);
  EXPECT_FALSE(request->posted());
  EXPECT_EQ(book.uncut_bytes(), 0U);
  for (std::uint16_t channel = 1; channel < max_message_channels; ++channel)
    outbox.add(channel, "x", OutMessage::State::ready);
  EXPECT_EQ(post(*request, PostMessage{99, false, "y"}).code, Code::invalid_argument);
  ASSERT_TRUE(post(*request).ok());
  answer(request->wire_id(), cut(*request));
  EXPECT_EQ(ends(), 1U);
}

}  // namespace
}  // namespace headrace::transport
