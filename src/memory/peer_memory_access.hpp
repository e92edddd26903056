// SPDX-License-Identifier: Apache-2.0
// Accesses to the caller's pages that the thread sanitizer must not judge. It sees no order through a socket:
// pages that one side's thread fills are looked at by another thread once the peer has said so, in a frame or
// through its process. Suppressing the reports is not enough: each costs time, 64 MiB of them minutes.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define HEADRACE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HEADRACE_THREAD_SANITIZER 1
#endif
#endif

#ifdef HEADRACE_THREAD_SANITIZER
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace headrace {

/// While it lives, the thread's accesses are not looked at. Locks and atomics still count.
class PeerMemoryAccess {
 public:
#ifdef HEADRACE_THREAD_SANITIZER
  PeerMemoryAccess() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~PeerMemoryAccess() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  PeerMemoryAccess() {}   // NOLINT(modernize-use-equals-default): not trivial, so that nobody calls it unused
  ~PeerMemoryAccess() {}  // NOLINT(modernize-use-equals-default)
#endif
  PeerMemoryAccess(const PeerMemoryAccess&) = delete;
  PeerMemoryAccess& operator=(const PeerMemoryAccess&) = delete;
};

}  // namespace headrace
