// SPDX-License-Identifier: Apache-2.0
// Our declarations of NCCL's types against nccl.h, where that is installed: values, offsets, and the
// signature of every function. The compiler checks them; the test only reports that it did.
#include "vendor/nccl/library.hpp"

#include <gtest/gtest.h>

#if __has_include(<nccl.h>)
#include <nccl.h>

#include <type_traits>

namespace {

using namespace headrace::nccl;

#define HEADRACE_SAME_VALUE(ours, theirs) \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs))
HEADRACE_SAME_VALUE(Outcome::remote_error, ncclRemoteError);
HEADRACE_SAME_VALUE(Outcome::in_progress, ncclInProgress);
HEADRACE_SAME_VALUE(DataType::float64, ncclFloat64);
HEADRACE_SAME_VALUE(DataType::bfloat16, ncclBfloat16);
HEADRACE_SAME_VALUE(DataType::float8_e5m2, ncclFloat8e5m2);
HEADRACE_SAME_VALUE(ReduceOp::max, ncclMax);
HEADRACE_SAME_VALUE(ReduceOp::min, ncclMin);
HEADRACE_SAME_VALUE(ReduceOp::avg, ncclAvg);
HEADRACE_SAME_VALUE(ScalarResidence::host_immediate, ncclScalarHostImmediate);
HEADRACE_SAME_VALUE(no_color, NCCL_SPLIT_NOCOLOR);
HEADRACE_SAME_VALUE(undefined_int, NCCL_CONFIG_UNDEF_INT);
HEADRACE_SAME_VALUE(sizeof(UniqueId), sizeof(ncclUniqueId));
#if NCCL_VERSION_CODE >= 22703
HEADRACE_SAME_VALUE(shrink_abort, NCCL_SHRINK_ABORT);
HEADRACE_SAME_VALUE(window_symmetric, NCCL_WIN_COLL_SYMMETRIC);
#endif
#if NCCL_VERSION_CODE >= 22902
HEADRACE_SAME_VALUE(window_alignment, NCCL_WIN_REQUIRED_ALIGNMENT);
HEADRACE_SAME_VALUE(sizeof(AwaitedSignals), sizeof(ncclWaitSignalDesc_t));
static_assert(offsetof(AwaitedSignals, count) == offsetof(ncclWaitSignalDesc_t, opCnt) &&
              offsetof(AwaitedSignals, peer) == offsetof(ncclWaitSignalDesc_t, peer) &&
              offsetof(AwaitedSignals, signal) == offsetof(ncclWaitSignalDesc_t, sigIdx) &&
              offsetof(AwaitedSignals, context) == offsetof(ncclWaitSignalDesc_t, ctx));
#endif

#define HEADRACE_SAME_PLACE(our_field, their_field)                                   \
  static_assert(offsetof(Config, our_field) == offsetof(ncclConfig_t, their_field) && \
                sizeof(Config::our_field) == sizeof(ncclConfig_t::their_field))
HEADRACE_SAME_PLACE(magic, magic);
HEADRACE_SAME_PLACE(blocking, blocking);
HEADRACE_SAME_PLACE(max_ctas, maxCTAs);
HEADRACE_SAME_PLACE(net_name, netName);
HEADRACE_SAME_PLACE(split_share, splitShare);
#if NCCL_VERSION_CODE >= 22700
HEADRACE_SAME_PLACE(traffic_class, trafficClass);
HEADRACE_SAME_PLACE(comm_name, commName);
HEADRACE_SAME_PLACE(cta_policy, CTAPolicy);
HEADRACE_SAME_PLACE(nvls_ctas, nvlsCTAs);
#endif
#if NCCL_VERSION_CODE >= 22800
HEADRACE_SAME_PLACE(nvlink_centric_sched, nvlinkCentricSched);
#endif
#if NCCL_VERSION_CODE >= 22900
HEADRACE_SAME_PLACE(num_rma_ctx, numRmaCtx);
#endif
#if NCCL_VERSION_CODE >= 23005
HEADRACE_SAME_PLACE(max_p2p_peers, maxP2pPeers);
HEADRACE_SAME_PLACE(graph_stream_ordering, graphStreamOrdering);
#endif
#if NCCL_VERSION_CODE >= 23100
HEADRACE_SAME_PLACE(launch_order_implicit, launchOrderImplicit);
HEADRACE_SAME_PLACE(nvls_host_mode, nvlsHostMode);
#endif

#if NCCL_VERSION_CODE >= 23200
#define HEADRACE_SAME_PLACE_OF_CALL(our_field, their_field)                                   \
  static_assert(offsetof(CollConfig, our_field) == offsetof(ncclCollConfig_t, their_field) && \
                sizeof(CollConfig::our_field) == sizeof(ncclCollConfig_t::their_field))
HEADRACE_SAME_PLACE_OF_CALL(extensions, ext);
HEADRACE_SAME_PLACE_OF_CALL(min_ctas, minCTAs);
HEADRACE_SAME_PLACE_OF_CALL(cga_cluster_size, cgaClusterSize);
HEADRACE_SAME_PLACE_OF_CALL(algorithms, algSelection);
HEADRACE_SAME_PLACE_OF_CALL(cta_policy, CTAPolicy);
HEADRACE_SAME_PLACE_OF_CALL(profiler_tag, userProfilerTag);
HEADRACE_SAME_PLACE_OF_CALL(launch_completion_event, launchCompletionEvent);
HEADRACE_SAME_VALUE(policy_zero, NCCL_CTA_POLICY_ZERO);
HEADRACE_SAME_VALUE(sizeof(CollConfig), sizeof(ncclCollConfig_t));
#endif

/// Whether two functions take arguments of the same number and sizes, so that a call of one is one of the
/// other.
template <class Ours, class Theirs>
constexpr bool same_call = false;
template <class... Ours, class... Theirs, class OurResult, class TheirResult>
constexpr bool same_call<OurResult (*)(Ours...), TheirResult(Theirs...)> =
    sizeof...(Ours) == sizeof...(Theirs) && sizeof(OurResult) == sizeof(TheirResult) &&
    ((sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>)&&...);

#define HEADRACE_SAME_CALL(member, function) \
  static_assert(same_call<decltype(Table::member), decltype(function)>)
HEADRACE_SAME_CALL(get_version, ncclGetVersion);
HEADRACE_SAME_CALL(get_unique_id, ncclGetUniqueId);
HEADRACE_SAME_CALL(get_error_string, ncclGetErrorString);
HEADRACE_SAME_CALL(get_last_error, ncclGetLastError);
HEADRACE_SAME_CALL(comm_init_rank_config, ncclCommInitRankConfig);
HEADRACE_SAME_CALL(comm_split, ncclCommSplit);
HEADRACE_SAME_CALL(comm_finalize, ncclCommFinalize);
HEADRACE_SAME_CALL(comm_destroy, ncclCommDestroy);
HEADRACE_SAME_CALL(comm_abort, ncclCommAbort);
HEADRACE_SAME_CALL(comm_get_async_error, ncclCommGetAsyncError);
HEADRACE_SAME_CALL(comm_count, ncclCommCount);
HEADRACE_SAME_CALL(comm_user_rank, ncclCommUserRank);
HEADRACE_SAME_CALL(red_op_create_pre_mul_sum, ncclRedOpCreatePreMulSum);
HEADRACE_SAME_CALL(red_op_destroy, ncclRedOpDestroy);
HEADRACE_SAME_CALL(all_reduce, ncclAllReduce);
HEADRACE_SAME_CALL(broadcast, ncclBroadcast);
HEADRACE_SAME_CALL(reduce, ncclReduce);
HEADRACE_SAME_CALL(all_gather, ncclAllGather);
HEADRACE_SAME_CALL(reduce_scatter, ncclReduceScatter);
HEADRACE_SAME_CALL(send, ncclSend);
HEADRACE_SAME_CALL(recv, ncclRecv);
HEADRACE_SAME_CALL(group_start, ncclGroupStart);
HEADRACE_SAME_CALL(group_end, ncclGroupEnd);
#if NCCL_VERSION_CODE >= 21901
HEADRACE_SAME_CALL(comm_register, ncclCommRegister);
HEADRACE_SAME_CALL(comm_deregister, ncclCommDeregister);
#endif
#if NCCL_VERSION_CODE >= 22809
HEADRACE_SAME_CALL(comm_shrink, ncclCommShrink);
HEADRACE_SAME_CALL(window_register, ncclCommWindowRegister);
HEADRACE_SAME_CALL(window_deregister, ncclCommWindowDeregister);
HEADRACE_SAME_CALL(comm_revoke, ncclCommRevoke);
HEADRACE_SAME_CALL(all_to_all, ncclAlltoAll);
HEADRACE_SAME_CALL(gather, ncclGather);
HEADRACE_SAME_CALL(scatter, ncclScatter);
#endif
#if NCCL_VERSION_CODE >= 22902
HEADRACE_SAME_CALL(comm_get_unique_id, ncclCommGetUniqueId);
HEADRACE_SAME_CALL(comm_grow, ncclCommGrow);
HEADRACE_SAME_CALL(put_signal, ncclPutSignal);
HEADRACE_SAME_CALL(wait_signal, ncclWaitSignal);
#endif
#if NCCL_VERSION_CODE >= 22907
HEADRACE_SAME_VALUE(suspend_memory, NCCL_SUSPEND_MEM);
HEADRACE_SAME_CALL(comm_suspend, ncclCommSuspend);
HEADRACE_SAME_CALL(comm_resume, ncclCommResume);
#endif
#if NCCL_VERSION_CODE >= 23100
HEADRACE_SAME_CALL(all_reduce_config, ncclAllReduceConfig);
HEADRACE_SAME_CALL(broadcast_config, ncclBroadcastConfig);
HEADRACE_SAME_CALL(reduce_config, ncclReduceConfig);
HEADRACE_SAME_CALL(all_gather_config, ncclAllGatherConfig);
HEADRACE_SAME_CALL(reduce_scatter_config, ncclReduceScatterConfig);
HEADRACE_SAME_CALL(all_to_all_config, ncclAlltoAllConfig);
HEADRACE_SAME_CALL(gather_config, ncclGatherConfig);
#endif

TEST(NcclTypes, are_those_of_nccl_h) { SUCCEED(); }

}  // namespace

#else

TEST(NcclTypes, are_those_of_nccl_h) { GTEST_SKIP() << "nccl.h is not installed"; }

#endif
