#pragma once
// What runs for each row of the table (../benchmarks.cc); one file each.

namespace shardfit::calibrate {

class Session;

void run_context(Session& session);
void run_modules(Session& session);
void run_blas_handle(Session& session);
void run_streams_events(Session& session);
void run_granularity(Session& session);
void run_largest(Session& session);
void run_pool(Session& session);
void run_virtual_memory(Session& session);
void run_communicator(Session& session);
void run_launch(Session& session);
void run_device_copy(Session& session);
void run_host_copy(Session& session);
void run_peer_copy(Session& session);
void run_gemm(Session& session);
void run_gemm_fp8(Session& session);
void run_gemm_batched(Session& session);
void run_gemm_plan(Session& session);
void run_attention(Session& session);
void run_memory_bound(Session& session);
void run_collective(Session& session);

}  // namespace shardfit::calibrate
